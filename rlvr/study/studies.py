"""The studies of one invocation: the main one, and beside it those of config/studies on top of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from evals.core.records import Run
from rlvr.study.looks import PlannedLook, plan_looks
from rlvr.study.rates import RATES, resolve_rates
from rlvr.study.source_files import CONFIG
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file

NAMED_STUDIES = CONFIG / "studies"
BEST = "best/"
"""The folder, in a study's own, of the results of its trainings' best policies."""
STEPS = "steps/"
"""The folder, in a study's own, of the scores of policies along its trainings."""
_SHARED = (
    *("engine", "models", "problems", "validation", "benchmarks", "benchmark_sources", "evaluation", "checkpoint"),
    *("statistics", "execution"),
)
"""Sections that studies side by side have in common."""


def named_study_files(directory: Path = NAMED_STUDIES) -> dict[str, Path]:
    """Name -> file of every study that can be asked for by its name."""
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def resolve_named_study(path: Path, main: Study, content: Mapping[str, Any]) -> Study:
    """Resolve a study of config/studies on top of the ``main`` one, of which ``content`` is the configuration.

    With fewer seeds there than in the file, as in the smoke study, it has fewer too.
    """
    source = f"config/studies/{path.name}"
    if not main.methods:
        raise InvalidInput(source, "", "compares methods", "beside a study that has methods")
    named = read_study_file(path, instead=content)
    if isinstance(named.get("seeds"), list):
        named["seeds"] = named["seeds"][: len(main.config.training_seeds)]
    study = Study.resolve(named, source)
    if not study.folder:
        raise InvalidInput(source, "folder", "is missing", "studies/NAME")
    _check_shared(study, main, source)
    return study


def _check_shared(study: Study, other: Study, source: str) -> None:
    """Check that two studies differ in nothing that they share."""
    for key in _SHARED:
        if key == "validation" and study.config.validation is None:
            continue  # scores along trainings of its own
        if getattr(study.config, key) != getattr(other.config, key):
            accepted = f"that of {other.config.study}, which it lies beside; or no folder, and another --directory"
            raise InvalidInput(source, key, "differs", accepted)


@dataclass(frozen=True)
class EarlierPolicy:
    """The policy of a run after some of its steps, which is evaluated like a run of its own.

    Attributes:
        run: its row of the run sheet: ``tiny-dapo_step10-s1``, of the method ``dapo_step10``.
        trained: the run that passes through it.
        step: the number of steps.
        is_last: whether it is the one that the training ends with.
    """

    run: Run
    trained: Run
    step: int
    is_last: bool = False

    @property
    def directory(self) -> str:
        """The directory in which the training keeps it, laid out as that of a run; the last one's is the run's own."""
        run = f"results/runs/{self.trained.run}"
        return run if self.is_last else f"{run}/checkpoints/step-{self.step}"

    @property
    def manifest(self) -> str:
        """The file that stands for it."""
        return f"{self.directory}.kept"


def earlier_policies(study: Study) -> list[EarlierPolicy]:
    """List the policies that are evaluated after the fractions ``score_at`` of their training."""
    policies = []
    for model in study.config.models:
        for method, points in score_points(study).items():
            for step, name in points[:-1]:
                title = str(study.config.methods[method].of_entry.get("title", name))
                for seed in study.seeds(model, method):
                    run = Run(run=f"{model}-{name}-s{seed}", model=model, method=name, seed=seed, title=title)
                    policies.append(EarlierPolicy(run, study.run(f"{model}-{method}-s{seed}"), step))
    return policies


@dataclass(frozen=True)
class Candidate(EarlierPolicy):
    """A policy that the best one of its training is chosen among, evaluated on the choosing benchmark alone."""

    @property
    def manifest(self) -> str:
        """The file that stands for all policies that the best one is chosen among."""
        return f"results/runs/{self.trained.run}/candidates.kept"


