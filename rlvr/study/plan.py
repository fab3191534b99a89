"""The plan of an invocation: from its studies to the list of all stages.

A study's own results lie in its folder under results/, ``studies/NAME/``, or directly there (folder ``""``). Problems,
models, runs, samples and grades are shared by all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.config.base_models import Existing
from evals.core.errors import UserError
from evals.core.records import Run
from evals.core.run_spec import VERIFIER_FILE, VERL
from evals.core.sampling import OfBenchmark, Sampling
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import CHOICE_VERSION, INTEGER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERIFIER_VERSION
from evals.grading.code import VERSION as CODE_GRADER_VERSION
from evals.grading.code.sandbox import require_sandbox
from evals.grading.code.verifier import read_verifier
from evals.grading.verdict import CODE, VERIFIER, Kind
from evals.scores.registration import REGISTRATIONS, register
from rlvr.engines import option_versions
from rlvr.engines.local import VERSION as LOCAL_ENGINE_VERSION
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.methods.component_file import component_copy
from rlvr.stages import evaluate, models, problems, shown, train
from rlvr.stages.stage import Stage
from rlvr.study.benchmarks import absolute_path
from rlvr.study.looks import LOOKS, PlannedLook, decisions_of
from rlvr.study.studies import BEST, BestPolicy, EarlierPolicy, Studies, resolve_studies
from rlvr.study.study import OF_PROBLEMS, TRAIN, TRAINING_PROBLEMS, VALIDATION, Study

PRETRAINED = "-pretrained"
"""The suffix of the name of a model before it is fine-tuned."""


class Plan:
    """The studies of one invocation, and the stages that make them.

    Attributes:
        study: the main study.
        folders: the folders of the studies' own results.
        earlier: run id -> the policy along a training that a study is scored at.
        best: run id -> the best policy of a training.
        candidates: run id -> the policy along a training that the best one is chosen among.
        policies: all of these, each of which is evaluated under its run id.
        trained: ids of the runs that are trained, of all studies.
        runs: ids of everything that is evaluated: base models, runs, and policies along their training.
        trained_on: files of everything that models are trained on.
        missing: imported model that is not here -> why it cannot be imported.
        imported: models that are fetched or linked; what is fine-tuned first has the name of its result and a suffix.
    """

    def __init__(self, studies: Studies) -> None:
        self.studies, self.missing = studies, dict[str, str]()
        self.study = study = studies.main
        self.folders = [*studies.by_folder, *studies.earlier, *studies.best, *studies.looks]
        self.earlier = {policy.run.run: policy for policies in studies.earlier.values() for policy in policies}
        self.best = {policy.run.run: policy for policies in studies.best.values() for policy in policies}
        self.candidates = {policy.run.run: policy for best in self.best.values() for policy in best.candidates}
        self.policies: dict[str, EarlierPolicy | BestPolicy] = {**self.earlier, **self.candidates, **self.best}
        self.trained = [identifier for identifier, (_, run) in studies.runs.items() if run.seed is not None]
        self.runs = [*studies.runs, *self.policies]
        self.execution = study.config.execution
        trained_on = [TRAINING_PROBLEMS] if study.methods else []
        trained_on += [f"results/base/{model}/corpus.jsonl" for model in study.models_from_scratch]
        solutions = [file for model in study.fine_tuned_models for file in study.solutions(model)]
        self.trained_on = list(dict.fromkeys([*trained_on, *solutions]))
        pretrained = {f"{model}{PRETRAINED}": entry for model, entry in study.fine_tuned_models.items()}
        self.imported: dict[str, Existing] = {**study.existing_models, **pretrained}

    @classmethod
    def read(cls, content: Mapping[str, Any], source: str, extended: Mapping[str, Any] | None = None) -> Plan:
        """Resolve a configuration, and check what it needs of this machine: better said now than after the training.

        ``extended`` is the study that it extends, if any.
        """
        plan = cls(resolve_studies(content, source, extended))
        copies = {name: benchmark.path for name, benchmark in plan.study.benchmarks.items()}
        sets = {"problems": plan.study.training_settings, **plan.study.solution_settings}
        for name, path in [*copies.items(), *((name, settings.get("path")) for name, settings in sets.items())]:
            if path is not None and not Path(path).exists():
                raise UserError(f"{name}: path: {path}: no such file or directory")
        for name, model in plan.study.fine_tuned_models.items():
            for named in model.named_solutions:
                if isinstance(named, str) and named != OF_PROBLEMS and not Path(absolute_path(named)).is_file():
                    raise UserError(f"models.{name}.solutions: {named}: no such file")
        for name, benchmark in plan.study.benchmarks.items():
            if benchmark.grader == CODE or name in plan.study.verifiers:
                try:
                    require_sandbox()
                except UserError as error:
                    raise UserError(f"benchmark {name}: {error}") from None
        for path in plan.study.verifiers.values():
            read_verifier(Path(path))
            require_sandbox()
        return plan

    def in_folder(self, folder: str) -> Study:
        """The study whose results lie there."""
        if folder in self.studies.looks:
            return self.studies.looks[folder].study
        return self.studies.by_folder[folder.removesuffix(BEST) if folder in self.studies.best else folder]

    def evaluated_runs(self, folder: str) -> list[Run]:
        """The runs whose scores lie in a folder: of a study, or of its base models and other policies of its runs."""
        others = [policy.run for policy in self.studies.earlier.get(folder, ())]
        others += [policy.run for policy in self.studies.best.get(folder, ())]
        if others:
            return [run for run in self.study.runs if run.seed is None] + others
        study = self.in_folder(folder)
        return study.trained_runs if folder in self.studies.looks else study.runs

    def model_of(self, run: str) -> str:
        return (self.policies[run].run if run in self.policies else self.studies.runs[run][1]).model

    def study_of(self, run: str) -> Study:
        return self.studies.runs[run][0]

    # The stages

    def stages(self) -> Iterator[Stage]:
        """All stages up to the comparisons, in the order of the data."""
        yield from self._problems()
        yield from self._models()
        yield from self._trainings()
        yield from self._evaluations()
        for folder in self.folders:
            yield shown.WriteRuns(folder=folder, sheet=tuple(run.to_json() for run in self.evaluated_runs(folder)))
            yield from self._scores(folder)
        for folder in self.studies.by_folder:
            yield shown.WriteStudy(folder=folder, study=self.in_folder(folder).config.to_json())

    def _problems(self) -> Iterator[Stage]:
        study = self.study
        sets = {TRAIN: study.training_settings} if study.trained_runs else {}
        sets |= {VALIDATION: study.validation_settings} if study.validation_settings else {}
        sets |= {name: benchmark.problem_settings() for name, benchmark in study.benchmarks.items()}
        for name, settings in sets.items():
            if "kinds" in settings:
                split = "train" if name == TRAIN else "evaluation"
                drawn = {key: settings[key] for key in ("kinds", "count", "seed")}
                yield problems.DrawProblems.parse({"name": name, "split": split, **drawn}, name)
            else:
                read = problems.ReadTrainingSet if name == TRAIN else problems.ReadProblems
                yield read(name=name, content=settings, files=files_of(settings.get("path")))
        for name, settings in study.solution_settings.items():
            yield problems.ReadSolutions(name=name, content=settings, files=files_of(settings.get("path")))
        for name, file in study.verifiers.items():
            yield problems.TryVerifier(
                name=name, file=Path(file), problems=Path(f"results/problems/{name}/problems.jsonl")
            )
        for name in study.benchmarks:
            manifest = problem_set(name)
            yield problems.CheckDisjoint(name=name, benchmark=manifest, trained_on=tuple(map(Path, self.trained_on)))

    def _models(self) -> Iterator[Stage]:
        study = self.study
        for model, entry in study.models_from_scratch.items():
            yield models.WriteCorpus(model=model, corpus=entry.corpus, count=entry.training.examples)
            corpus = Path(f"results/base/{model}/corpus.jsonl")
            held_out = (Path(f"results/problems/{VALIDATION}/problems.jsonl"),) if entry.training.stop_at else ()
            training = entry.training_settings()
            yield models.TrainBaseModel(model=model, corpus=corpus, training=training, held_out=held_out)
        for model, existing in self.imported.items():
            path = None if existing.path is None else absolute_path(existing.path)
            source = {"source": existing.id, "revision": existing.hub_revision} if path is None else {"source": path}
            yield models.ImportModel(model=model, files=self._model_files(model, existing.path), **source)
        for model, served in study.served_models.items():
            yield models.ReachServer(model=model, service=served.service())
        for model, tuned in study.fine_tuned_models.items():
            settings: dict[str, Any] = {"dtype": tuned.dtype, "prompt_form": tuned.prompt_form}
            settings |= {"head_dtype": tuned.head_dtype} if tuned.head_dtype else {}
            settings |= {"chat_template_kwargs": told} if (told := tuned.chat_template_kwargs) else {}
            yield models.FineTuneModel(
                model=model,
                base=Path(f"results/base/{model}{PRETRAINED}/manifest.json"),
                solutions=tuple(map(Path, study.solutions(model))),
                training={**tuned.fine_tuning.to_json(), **settings},
            )

    def _model_files(self, model: str, path: str | None) -> tuple[Path, ...]:
        """The files of a local checkpoint: with one of them changed, it is imported and sampled again."""
        if path is None:
            return ()
        directory = Path(absolute_path(path))
        if not directory.is_dir():
            name = model.removesuffix(PRETRAINED)
            self.missing[model] = f"models.{name}.path: {path}: no such directory"
        files = (file for kind in ("*.safetensors", "*.json", "*.jinja") for file in directory.glob(kind))
        return tuple(sorted(files))

    def _trainings(self) -> Iterator[Stage]:
        versions = (
            (VERL_ENGINE_VERSION, GRADER_VERSION)
            if self.study.engine == VERL
            else (LOCAL_ENGINE_VERSION, SAMPLER_VERSION, INTEGER_VERSION)
        )
        names = [TRAIN] * bool(self.study.trained_runs) + [VALIDATION] * bool(self.study.validation_settings)
        sets = tuple(problem_set(name) for name in names)
        files = (file for study in self.studies.by_folder.values() for file in study.component_files)
        for digest, file in {component_copy(file).parent.name: file for file in files}.items():
            yield train.CopyComponent(digest=digest, file=file)
        for run in self.trained:
            spec = self.study_of(run).run_spec(run)
            yield train.Train(
                **self._devices(run),
                resolved=spec.to_json(),
                engine_versions=(*versions, *option_versions(spec.training).values()),
                base=self.base_manifest(run),
                problems=sets,
                verifier=tuple(self.verifier(TRAIN)),
                components=tuple(file.with_name("manifest.json") for file in spec.component_files),
                kept_steps=self._kept_steps(run),
            )
        for policy in self.earlier.values():
            trained = policy.trained.run
            manifest = Path(f"results/runs/{trained}/manifest.json")
            yield train.KeepPolicy(**self._devices(trained), step=policy.step, trained=manifest)
        for run, best in self.best.items():
            trained = best.trained.run
            steps = tuple(policy.step for policy in best.candidates if not policy.is_last)
            manifest = Path(f"results/runs/{trained}/manifest.json")
            yield train.KeepCandidates(**self._devices(trained), steps=steps, trained=manifest)
            grades = {
                str(policy.step): self.grades(policy.run.run, benchmark)
                for policy in best.candidates
                for benchmark in self.evaluated_on(policy.run.run)
            }
            yield train.ChooseBest(run_id=run, trained=f"results/runs/{trained}", candidates=grades)

    def _devices(self, run: str) -> dict[str, Any]:
        """Where a run is trained, and when: every method's first seed comes before any method's second."""
        study, row = self.studies.runs[run]
        seeds = study.config.training_seeds
        return {
            "run_id": run,
            "cluster": study.cluster(run) if study.engine == VERL else {},
            "has_ray": "RAY_ADDRESS" in os.environ,
            "training_priority": 50 - seeds.index(row.seed or 0) / len(seeds) if row.seed in seeds else 50.0,
        }

    def _kept_steps(self, run: str) -> tuple[int, ...]:
        """The steps whose policies a training keeps from the start.

        The best one is chosen among them, or a study is scored at them. A run of the main study keeps none that other
        studies alone are scored at: few ask for them, and they are made again from its saved states.
        """
        along = list[EarlierPolicy](self.candidates.values())
        if self.study_of(run) is not self.study or self.study.config.score_at is not None:
            along += self.earlier.values()
        return tuple(sorted({policy.step for policy in along if policy.trained.run == run and not policy.is_last}))

    def _evaluations(self) -> Iterator[Stage]:
        for run in self.runs:
            chooses, names = run in self.candidates, self.evaluated_on(run)
            yield (evaluate.SampleCandidate if chooses else evaluate.Sample)(
                policy=run,
                source=self.checkpoint(run),
                checkpoint=Path(self.checkpoint_manifest(run)),
                sampling=self.sampling(run),
                **self.sampled(run, names),
            )
            yield (evaluate.GradeCandidate if chooses else evaluate.Grade)(
                policy=run, samples={name: self.samples(run, name) for name in names}, **self.graded(names)
            )

    def sampled(self, run: str, names: Sequence[str]) -> dict[str, Any]:
        """The fields of a stage that samples the model of a run on benchmarks: what each has of its own."""
        sets = {name: problem_set(name) for name in names}
        return {
            "problems": sets,
            "disjoint": {name: manifest.with_name("disjoint.json") for name, manifest in sets.items()},
            "own": {name: self.own_settings(run, name) for name in names},
        }

    def graded(self, names: Sequence[str]) -> dict[str, Any]:
        """The fields of a stage that grades samples on benchmarks: what each has of its own."""
        return {
            "problems": {name: problem_set(name).with_name("problems.jsonl") for name in names},
            "verifiers": {name: file for name in names for file in self.verifier(name)},
            "grading": {name: self.grading(name) for name in names},
        }

    def _scores(self, folder: str) -> Iterator[Stage]:
        runs = [run.run for run in self.evaluated_runs(folder)]
        for name in self.study.benchmarks:
            yield scores_of(folder, name, [self.grades(run, name) for run in runs])
        if folder in self.studies.by_folder or folder in self.studies.best:
            config = self.in_folder(folder).config
            yield evaluate.Comparisons(
                folder=folder,
                scores=self.scores(folder),
                metrics=self.metrics(folder),
                reference_method=config.reference_method,
                statistics=self.study.config.statistics,
                controls=config.controls,
                decisions=tuple(map(decisions_of, self.looks(folder)[-1:])),
            )
        if folder in self.studies.looks:
            yield from self._decisions(folder, self.studies.looks[folder])

    def _decisions(self, folder: str, look: PlannedLook) -> Iterator[Stage]:
        yield evaluate.Comparisons(
            folder=folder,
            scores=self.scores(folder),
            reference_method=look.study.config.reference_method,
            statistics=self.study.config.statistics,
            confidence=1.0 - look.level,
        )
        yield evaluate.Decide(
            folder=folder,
            comparisons=Path(f"results/{folder}comparisons.json"),
            earlier=tuple(map(decisions_of, filter(None, [look.earlier]))),
            margin=look.margin,
            level=look.level,
            level_alone=look.level_alone,
        )

    def looks(self, folder: str) -> list[str]:
        """The folders of the looks that a study takes, by the decisions that are there."""
        below = f"{folder}{LOOKS}"
        return [name for name, look in self.studies.looks.items() if name.startswith(below) and look.is_due]

    # Problems, models, trainings

    @property
    def may_lack_models(self) -> bool:
        """Whether a plan alone does without models: one of a study by verl may be made far from where they are."""
        return self.study.engine == VERL

    def verifier(self, benchmark: str) -> list[Path]:
        """The study's copy of a user's function that grades, if there is one."""
        return [Path(f"results/verifiers/{benchmark}/{VERIFIER_FILE}")] if benchmark in self.study.verifiers else []

    def base_manifest(self, run: str) -> Path:
        """The manifest of the base model that a run starts from."""
        return Path(f"results/base/{self.model_of(run)}/manifest.json")

    def trained_runs(self, folder: str) -> list[str]:
        """Ids of the runs of a study, base models aside."""
        return [run.run for run in self.evaluated_runs(folder) if run.seed is not None]

    def run_manifests(self, folder: str) -> tuple[Path, ...]:
        """The manifests of every trained run of a study.

        Benchmark files are written with a job but are no outputs of it: the tables read them, and follow the job
        through its manifest.
        """
        return tuple(Path(f"results/runs/{run}/manifest.json") for run in self.trained_runs(folder))

    def metrics(self, folder: str) -> tuple[Path, ...]:
        """The metrics of every trained run of a study."""
        return tuple(path.with_name("metrics.parquet") for path in self.run_manifests(folder))

    # Samples, grades, scores

    def evaluated_on(self, run: str) -> list[str]:
        """The benchmarks that a policy is evaluated on."""
        best = self.study.config.best_checkpoint
        return [best.benchmark] if best and run in self.candidates else list(self.study.benchmarks)

    def sampling(self, run: str) -> Sampling:
        """The values that decide a policy's samples on any benchmark: settings of sampling, and of the model."""
        sampling = self.study.sampling(self.model_of(run))
        # Of a candidate others, or the noise of the samples that are scored would be selected on.
        return sampling.model_copy(update={"seed": sampling.seed + 1}) if run in self.candidates else sampling

    def own_settings(self, run: str, benchmark: str) -> OfBenchmark:
        """The settings of sampling that a benchmark has of its own, for the model of a run."""
        best = self.study.config.best_checkpoint
        count = best.k if best and run in self.candidates else self.study.config.evaluation.samples(benchmark)
        return OfBenchmark(prompt=self.study.prompt(benchmark, self.model_of(run)), samples_per_problem=count)

    def grading(self, benchmark: str) -> evaluate.GradingOf:
        """The form in which a benchmark's responses are read, and the version of what grades them."""
        grader = self.study.benchmarks[benchmark].grader
        if benchmark in self.study.verifiers:
            return evaluate.GradingOf(kind=VERIFIER, version=f"{VERIFIER} {VERIFIER_VERSION}")
        if grader == CODE:
            return evaluate.GradingOf(kind=CODE, version=f"{CODE} {CODE_GRADER_VERSION}")
        if grader == Kind.CHOICE:
            return evaluate.GradingOf(kind=Kind.CHOICE.value, version=CHOICE_VERSION)
        kind = Kind.LAST_STATEMENT if benchmark in self.study.by_last_statement else Kind.COMPLETION
        return evaluate.GradingOf(kind=kind.value, version=GRADER_VERSION)

    def checkpoint(self, run: str) -> str:
        """The directory of the checkpoint that a run evaluates."""
        return self.policies[run].directory if run in self.policies else self.study_of(run).checkpoint(run)

    def checkpoint_manifest(self, run: str) -> str:
        """The file that stands for that checkpoint."""
        return self.policies[run].manifest if run in self.policies else f"{self.checkpoint(run)}/manifest.json"

    def choices(self, folder: str) -> tuple[Path, ...]:
        """The files that say which policies the best ones of a study are; none where the last alone is reported."""
        return tuple(Path(f"{policy.directory}/chosen.json") for policy in self.studies.best.get(folder, ()))

    def grades(self, run: str, benchmark: str) -> Path:
        """The manifest of the grades of a run on a benchmark, which stands for them."""
        return Path(f"results/grades/{run}/{benchmark}/manifest.json")

    def samples(self, run: str, benchmark: str) -> Path:
        """The manifest of their samples."""
        return Path(f"results/samples/{run}/{benchmark}/manifest.json")

    def audits(self, folder: str, benchmarks: Sequence[str] = ()) -> tuple[Path, ...]:
        """The audits of every run of a study, on all benchmarks or on some."""
        names = benchmarks or list(self.study.benchmarks)
        runs = [run.run for run in self.evaluated_runs(folder)]
        return tuple(self.grades(run, name).with_name("audit.json") for name in names for run in runs)

    def scores(self, folder: str) -> tuple[Path, ...]:
        """The scores of a study."""
        return tuple(Path(f"results/{folder}scores/{name}.json") for name in self.study.benchmarks)

    def register(self) -> None:
        """Register the study's comparison, if it has one, before the first job starts."""
        folder = self.study.folder
        register(self.study.config.to_json(), self.run_manifests(folder), Path(f"results/{folder}{REGISTRATIONS}"))


def problem_set(name: str) -> Path:
    """The manifest of a set of problems: of a benchmark, or those that are trained or validated on."""
    return Path(f"results/problems/{name}/manifest.json")


def scores_of(folder: str, benchmark: str, grades: Sequence[Path]) -> Stage:
    """The scores of all policies of a folder's run sheet on a benchmark."""
    sheet, check = Path(f"results/{folder}runs.json"), problem_set(benchmark).with_name("disjoint.json")
    return evaluate.Scores(folder=folder, benchmark=benchmark, grades=tuple(grades), runs=sheet, disjoint=check)


def results_of(folder: str, scores: tuple[Path, ...]) -> dict[str, Any]:
    """The fields of a stage made from the results in a folder."""
    directory = Path(f"results/{folder}")
    files = {"comparisons": directory / "comparisons.json", "runs": directory / "runs.json"}
    return {"folder": folder, "scores": scores, **files}


def files_of(path: str | None) -> tuple[Path, ...]:
    """The files of a local copy, whose changes count; none where nothing is copied."""
    if path is None:
        return ()
    return tuple(sorted([Path(path)] if Path(path).is_file() else Path(path).rglob("*.*")))
