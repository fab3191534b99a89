"""The parameters of the rules that sample and grade: prompts, settings, options, devices, the form of an answer."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evals.core.files import canonical_json
from evals.grading import CHOICE_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERIFIER_VERSION
from evals.grading.code import VERSION as CODE_GRADER_VERSION
from evals.grading.verdict import CODE, VERIFIER, Kind
from rlvr.study.plan import Plan
from rlvr.study.rules import words
from rlvr.study.software import named_python
from rlvr.study.studies import Candidate


def structured_as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of sampling as the values of their options: lists and mappings as JSON."""
    return {key: canonical_json(value) if isinstance(value, list | dict) else value for key, value in settings.items()}


@dataclass(frozen=True)
class SamplingJobs:
    """The jobs that sample the responses of policies to benchmarks, and grade them."""

    plan: Plan

    def prompt(self, run: str, benchmark: str) -> str:
        """A benchmark's prompt template, for the model of a run."""
        return self.plan.study.prompt(benchmark, self.plan.model_of(run))

    def evaluation(self, run: str, benchmark: str) -> dict[str, Any]:
        """The values that decide a run's samples beside model and problems: settings of sampling, and of the model."""
        model, evaluation = self.plan.study.config.models[self.plan.model_of(run)], self.plan.study.config.evaluation
        settings = {"backend": "local", "tensor_parallel_size": 1, **evaluation.to_json(), **model.prompting}
        settings |= {"samples_per_problem": evaluation.samples(benchmark), "samples_of": None}
        settings |= {"dtype": model.sampling_dtype, "prompt_form": model.prompt_form}
        settings.pop("prompt", None)  # every benchmark's own, see prompt()
        if self.plan.model_of(run) in self.plan.study.served_models:
            settings["backend"] = "server"
        best = self.plan.study.config.best_checkpoint
        if best is not None and isinstance(self.plan.earlier.get(run), Candidate):
            # Samples of their own: else the noise of those that are scored would be selected on.
            settings |= {"samples_per_problem": best.k, "seed": evaluation.seed + 1}
        return {key: value for key, value in sorted(settings.items()) if value is not None}

    def sampling_options(self, run: str, benchmark: str) -> list[str]:
        renamed = {"sampling_batch_size": "batch_size"}
        settings = {renamed.get(key, key): value for key, value in self.evaluation(run, benchmark).items()}
        return words(structured_as_json(settings))

    @cached_property
    def sampling_command(self) -> str:
        """The beginning of the command that samples, in the environment of the backend."""
        python = named_python(self.plan, "sampling_python")
        options = {"threads": self.plan.execution["sampling_threads"], "device": self.plan.execution["device"]}
        options |= {"gpu_memory_utilization": self.plan.execution.get("gpu_memory_utilization", 0.9)}
        return f"{python} -m rlvr stage sample {shlex.join(words(options))}"

    def other_benchmarks(self, run: str, benchmark: str) -> str:
        """What a job goes on with once it has loaded the model: the run's other benchmarks, and settings of theirs."""
        if isinstance(self.plan.earlier.get(run), Candidate):
            return canonical_json({})
        return self.own_settings(run, [name for name in self.plan.study.benchmarks if name != benchmark])

    def own_settings(self, run: str, benchmarks: Iterable[str]) -> str:
        """The settings that differ between benchmarks, as JSON by the directory of their problems."""
        samples = self.plan.study.config.evaluation.samples
        return canonical_json(
            {
                f"results/problems/{name}": {"prompt": self.prompt(run, name), "samples_per_problem": samples(name)}
                for name in benchmarks
            }
        )

    def sampling_priority(self, benchmark: str) -> float:
        """All runs' first benchmarks come first: those jobs sample the others too, which are then only written."""
        names = list(self.plan.study.benchmarks)
        return 20 - names.index(benchmark) / len(names)

    @property
    def sampling_gpus(self) -> int:
        return (
            (self.plan.study.config.evaluation.tensor_parallel_size or 1)
            if self.plan.execution["device"] == "cuda"
            else 0
        )

    def sample_parts(self, run: str, benchmark: str) -> list[str]:
        """Marks of the jobs that a benchmark is divided into; none if one job does it all."""
        splits = self.plan.execution.get("sampling_splits", 1)
        directory = f"results/samples/{run}/{benchmark}/splits"
        return [f"{directory}/{part}-of-{splits}" for part in range(1, splits + 1)] if splits > 1 else []

    def grading_kind(self, benchmark: str) -> str:
        """The form in which a benchmark's responses are read."""
        if benchmark in self.plan.study.verifiers:
            return VERIFIER
        grader = self.plan.study.benchmarks[benchmark].grader
        return grader if grader in (Kind.CHOICE, CODE) else Kind.COMPLETION.value

    def grader_version(self, benchmark: str) -> Any:
        """The version of what grades a benchmark."""
        versions = {
            CODE: f"{CODE} {CODE_GRADER_VERSION}",
            VERIFIER: f"{VERIFIER} {VERIFIER_VERSION}",
            Kind.CHOICE: CHOICE_VERSION,
        }
        return versions.get(self.grading_kind(benchmark), GRADER_VERSION)
