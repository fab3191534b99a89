"""The jobs of a study from its samples to its comparisons, beside those up to the trainings."""

from __future__ import annotations

import shlex
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import canonical_json
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERSION as CODE_GRADER_VERSION
from rlvr.study.rules import manifests, words
from rlvr.study.source_files import REPOSITORY
from rlvr.study.training import TRAIN, TrainingPlan


class Plan(TrainingPlan):
    """All jobs of the studies of one invocation."""

    def checkpoint(self, run: str) -> str:
        """The directory of the checkpoint that a run evaluates."""
        return self.earlier[run].directory if run in self.earlier else self._study_of(run).checkpoint(run)

    def checkpoint_manifest(self, run: str) -> str:
        """The file that stands for that checkpoint."""
        return f"{self.checkpoint(run)}{'.kept' if run in self.earlier else '/manifest.json'}"

    def kept_steps(self, run: str) -> str:
        """The steps whose policies a training keeps from the start, for a named study that is scored along it.

        A run of the main study keeps none: few ask for them, and they are made again from its saved states.
        """
        steps = {each.step for each in self.earlier.values() if each.trained.run == run}
        return "" if self._study_of(run) is self.study else " ".join(map(str, sorted(steps)))

    def prompt(self, run: str, benchmark: str) -> str:
        """A benchmark's prompt template, for the model of a run."""
        return self.study.prompt(benchmark, self._model_of(run))

    def evaluation(self, run: str) -> dict[str, Any]:
        """The values that decide a run's samples beside model and problems: settings of sampling, and of the model."""
        model = self.study.config.models[self._model_of(run)]
        settings = {"backend": "local", "tensor_parallel_size": 1, **self.study.config.evaluation.to_json()}
        settings |= {"dtype": model.sampling_dtype, "prompt_form": model.prompt_form}
        return {key: value for key, value in sorted(settings.items()) if value is not None}

    def sampling_options(self, run: str) -> list[str]:
        renamed = {"sampling_batch_size": "batch_size"}
        return words({renamed.get(key, key): value for key, value in self.evaluation(run).items()})

    @cached_property
    def sampling_command(self) -> str:
        """The beginning of the command that samples, in the environment of the backend."""
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

    def study_name(self, folder: str) -> str:
        return self.in_folder(folder).config.study

    def study_json(self, folder: str) -> str:
        return canonical_json(self.in_folder(folder).config.to_json())

    def run_sheet(self, folder: str) -> str:
        """All runs of a study."""
        return canonical_json([run.to_json() for run in self.evaluated_runs(folder)])

    def intermediate(self, folder: str) -> list[str]:
        """Manifests of everything between a study and what people look at.

        Targets ask for them by name. A job that fails loses its outputs, and Snakemake makes a lost file again only if
        it is asked for or something that is to be made needs it: not for a table that is there, made from that file.
        """
        study = self.in_folder(folder)
        problems = [*self.study.benchmarks, *([TRAIN] if study.trained_runs else [])]
        directories = [f"results/problems/{name}" for name in problems]
        directories += [study.checkpoint(run.run) for run in study.runs]
        for stage in ("samples", "grades"):
            directories += [f"results/{stage}/{run.run}/{name}" for run in study.runs for name in study.benchmarks]
        return manifests(directories)
