"""The main study and the named studies (config/studies/*.yaml) beside it: other methods on its models and problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.config.named_study import NamedStudy
from evals.core.errors import InvalidInput, UserError
from evals.core.records import Run
from evals.core.yaml_file import read_yaml
from rlvr.study.benchmarks import CONFIG
from rlvr.study.catalogue import load_catalogue
from rlvr.study.study import Study

NAMED_STUDIES = CONFIG / "studies"
BEST = "best/"
"""The folder, in a study's own, of the results of its trainings' best policies."""


def named_study_files(directory: Path = NAMED_STUDIES) -> dict[str, Path]:
    """Name -> file of every named study."""
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def read_named_study(path: Path) -> NamedStudy:
    """Read a named study, which has to correspond to the one that it names in ``beside``."""
    source = f"config/studies/{path.name}"
    named = NamedStudy.parse(read_yaml(path), source)
    if named.beside is None:
        return named
    others = {name: file for name, file in named_study_files(path.parent).items() if file != path}
    if named.beside not in others:
        raise InvalidInput(source, "beside", f"is {named.beside!r}", ", ".join(others))
    other = NamedStudy.parse(read_yaml(others[named.beside]), f"config/studies/{named.beside}.yaml")
    if other.beside is not None or len(other.methods) != len(named.methods):
        accepted = f"a study with as many methods, {len(named.methods)}, in the same order, and no `beside` of its own"
        raise InvalidInput(source, "beside", f"is {named.beside!r}", accepted)
    return named


def resolve_named_study(name: str, path: Path, config: Mapping[str, Any]) -> Study:
    """Resolve a named study on top of the main study ``config``; mistakes are a :class:`UserError` of one line.

    It keeps all of ``config`` but seeds, methods, reference method, registration and diagnostics; the controls of
    ``config`` are added to the methods where both have the same reference method. With fewer seeds in ``config`` than
    in the file, as in the smoke study, the named study has fewer too. Where the named study changes training settings,
    its methods are named after it, for they are not what other studies mean by their names.
    """
    source = f"config/studies/{path.name}"
    named = read_named_study(path)
    if not config.get("methods"):
        raise InvalidInput(source, "", "compares methods", "beside a study that has methods")
    methods = {method: changes.to_json() for method, changes in named.methods.items()}
    controls = config.get("controls", {}) if named.reference_method == config["reference_method"] else {}
    for method in controls.values():
        methods.setdefault(method, config["methods"][method])
    own: dict[str, Any] = {
        "seeds": list(named.seeds[: len(config["seeds"])]),
        "methods": methods,
        "reference_method": named.reference_method,
    }
    if named.training:
        own["training"] = {**config["training"], **named.training}
        own["reference_method"] = f"{name}_{named.reference_method}"
        own["methods"] = {}
        controls = {kind: f"{name}_{method}" for kind, method in controls.items()}
        for method, changes in methods.items():
            parent = changes.get("extends", method)
            title = load_catalogue().get(parent, {}).get("title", method) if parent == method else method
            own["methods"][f"{name}_{method}"] = {"extends": parent, "title": title, **changes}
    of_main_alone = ("diagnostics", "decoding", "controls", "registration")
    kept = {key: value for key, value in config.items() if key not in of_main_alone}
    own |= {"controls": controls} if controls else {}
    return Study.resolve({**kept, **own, "study": name}, source)


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
        own = f"results/runs/{self.trained.run}"
        return own if self.is_last else f"{own}/checkpoints/step-{self.step}"


def earlier_policies(study: Study, score_at: Sequence[float]) -> list[EarlierPolicy]:
    """List the policies that are evaluated after fractions ``score_at`` of their training."""
    policies = []
    for model in study.config.models:
        for method, points in score_points(study, score_at).items():
            for step, name in points[:-1]:
                title = str(study.config.methods[method].of_entry.get("title", name))
                for seed in study.config.seeds:
                    run = Run(run=f"{model}-{name}-s{seed}", model=model, method=name, seed=seed, title=title)
                    policies.append(EarlierPolicy(run, study.run(f"{model}-{method}-s{seed}"), step))
    return policies


@dataclass(frozen=True)
class Candidate(EarlierPolicy):
    """A policy that the best one of its training is chosen among, evaluated on the choosing benchmark alone."""


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


def score_points(study: Study, score_at: Sequence[float]) -> dict[str, list[tuple[int, str]]]:
    """List for every method the steps after which it is scored, in order, each with the method's name then."""
    points = {}
    for method, training in study.training.items():
        earlier = sorted({max(1, round(part * training.steps)) for part in score_at} - {training.steps})
        points[method] = [*((step, f"{method}_step{step}") for step in earlier), (training.steps, method)]
    return points