@dataclass(frozen=True)
class BestPolicy:
    """The best policy of a run, which is evaluated like a run of its own.

    Attributes:
        run: its row of the run sheet: ``tiny-dapo_best-s1``, of the method ``dapo``, for best is compared with best.
        trained: the run.
        candidates: the policies that it is chosen among: ``tiny-dapo_choice2-s1`` after 2 steps.
    """

    run: Run
    trained: Run
    candidates: tuple[Candidate, ...]

    @property
    def directory(self) -> str:
        """The directory in which it is laid out as a run."""
        return f"results/runs/{self.run.run}"

    @property
    def manifest(self) -> str:
        """The file that stands for it."""
        return f"{self.directory}/manifest.json"


def best_policies(study: Study) -> list[BestPolicy]:
    """List the best policy of every run of ``study``; none where the study reports the last ones alone."""
    best = study.config.best_checkpoint
    if best is None:
        return []
    policies = []
    for run in study.trained_runs:
        begin, end = f"{run.model}-{run.method}", f"s{run.seed}"
        last = study.run_spec(run.run).training.steps
        candidates = [
            Candidate(run.model_copy(update={"run": f"{begin}_choice{step}-{end}"}), run, step, is_last=step == last)
            for step in [*range(best.every, last, best.every), last]
        ]
        policies.append(BestPolicy(run.model_copy(update={"run": f"{begin}_best-{end}"}), run, tuple(candidates)))
    return policies


def score_points(study: Study) -> dict[str, list[tuple[int, str]]]:
    """List for every method the steps after which it is scored, in order, each with the method's name then."""
    points = {}
    for method, training in study.training.items():
        parts = study.config.score_at or ()
        earlier = sorted({max(1, round(part * training.steps)) for part in parts} - {training.steps})
        points[method] = [*((step, f"{method}_step{step}") for step in earlier), (training.steps, method)]
    return points


