"""The jobs of a study up to its trainings, as the rules need them: paths, parameters and options of commands.

A study's own results lie in a folder under results/: the main study's directly there (folder ``""``), a named one's in
``studies/NAME/``. Problems, models, runs, samples and grades are shared by all of them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from evals.core.errors import UserError
from evals.core.files import canonical_json
from evals.core.records import Run
from evals.core.run_spec import VERL
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code.sandbox import require_sandbox
from rlvr.engines.local import VERSION as LOCAL_ENGINE_VERSION
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.study.benchmarks import absolute_path
from rlvr.study.rules import files_of, manifests, words
from rlvr.study.studies import Studies, resolve_studies
from rlvr.study.study import Study

TRAIN = "train"
"""The name of the problems that the methods train on, beside the benchmarks' names."""


class TrainingPlan:
    """The jobs of the studies of one invocation, up to the trainings.

    Attributes:
        study: the main study.
        folders: the folders of the studies' own results.
        earlier: run id -> the policy along a training that is evaluated under it.
        trained: ids of the runs that are trained, of all studies.
        runs: ids of everything that is evaluated: base models, runs, and policies along their training.
        execution: how jobs are carried out; it changes no result.
        training_threads, base_threads: the study's and not the machine's, for they decide how sums are rounded.
        generated, read_benchmarks: benchmarks that are drawn, and that are read from the Hub or from files.
        trained_on: files of everything that models are trained on.
    """

    def __init__(self, studies: Studies) -> None:
        self.studies = studies
        self.study = study = studies.by_folder[""]
        self.folders = [*studies.by_folder, *studies.earlier]
        self.earlier = {each.run.run: each for policies in studies.earlier.values() for each in policies}
        self.trained = [identifier for identifier, (_, run) in studies.runs.items() if run.seed is not None]
        self.runs = [*studies.runs, *self.earlier]
        self.execution = study.config.execution.to_json()
        self.training_threads = study.config.execution.training_threads or 1
        self.base_threads = study.config.execution.base_threads or 1
        self.generated = [name for name, each in study.benchmarks.items() if each.entry.source == "generated"]
        self.read_benchmarks = [name for name in study.benchmarks if name not in self.generated]
        self.trained_on = ["results/problems/train/problems.jsonl"] if study.methods else []
        self.trained_on += [f"results/base/{model}/corpus.jsonl" for model in study.models_from_scratch]

    @classmethod
    def read(cls, content: Mapping[str, Any], source: str) -> Self:
        """Resolve a configuration, and check what it needs of this machine: better said now than after the training."""
        plan = cls(resolve_studies(content, source))
        copies = {name: benchmark.path for name, benchmark in plan.study.benchmarks.items()}
        for name, path in {**copies, "problems": plan.study.training_settings.get("path")}.items():
            if path is not None and not Path(path).exists():
                raise UserError(f"{name}: path: {path}: no such file or directory")
        for name, benchmark in plan.study.benchmarks.items():
            if benchmark.grader == "code":
                try:
                    require_sandbox()
                except UserError as error:
                    raise UserError(f"benchmark {name}: {error}") from None
        return plan

    def in_folder(self, folder: str) -> Study:
        """The study whose results lie there."""
        return self.studies.by_folder[folder]

    def evaluated_runs(self, folder: str) -> list[Run]:
        """The runs whose scores lie in a folder: of a study, or of its base models and the policies along its runs."""
        if folder in self.studies.earlier:
            bases = [run for run in self.study.runs if run.seed is None]
            return bases + [each.run for each in self.studies.earlier[folder]]
        return self.in_folder(folder).runs

    def _model_of(self, run: str) -> str:
        return (self.earlier[run].run if run in self.earlier else self.studies.runs[run][1]).model

    def _study_of(self, run: str) -> Study:
        return self.studies.runs[run][0]

    # Problems

    def _problem_settings(self, benchmark: str) -> dict[str, Any]:
        return self.study.training_settings if benchmark == TRAIN else self.study.problem_settings(benchmark)

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

    # Models and training

    def corpus_settings(self, model: str) -> str:
        return canonical_json(self.study.models_from_scratch[model].corpus.to_json())

    def corpus_count(self, model: str) -> int:
        """Number of worked solutions that a model's training uses up."""
        return self.study.models_from_scratch[model].training.examples

    def base_model_settings(self, model: str) -> str:
        return canonical_json(self.study.models_from_scratch[model].training_settings())

    def model_source(self, model: str) -> list[str]:
        entry = self.study.existing_models[model]
        if entry.path is not None:
            return words({"model": absolute_path(entry.path)})
        return words({"model": entry.id, "revision": entry.revision})

    def model_files(self, model: str, only_planning: bool) -> list[str]:
        """The files of a local checkpoint: with one of them changed, it is imported and sampled again.

        A plan (``snakemake -n``) of a study by verl only says that a model is missing: it may be made far from where
        the models are. Otherwise that is a :class:`UserError`.
        """
        entry = self.study.existing_models[model]
        if entry.path is None:
            return []
        directory = Path(absolute_path(entry.path))
        if not directory.is_dir():
            missing = f"models.{model}.path: {entry.path}: no such directory"
            if not (self.study.engine == VERL and only_planning):
                raise UserError(missing)
            print(f"not here yet: {missing}", file=sys.stderr)
        return sorted(str(path) for kind in ("*.safetensors", "*.json", "*.jinja") for path in directory.glob(kind))

    def run_spec(self, run: str) -> str:
        """The content of ``run.json``: whatever changes it makes this run, and no other, be trained again."""
        return canonical_json(self._study_of(run).resolved_run(run))

    def base_manifest(self, run: str) -> str:
        """The manifest of the base model that a run starts from."""
        return f"results/base/{self._model_of(run)}/manifest.json"

    @property
    def training_versions(self) -> list[Any]:
        """Versions of everything that computes a training."""
        if self.study.engine == VERL:
            return [VERL_ENGINE_VERSION, GRADER_VERSION]
        return [LOCAL_ENGINE_VERSION, SAMPLER_VERSION, GRADER_VERSION]

    @property
    def training_options(self) -> str:
        """Options of the command that trains; none of them changes a result. Braces are filled in by Snakemake."""
        execution = self.execution
        if self.study.engine == VERL:
            return f"--cluster-json {{resources.cluster_json:q}} --python {execution['training_python']}"
        options = {"checkpoint_interval": execution.get("checkpoint_interval", 1), "device": execution["device"]}
        options |= {"threads": self.training_threads, "hidden_state_budget": execution.get("hidden_state_budget", 0)}
        return shlex.join(words({**options, "grading_workers": execution["grading_workers"]}))

    def cluster(self, run: str) -> str:
        """The content of ``cluster.json``: where verl carries a run out; empty for the local engine."""
        return canonical_json(self._study_of(run).cluster(run)) if self.study.engine == VERL else ""

    def training_gpus(self, run: str) -> int:
        """GPUs that the job itself needs: none on several machines, whose Ray cluster has them and runs already."""
        if self.study.engine != VERL:
            return 0
        cluster = self._study_of(run).cluster(run)
        return int(cluster["gpus_per_node"]) if cluster["platform"] == "cuda" and cluster["nodes"] == 1 else 0

    def ray_clusters(self, run: str) -> int:
        """1 on several machines: their Ray cluster has room for one run at a time."""
        return int(self.study.engine == VERL and self._study_of(run).cluster(run)["nodes"] > 1)

    def trained_runs(self, folder: str) -> list[str]:
        """Ids of the runs of a study, base models aside."""
        return [run.run for run in self.in_folder(folder).trained_runs]

    def run_manifests(self, folder: str) -> list[str]:
        """The manifests of every trained run of a study.

        Benchmark files are written with a job but are no outputs of it: the tables read them, and follow the job
        through its manifest.
        """
        return manifests(f"results/runs/{run}" for run in self.trained_runs(folder))

    def metrics(self, folder: str) -> list[str]:
        return [f"results/runs/{run}/metrics.parquet" for run in self.trained_runs(folder)]
