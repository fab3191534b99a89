"""The jobs of a study as the workflow's rules need them: paths, parameters and options for each run and benchmark.

A study's own results lie in a folder under results/: the main study's directly there (folder ``""``), a named one's in
``studies/NAME/``. Problems, models, runs, samples and grades are shared by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.config.base_models import Existing
from evals.core.errors import UserError
from evals.core.files import canonical_json
from evals.core.records import Run
from evals.core.run_spec import VERIFIER_FILE
from evals.grading.code.sandbox import require_sandbox
from evals.grading.code.verifier import read_verifier
from evals.grading.verdict import CODE
from evals.scores.registration import REGISTRATIONS, register
from rlvr.study.benchmarks import absolute_path
from rlvr.study.rules import files_of, manifests, words
from rlvr.study.studies import BEST, BestPolicy, Candidate, EarlierPolicy, Studies, resolve_studies
from rlvr.study.study import OF_PROBLEMS, TRAIN, TRAINING_PROBLEMS, VALIDATION, Study

PRETRAINED = "-pretrained"
"""The suffix of the name of a model before it is fine-tuned."""


class Plan:
    """The jobs of the studies of one invocation.

    Attributes:
        study: the main study.
        folders: the folders of the studies' own results.
        earlier: run id -> the policy along a training that is evaluated under it.
        best: run id -> the best policy of a training, which is evaluated under it.
        trained: ids of the runs that are trained, of all studies.
        runs: ids of everything that is evaluated: base models, runs, and policies along their training.
        execution: how jobs are carried out; it changes no result.
        training_threads, base_threads: the study's and not the machine's, for they decide how sums are rounded.
        generated, read_benchmarks: benchmarks that are drawn, and that are read from the Hub or from files.
        trained_with: names of the problems that every training needs.
        trained_on: files of everything that models are trained on.
        imported: models that are fetched or linked; what is fine-tuned first has the name of its result and a suffix.
    """

    def __init__(self, studies: Studies) -> None:
        self.studies = studies
        self.study = study = studies.by_folder[""]
        self.folders = [*studies.by_folder, *studies.earlier, *studies.best]
        self.earlier = {each.run.run: each for policies in studies.earlier.values() for each in policies}
        self.best = {each.run.run: each for policies in studies.best.values() for each in policies}
        self.earlier |= {each.run.run: each for best in self.best.values() for each in best.candidates}
        self.trained = [identifier for identifier, (_, run) in studies.runs.items() if run.seed is not None]
        self.runs = [*studies.runs, *self.earlier, *self.best]
        self.execution = study.config.execution.model_dump(mode="json", exclude_none=True)
        self.training_threads = study.config.execution.training_threads or 1
        self.base_threads = study.config.execution.base_threads or 1
        self.generated = [name for name, each in study.benchmarks.items() if each.entry.source == "generated"]
        self.read_benchmarks = [name for name in study.benchmarks if name not in self.generated]
        self.trained_with = [TRAIN] * bool(study.trained_runs) + [VALIDATION] * bool(study.validation_settings)
        self.trained_on = [TRAINING_PROBLEMS] if study.methods else []
        self.trained_on += [f"results/base/{model}/corpus.jsonl" for model in study.models_from_scratch]
        solutions = [file for model in study.fine_tuned_models for file in study.solutions(model)]
        self.trained_on = list(dict.fromkeys([*self.trained_on, *solutions]))
        pretrained = {f"{model}{PRETRAINED}": entry for model, entry in study.fine_tuned_models.items()}
        self.imported: dict[str, Existing] = {**study.existing_models, **pretrained}

    @classmethod
    def read(cls, content: Mapping[str, Any], source: str) -> Plan:
        """Resolve a configuration, and check what it needs of this machine: better said now than after the training."""
        plan = cls(resolve_studies(content, source))
        copies = {name: benchmark.path for name, benchmark in plan.study.benchmarks.items()}
        sets = {"problems": plan.study.training_settings, **plan.study.solution_settings}
        for name, path in [*copies.items(), *((name, each.get("path")) for name, each in sets.items())]:
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
        return self.studies.by_folder[folder.removesuffix(BEST) if folder in self.studies.best else folder]

    def evaluated_runs(self, folder: str) -> list[Run]:
        """The runs whose scores lie in a folder: of a study, or of its base models and other policies of its runs."""
        others: Sequence[EarlierPolicy | BestPolicy] = [
            *self.studies.earlier.get(folder, ()),
            *self.studies.best.get(folder, ()),
        ]
        if others:
            return [run for run in self.study.runs if run.seed is None] + [each.run for each in others]
        return self.in_folder(folder).runs

    def model_of(self, run: str) -> str:
        policy = self.earlier.get(run) or self.best.get(run)
        return (policy.run if policy else self.studies.runs[run][1]).model

    def study_of(self, run: str) -> Study:
        return self.studies.runs[run][0]

    # Problems

    def _problem_settings(self, benchmark: str) -> dict[str, Any]:
        own = {TRAIN: self.study.training_settings, VALIDATION: self.study.validation_settings}
        return own[benchmark] if benchmark in own else self.study.problem_settings(benchmark)

    def problem_settings(self, benchmark: str) -> str:
        """The values that decide the problems of a benchmark, or of the training."""
        return canonical_json(self._problem_settings(benchmark))

    def problem_kinds(self, benchmark: str) -> str:
        """Families and lengths of generated problems."""
        return canonical_json(self._problem_settings(benchmark)["kinds"])

    def problem_count(self, benchmark: str) -> int:
        return int(self._problem_settings(benchmark)["count"])

    def problem_seed(self, benchmark: str) -> int:
        return int(self._problem_settings(benchmark)["seed"])

    def problem_files(self, benchmark: str) -> list[str]:
        return files_of(self._problem_settings(benchmark).get("path"))

    def verifier_file(self, graded: str) -> str:
        """The user's file that grades a benchmark, or the training problems."""
        return self.study.verifiers[graded]

    def verifier(self, benchmark: str) -> list[str]:
        """The study's copy of it, if there is one."""
        return [f"results/verifiers/{benchmark}/{VERIFIER_FILE}"] if benchmark in self.study.verifiers else []

    # Models and training

    def base_manifest(self, run: str) -> str:
        """The manifest of the base model that a run starts from."""
        return f"results/base/{self.model_of(run)}/manifest.json"

    def solution_settings(self, solution_set: str) -> str:
        """The values that decide the solutions of a published set."""
        return canonical_json(self.study.solution_settings[solution_set])

    def solution_files(self, solution_set: str) -> list[str]:
        """The files of a local copy of it."""
        return files_of(self.study.solution_settings[solution_set].get("path"))

    def trained_runs(self, folder: str) -> list[str]:
        """Ids of the runs of a study, base models aside."""
        return [run.run for run in self.evaluated_runs(folder) if run.seed is not None]

    def run_manifests(self, folder: str) -> list[str]:
        """The manifests of every trained run of a study.

        Benchmark files are written with a job but are no outputs of it: the tables read them, and follow the job
        through its manifest.
        """
        return manifests(f"results/runs/{run}" for run in self.trained_runs(folder))

    def metrics(self, folder: str) -> list[str]:
        return [f"results/runs/{run}/metrics.parquet" for run in self.trained_runs(folder)]

    # Samples, grades, scores

    def checkpoint(self, run: str) -> str:
        """The directory of the checkpoint that a run evaluates."""
        if run in self.best:
            return f"results/runs/{run}"
        return self.earlier[run].directory if run in self.earlier else self.study_of(run).checkpoint(run)

    def checkpoint_manifest(self, run: str) -> str:
        """The file that stands for that checkpoint."""
        policy = self.earlier.get(run)
        if isinstance(policy, Candidate):
            return f"results/runs/{policy.trained.run}/candidates.kept"
        return f"{self.checkpoint(run)}{'.kept' if policy else '/manifest.json'}"

    def choices(self, folder: str) -> list[str]:
        """The files that say which policies a folder's best ones are."""
        return [f"results/runs/{each.run.run}/chosen.json" for each in self.studies.best[folder]]

    def grades(self, folder: str, benchmark: str) -> list[str]:
        """The directories of the grades of every run of a study on a benchmark."""
        return [f"results/grades/{run.run}/{benchmark}" for run in self.evaluated_runs(folder)]

    def samples(self, folder: str, benchmark: str) -> list[str]:
        """The directories of their samples, in the same order."""
        return [f"results/samples/{run.run}/{benchmark}" for run in self.evaluated_runs(folder)]

    def grade_manifests(self, folder: str, benchmark: str) -> list[str]:
        """The manifests of the grades, which stand for them: they have their hash, which the command checks."""
        return manifests(self.grades(folder, benchmark))

    def sample_manifests(self, folder: str, benchmark: str) -> list[str]:
        return manifests(self.samples(folder, benchmark))

    def scores(self, folder: str) -> list[str]:
        return [f"results/{folder}scores/{benchmark}.json" for benchmark in self.study.benchmarks]

    def audits(self, folder: str) -> list[str]:
        return [f"results/{folder}audits/{benchmark}.json" for benchmark in self.study.benchmarks]

    @property
    def statistics(self) -> dict[str, Any]:
        return dict(sorted(self.study.config.statistics.to_json().items()))

    def reference_method(self, folder: str) -> str:
        return self.in_folder(folder).config.reference_method

    def comparison_options(self, folder: str) -> list[str]:
        """The options of comparisons that not every study has: its controls, and the weights of its benchmarks."""
        config, options = self.in_folder(folder).config, dict[str, str]()
        if config.controls:
            options["controls"] = canonical_json(config.controls.to_json())
        weighting = config.statistics.weighting
        if isinstance(weighting, dict):
            options["weighting"] = ",".join(f"{name}={weight}" for name, weight in weighting.items())
        elif weighting:
            options["weighting"] = weighting
        return words(options)

    def study_name(self, folder: str) -> str:
        return self.in_folder(folder).config.study

    def study_json(self, folder: str) -> str:
        return canonical_json(self.in_folder(folder).config.to_json())

    def register(self) -> None:
        """Register the study's comparison, if it has one, before the first job starts."""
        trainings = [Path(path) for path in self.run_manifests("")]
        register(self.study.config.to_json(), trainings, Path("results") / REGISTRATIONS)

    def run_sheet(self, folder: str) -> str:
        """All runs of a study."""
        return canonical_json([run.to_json() for run in self.evaluated_runs(folder)])

    def intermediate(self, folder: str) -> list[str]:
        """Manifests of everything between a study and what people look at.

        Targets ask for them by name. A job that fails loses its outputs, and Snakemake makes a lost file again only if
        it is asked for or something that is to be made needs it: not for a table that is there, made from that file.
        """
        study = self.in_folder(folder)
        problems = [*self.study.benchmarks, *self.trained_with]
        directories = [f"results/problems/{name}" for name in problems]
        directories += [f"results/solutions/{name}" for name in self.study.solution_settings]
        directories += [f"results/verifiers/{name}" for name in self.study.verifiers]
        directories += [f"results/base/{model}{PRETRAINED}" for model in study.fine_tuned_models]
        directories += [study.checkpoint(run.run) for run in study.runs]
        chosen = self.studies.best.get(f"{folder}{BEST}", ())
        directories += [f"results/runs/{each.run.run}" for each in chosen]
        runs = [*study.runs, *(each.run for each in chosen)]
        for stage in ("samples", "grades"):
            directories += [f"results/{stage}/{run.run}/{name}" for run in runs for name in study.benchmarks]
            if best := study.config.best_checkpoint:
                candidates = [policy.run.run for each in chosen for policy in each.candidates]
                directories += [f"results/{stage}/{run}/{best.benchmark}" for run in candidates]
        return manifests(directories)