@dataclass(frozen=True)
class Studies:
    """The studies that lie side by side under results/.

    Attributes:
        main: the study that was asked for.
        by_folder: where a study's own results lie ("" or ``studies/NAME/``) -> the study; the main one first.
        sources: the same folder -> the file of the study.
        folders: name of a study of config/studies -> its folder.
        runs: run id -> a study that has it, and the run: one run of a name for all studies.
        earlier: ``steps/`` in a study's folder -> the policies along its trainings that it is scored at.
        best: ``best/`` in a study's folder -> the best policy of each run of a study that reports it.
        looks: ``looks/SEEDS/`` in a study's folder -> the look at a study that stops when it is certain.
        refused: name of a study of config/studies that does not go with the main one -> why, in one line.
    """

    main: Study
    by_folder: dict[str, Study] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    runs: dict[str, tuple[Study, Run]] = field(default_factory=dict)
    earlier: dict[str, Sequence[EarlierPolicy]] = field(default_factory=dict)
    best: dict[str, Sequence[BestPolicy]] = field(default_factory=dict)
    looks: dict[str, PlannedLook] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def folder_of(self, name: str) -> str:
        """The folder of a study of config/studies; a :class:`UserError` if it does not go with the main one."""
        if name in self.refused:  # and now it is asked for
            raise UserError(self.refused[name])
        return self.folders[name]

    def together(self, folder: str) -> list[str]:
        """The folders that are made together: a study's, and that of the study that it names in ``beside``."""
        study = self.by_folder[folder]
        name, source = study.config.beside, self.sources[folder]
        if name is None:
            return [folder]
        others = [other for other in (*self.folders, *self.refused) if self.folders.get(other) != folder]
        others = [other for other in others if other != RATES]
        if name not in others:
            raise InvalidInput(source, "beside", f"is {name!r}", ", ".join(others))
        other = self.by_folder[self.folder_of(name)]
        count = len(study.config.varied_methods)
        if other.config.beside is not None or len(other.config.varied_methods) != count:
            accepted = f"a study with as many methods, {count}, in the same order, and no `beside` of its own"
            raise InvalidInput(source, "beside", f"is {name!r}", accepted)
        return [folder, other.folder]

    def add(self, study: Study, source: str) -> None:
        """Put a study beside the others; a :class:`UserError` if it does not go with them."""
        folder = study.folder
        left, looks = plan_looks(study)
        policies = earlier_policies(left)
        best = {f"{folder}{BEST}": best_policies(left)} if study.config.best_checkpoint else {}
        self._check_names(study, source, policies)
        self._check_best_names(study, source, best)
        self.by_folder[folder], self.sources[folder] = left, source
        self.looks.update(looks)
        if policies:
            self.earlier[f"{folder}{STEPS}"] = policies
        self.best.update(best)
        for run in study.runs:
            self.runs.setdefault(run.run, (study, run))

    def _check_best_names(self, study: Study, source: str, best: Mapping[str, Sequence[BestPolicy]]) -> None:
        """Check that no method has the name that samples of a best policy, or of one that it is chosen among, go by."""
        policies = [policy for of_study in {**self.best, **best}.values() for policy in of_study]
        taken = {policy.run.run for policy in policies}
        taken |= {candidate.run.run for policy in policies for candidate in policy.candidates}
        for run in study.trained_runs:
            if run.run in taken:
                message = "is the name of a policy that `checkpoint` evaluates"
                raise InvalidInput(source, f"methods.{run.method}", message, "another name")

    def _check_names(self, study: Study, source: str, policies: Sequence[EarlierPolicy]) -> None:
        """Check that a name means one policy in all studies, for its samples lie in one place."""
        owners = dict.fromkeys((run.run for run in study.trained_runs), source)
        owners |= {run: self.sources[owner.folder] for run, (owner, _) in self.runs.items()}
        of_others = {policy.run.run: policy for others in self.earlier.values() for policy in others}
        for run in study.trained_runs:
            key = f"methods.{run.method}"
            if run.run in self.runs and not self.runs[run.run][0].trains_as(study, run.run):
                accepted = "the same changes of the catalogue's entry, or another name in one of them"
                raise InvalidInput(source, key, f"is not what {owners[run.run]} means by that name", accepted)
            if other := of_others.get(run.run):
                after = f"{other.trained.method} after {other.step} steps"
                raise InvalidInput(
                    source, key, f"is the name of {after}, which another study is scored at", "another name"
                )
        for policy in policies:
            if policy.run.run in owners:
                after, method = f"{policy.trained.method} after {policy.step} steps", policy.run.method
                message = f"gives {after} the name {method}, which is a method of {owners[policy.run.run]}"
                raise InvalidInput(source, "score_at", message, f"another name of the method {method}")


def resolve_studies(content: Mapping[str, Any], source: str, extended: Mapping[str, Any] | None = None) -> Studies:
    """Resolve the main study, whose configuration came from ``source``, and every study of config/studies on top of it.

    A study of config/studies that does not go with the main one stands in nobody's way: it is refused where it is asked
    for. A main study with a folder has to go with the study that it extends, whose runs lie in the same directory.
    """
    main = Study.resolve(content, source)
    studies = Studies(main)
    studies.add(main, source)
    if main.folder and extended is not None:
        parent = Study.resolve(extended, f"what {source} extends")
        _check_shared(main, parent, source)
        side_by_side = Studies(parent)
        side_by_side.add(parent, parent.config.study)
        side_by_side.add(main, source)
    for name, path in named_study_files().items():
        file = f"config/studies/{path.name}"
        try:
            study = resolve_named_study(path, main, content)
            if other := studies.by_folder.get(study.folder):
                if study.config != other.config:
                    raise InvalidInput(file, "folder", f"is that of {studies.sources[study.folder]}", "another folder")
            else:
                studies.add(study, file)
            studies.folders[name] = study.folder
        except UserError as error:
            studies.refused[name] = str(error)
    try:
        rates = resolve_rates(main, content, source)
        studies.add(rates, f"{source}: snakemake rates")
        studies.folders[RATES] = rates.folder
    except UserError as error:
        studies.refused[RATES] = str(error)
    return studies