@dataclass(frozen=True)
class Studies:
    """The studies that lie side by side under results/.

    Attributes:
        by_folder: where a study's own results lie ("" or ``studies/NAME/``) -> the study.
        runs: run id -> a study that has it, and the run: one run of a name for all studies.
        earlier: ``studies/NAME/steps/`` -> the policies along its training that the named study is scored at.
        best: ``best/`` or ``studies/NAME/best/`` -> the best policy of each run of a study that reports it.
        refused: folder of a named study that cannot be run beside the others -> why, in one line.
    """

    by_folder: Mapping[str, Study]
    runs: Mapping[str, tuple[Study, Run]]
    earlier: Mapping[str, Sequence[EarlierPolicy]]
    best: Mapping[str, Sequence[BestPolicy]]
    refused: Mapping[str, str]


def resolve_studies(config: Mapping[str, Any], source: str) -> Studies:
    """Resolve the main study ``config``, which came from ``source``, and every named study on top of it.

    A named study that does not go with ``config`` stands in nobody's way: it is refused where it is asked for.
    """
    study = Study.resolve(config, source)
    by_folder = {"": study}
    runs = {run.run: (study, run) for run in study.runs}
    owners = dict.fromkeys(runs, source)
    earlier: dict[str, Sequence[EarlierPolicy]] = {}
    best = {BEST: best_policies(study)} if study.config.best_checkpoint else {}
    _check_best_names(study, source, best)
    refused: dict[str, str] = {}
    for name, path in named_study_files().items():
        folder = f"studies/{name}/"
        try:
            named = resolve_named_study(name, path, config)
            policies = earlier_policies(named, read_named_study(path).score_at or ())
            _check_names(named, f"config/studies/{path.name}", policies, runs, owners, earlier)
            chosen = {**best, f"{folder}{BEST}": best_policies(named)} if best else {}
            _check_best_names(named, f"config/studies/{path.name}", chosen)
        except UserError as error:
            refused[folder] = str(error)
            continue
        by_folder[folder], best = named, chosen
        if policies:
            earlier[f"{folder}steps/"] = policies
        added = {run.run: (named, run) for run in named.runs if run.run not in runs}
        runs |= added
        owners |= dict.fromkeys(added, f"config/studies/{path.name}")
    return Studies(by_folder, runs, earlier, best, refused)


def _check_best_names(study: Study, source: str, best: Mapping[str, Sequence[BestPolicy]]) -> None:
    """Check that no method has the name that samples of a best policy, or of one that it is chosen among, go by."""
    policies = [one for each in best.values() for one in each]
    taken = {one.run.run for one in policies} | {each.run.run for one in policies for each in one.candidates}
    for run in study.trained_runs:
        if run.run in taken:
            message = "is the name of a policy that `checkpoint` evaluates"
            raise InvalidInput(source, f"methods.{run.method}", message, "another name")


def _check_names(
    study: Study,
    source: str,
    policies: Sequence[EarlierPolicy],
    runs: Mapping[str, tuple[Study, Run]],
    owners: Mapping[str, str],
    earlier: Mapping[str, Sequence[EarlierPolicy]],
) -> None:
    """Check that a name means one policy in all studies, for its samples lie in one place."""
    of_others = {each.run.run: each for others in earlier.values() for each in others}
    for run in study.trained_runs:
        key = f"methods.{run.method}"
        if run.run in runs and not runs[run.run][0].trains_as(study, run.run):
            accepted = "the same changes of the catalogue's entry, or another name in one of them"
            raise InvalidInput(source, key, f"is not what {owners[run.run]} means by that name", accepted)
        if other := of_others.get(run.run):
            message = (
                f"is the name of {other.trained.method} after {other.step} steps, which another study is scored at"
            )
            raise InvalidInput(source, key, message, "another name")
    owners = {**dict.fromkeys((run.run for run in study.trained_runs), source), **owners}
    for each in policies:
        if each.run.run in owners:
            message = (
                f"gives {each.trained.method} after {each.step} steps the name {each.run.method}, which is a method"
            )
            accepted = f"another name of the method {each.run.method}"
            raise InvalidInput(source, "score_at", f"{message} of {owners[each.run.run]}", accepted)
