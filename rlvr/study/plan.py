"""The jobs of a study as the workflow's rules need them: paths, parameters and options for each run and benchmark.

A study's own results lie in a folder under results/: the main study's directly there (folder ``""``), a named one's in
``studies/NAME/``. Problems, models, runs, samples and grades are shared by all of them.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import canonical_json
from evals.core.records import Run
from evals.core.run_spec import VERL
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERSION as CODE_GRADER_VERSION
from evals.grading.code.sandbox import require_sandbox
from rlvr.engines.local import VERSION as LOCAL_ENGINE_VERSION
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.study.source_files import REPOSITORY
from rlvr.study.studies import EarlierPolicy, Studies, resolve_studies
from rlvr.study.study import Study

NO_NAME = "(?!)"
"""A pattern that matches nothing, for a wildcard without values."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line where the user has made a mistake: Snakemake would add where its rule stands."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


def given(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make an input or parameter function of a rule: the arguments of ``function`` are the wildcards of their names.

    Text with braces has to come from a function, too: Snakemake reads wildcards into the braces of a plain string.
    """
    names = list(inspect.signature(function).parameters)

    def of_wildcards(wildcards: Any) -> Any:
        with one_line_errors():
            return function(*(getattr(wildcards, name) for name in names))

    return of_wildcards


def words(options: Mapping[str, Any]) -> list[str]:
    """Options of a command: ``{"top_p": 1.0, "runs": ["a", "b"]}`` is ``--top-p 1.0 --runs a b``."""
    found = []
    for key, value in options.items():
        found += [f"--{key.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return found


def pattern(names: Iterable[str]) -> str:
    """The pattern of a wildcard that has one of ``names``."""
    return "|".join(names) or NO_NAME


def files_of(path: str | None) -> list[str]:
    """The files of a local copy, whose changes count; none where nothing is copied."""
    if path is None:
        return []
    return sorted(map(str, [Path(path)] if Path(path).is_file() else Path(path).rglob("*.*")))


def job_environment() -> dict[str, str]:
    """The environment of the jobs: ``python`` is the one that runs this, and other Pythons, such as vLLM's, find us."""
    path = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
    found = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PATH": path, "PYTHONPATH": os.pathsep.join(found)}


@dataclass(frozen=True)
class Plan:
    """The jobs of the studies of one invocation.

    Attributes:
        studies: the main study and the named ones.
    """

    studies: Studies

    @classmethod
    def read(cls, content: Mapping[str, Any], source: str) -> Plan:
        """Resolve a configuration, and check what it needs of this machine.

        Raises:
            UserError: the configuration is not accepted, a local copy of problems is missing, or programs cannot be
                run here; better said now than after the training.
        """
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

    @property
    def study(self) -> Study:
        """The main study."""
        return self.studies.by_folder[""]

    @property
    def folders(self) -> list[str]:
        """The folders of the studies' own results."""
        return [*self.studies.by_folder, *self.studies.earlier]

    @cached_property
    def earlier(self) -> dict[str, EarlierPolicy]:
        """Run id -> the policy along a training that is evaluated under it."""
        return {each.run.run: each for policies in self.studies.earlier.values() for each in policies}

    @property
    def trained(self) -> list[str]:
        """Ids of the runs that are trained, of all studies."""
        return [identifier for identifier, (_, run) in self.studies.runs.items() if run.seed is not None]

    @property
    def runs(self) -> list[str]:
        """Ids of everything that is evaluated: base models, runs, and policies along their training."""
        return [*self.studies.runs, *self.earlier]

    @cached_property
    def execution(self) -> dict[str, Any]:
        """The execution of jobs; it changes no result."""
        return self.study.config.execution.to_json()

    @cached_property
    def generated(self) -> list[str]:
        """The benchmarks whose problems are drawn."""
        return [name for name, each in self.study.benchmarks.items() if each.entry.source == "generated"]

    @cached_property
    def read_benchmarks(self) -> list[str]:
        """The benchmarks that are read from the Hub or from files."""
        return [name for name in self.study.benchmarks if name not in self.generated]

    def in_folder(self, folder: str) -> Study:
        """The study whose results lie there."""
        return self.studies.by_folder[folder]

    def evaluated_runs(self, folder: str) -> list[Run]:
        """The runs whose scores lie in a folder: of a study, or of its base models and the policies along its runs."""
        if folder in self.studies.earlier:
            bases = [run for run in self.study.runs if run.seed is None]
            return bases + [each.run for each in self.studies.earlier[folder]]
        return self.in_folder(folder).runs

    def _run(self, run: str) -> Run:
        return self.earlier[run].run if run in self.earlier else self.studies.runs[run][1]

    def _study_of(self, run: str) -> Study:
        return self.studies.runs[run][0]

    # Problems

    def training_kinds(self) -> str:
        """Families and lengths of the training problems."""
        return canonical_json(self.study.training_settings["kinds"])

    def training_set(self) -> str:
        """The values that decide the problems of a published training set."""
        return canonical_json(self.study.training_settings)

    def training_files(self) -> list[str]:
        """The local copy that a published training set is read from."""
        return files_of(self.study.training_settings.get("path"))

    def benchmark_settings(self, benchmark: str) -> str:
        """The values that decide a benchmark's problems."""
        return canonical_json(self.study.problem_settings(benchmark))

    def benchmark_kinds(self, benchmark: str) -> str:
        """Family and length of a generated benchmark."""
        return canonical_json(self.study.problem_settings(benchmark)["kinds"])

    def benchmark_count(self, benchmark: str) -> int:
        """Number of a generated benchmark's problems."""
        return int(self.study.problem_settings(benchmark)["count"])

    def benchmark_seed(self, benchmark: str) -> int:
        """Seed of a generated benchmark."""
        return int(self.study.problem_settings(benchmark)["seed"])

    def benchmark_files(self, benchmark: str) -> list[str]:
        """The local copy that a benchmark is read from."""
        return files_of(self.study.benchmarks[benchmark].path)

    @cached_property
    def trained_on(self) -> list[str]:
        """Files of everything that models are trained on."""
        drawn = ["results/problems/train/problems.jsonl"] if self.study.methods else []
        return [*drawn, *(f"results/base/{model}/corpus.jsonl" for model in self.study.models_from_scratch)]

    # Models and training

    def corpus_settings(self, model: str) -> str:
        """A model's corpus, as configured."""
        return canonical_json(self.study.models_from_scratch[model].corpus.to_json())

    def corpus_count(self, model: str) -> int:
        """Number of worked solutions that a model's training uses up."""
        training = self.study.models_from_scratch[model].training
        return training.steps * training.batch_size

    def base_model_settings(self, model: str) -> str:
        """A model's architecture and training."""
        entry = self.study.models_from_scratch[model]
        return canonical_json({"architecture": entry.architecture.to_json(), **entry.training.to_json()})

    def model_source(self, model: str) -> list[str]:
        """The source of a model, as options."""
        entry = self.study.existing_models[model]
        if entry.path is not None:
            return words({"model": self._model_path(entry.path)})
        return words({"model": entry.id, "revision": entry.revision})

    def model_files(self, model: str, only_planning: bool) -> list[str]:
        """The files of a local checkpoint: with one of them changed, it is imported and sampled again.

        A plan (``snakemake -n``) of a study by verl only says that a model is missing: it may be made far from where
        the models are.

        Raises:
            UserError: there is no such directory.
        """
        entry = self.study.existing_models[model]
        if entry.path is None:
            return []
        directory = Path(self._model_path(entry.path))
        if not directory.is_dir():
            missing = f"models.{model}.path: {entry.path}: no such directory"
            if not (self.study.engine == VERL and only_planning):
                raise UserError(missing)
            print(f"not here yet: {missing}", file=sys.stderr)
        return sorted(str(path) for kind in ("*.safetensors", "*.json", "*.jinja") for path in directory.glob(kind))

    def _model_path(self, path: str) -> str:
        """A local directory, relative to the repository whatever directory the study works in."""
        return str((REPOSITORY / Path(path).expanduser()).resolve())

    def run_spec(self, run: str) -> str:
        """The content of ``run.json``: whatever changes it makes this run, and no other, be trained again."""
        return canonical_json(self._study_of(run).resolved_run(run))

    def base_manifest(self, run: str) -> str:
        """The manifest of the base model that a run starts from."""
        return f"results/base/{self._run(run).model}/manifest.json"

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
        names = {"threads": "training_threads", "hidden_state_budget": "hidden_state_budget"}
        options = {"checkpoint_interval": execution.get("checkpoint_interval", 1), "device": execution["device"]}
        options |= {option: execution.get(key, 1 if option == "threads" else 0) for option, key in names.items()}
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

    # Samples, grades, scores

    def checkpoint_manifest(self, run: str) -> str:
        """The file that stands for the checkpoint that a run evaluates."""
        if run in self.earlier:
            return f"{self.earlier[run].directory}.kept"
        return self._study_of(run).checkpoint_manifest(run)

    def checkpoint(self, run: str) -> str:
        """The directory of that checkpoint's artifact."""
        return self.earlier[run].directory if run in self.earlier else str(Path(self.checkpoint_manifest(run)).parent)

    def kept_steps(self, run: str) -> str:
        """The steps whose policies a training keeps from the start, for a named study that is scored along it.

        A run of the main study keeps none: few ask for them, and they are made again from its saved states.
        """
        steps = {each.step for each in self.earlier.values() if each.trained.run == run}
        return "" if self._study_of(run) is self.study else " ".join(map(str, sorted(steps)))

    def prompt(self, run: str, benchmark: str) -> str:
        """A benchmark's prompt template, for the model of a run."""
        return self.study.prompt(benchmark, self._run(run).model)

    def evaluation(self, run: str) -> dict[str, Any]:
        """The values that decide a run's samples beside model and problems: settings of sampling, and of the model."""
        model = self._run(run).model
        settings = {"backend": "local", "tensor_parallel_size": 1, **self.study.config.evaluation.to_json()}
        settings |= {"dtype": self.study.dtype(model), "prompt_form": self.study.prompt_form(model)}
        return {key: value for key, value in sorted(settings.items()) if value is not None}

    def sampling_options(self, run: str) -> list[str]:
        """The sampling settings as options of the command."""
        renamed = {"sampling_batch_size": "batch_size"}
        return words({renamed.get(key, key): value for key, value in self.evaluation(run).items()})

    @cached_property
    def sampling_command(self) -> str:
        """The beginning of the command that samples, in the environment of the backend.

        Raises:
            UserError: there is no such Python.
        """
        python = self.execution.get("sampling_python", "python")
        if "/" in python:  # relative to the repository; a bare name is on the PATH
            path = REPOSITORY / Path(python).expanduser()
            if not path.is_file():
                advice = "`make test-engines` makes .venv-engines"
                raise UserError(f"execution.sampling_python: {python}: no such file; {advice}")
            python = shlex.quote(str(path))
        options = {"threads": self.execution["sampling_threads"], "device": self.execution["device"]}
        options |= {"gpu_memory_utilization": self.execution.get("gpu_memory_utilization", 0.9)}
        return f"{python} -m rlvr stage sample {shlex.join(words(options))}"

    @property
    def sampling_gpus(self) -> int:
        """GPUs that a job of sampling takes."""
        return (self.study.config.evaluation.tensor_parallel_size or 1) if self.execution["device"] == "cuda" else 0

    def sample_parts(self, run: str, benchmark: str) -> list[str]:
        """Marks of the jobs that a benchmark is divided into; none if one job does it all."""
        splits = self.execution.get("sampling_splits", 1)
        directory = f"results/samples/{run}/{benchmark}/splits"
        return [f"{directory}/{part}-of-{splits}" for part in range(1, splits + 1)] if splits > 1 else []

    def grading_kind(self, benchmark: str) -> str:
        """The form in which a benchmark's responses are read."""
        grader = self.study.benchmarks[benchmark].grader
        return grader if grader in ("choice", "code") else "completion"

    def grader_version(self, benchmark: str) -> Any:
        """The version of what grades a benchmark."""
        return f"code {CODE_GRADER_VERSION}" if self.grading_kind(benchmark) == "code" else GRADER_VERSION

    def evaluated(self, folder: str, benchmark: str, stage: str) -> list[str]:
        """The directories of every run of a study on a benchmark; ``stage`` is samples or grades."""
        return [f"results/{stage}/{run.run}/{benchmark}" for run in self.evaluated_runs(folder)]

    def grades(self, folder: str, benchmark: str) -> list[str]:
        """The grades of every run of a study on a benchmark."""
        return self.evaluated(folder, benchmark, "grades")

    def samples(self, folder: str, benchmark: str) -> list[str]:
        """The samples of every run of a study on a benchmark, in the order of their grades."""
        return self.evaluated(folder, benchmark, "samples")

    def grade_manifests(self, folder: str, benchmark: str) -> list[str]:
        """The manifests of the grades, which stand for them: they have their hash, which the command checks."""
        return manifests(self.grades(folder, benchmark))

    def sample_manifests(self, folder: str, benchmark: str) -> list[str]:
        """The manifests of the samples."""
        return manifests(self.samples(folder, benchmark))

    def scores(self, folder: str) -> list[str]:
        """The scores of a study."""
        return [f"results/{folder}scores/{benchmark}.json" for benchmark in self.study.benchmarks]

    def audits(self, folder: str) -> list[str]:
        """The audits of a study's grades."""
        return [f"results/{folder}audits/{benchmark}.json" for benchmark in self.study.benchmarks]

    def statistics(self) -> dict[str, Any]:
        """The settings of comparisons."""
        return dict(sorted(self.study.config.statistics.to_json().items()))

    def reference_method(self, folder: str) -> str:
        """The method that every other one of a study is compared with."""
        return self.in_folder(folder).config.reference_method

    def study_name(self, folder: str) -> str:
        """A study's name."""
        return self.in_folder(folder).config.study

    def study_json(self, folder: str) -> str:
        """The whole configuration of a study."""
        return canonical_json(self.in_folder(folder).config.to_json())

    def run_sheet(self, folder: str) -> str:
        """All runs of a study."""
        return canonical_json([run.to_json() for run in self.evaluated_runs(folder)])

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
        """The metrics of every trained run of a study."""
        return [f"results/runs/{run}/metrics.parquet" for run in self.trained_runs(folder)]

    def intermediate(self, folder: str) -> list[str]:
        """Manifests of everything between a study and what people look at.

        Targets ask for them by name. A job that fails loses its outputs, and Snakemake makes a lost file again only if
        it is asked for or something that is to be made needs it: not for a table that is there, made from that file.
        """
        study = self.in_folder(folder)
        benchmarks = list(self.study.benchmarks)
        problems = [*benchmarks, *(["train"] if study.trained_runs else [])]
        stages = [f"results/{stage}" for stage in ("samples", "grades")]
        return [
            *manifests(f"results/problems/{name}" for name in problems),
            *(study.checkpoint_manifest(run.run) for run in study.runs),
            *manifests(
                f"{stage}/{run.run}/{each}" for stage in stages for run in study.runs for each in study.benchmarks
            ),
        ]


def manifests(directories: Iterable[str]) -> list[str]:
    """The manifests of directories."""
    return [f"{directory}/manifest.json" for directory in directories]


def directories(paths: Sequence[str]) -> list[str]:
    """The directories of files."""
    return [str(Path(path).parent) for path in paths]
