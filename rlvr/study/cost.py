"""Estimate the cost of a study trained by verl: tokens, GPU-hours by a stated model, disk."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from evals.core.config.base_models import Existing, Model
from evals.core.records import BASE
from evals.core.run_spec import VERL, TrainingSettings
from rlvr.study.study import Study

PEAK = 989e12
"""FLOP per second of an H100 in bfloat16, dense."""
BANDWIDTH, MEMORY = 3.35e12, 80e9
"""Bytes per second that it reads, and bytes that it has."""
TRAINING_UTILISATION, READING_UTILISATION = 0.35, 0.75
"""Parts of them that are reached."""
RESPONSE_FRACTION = 0.35
"""Mean length of a response over the longest that is allowed."""
_PROMPT_TOKENS = 200.0
_DECODING_OVERHEAD = 0.003
"""Seconds of every decoding step beside its reads."""
_STEP_OVERHEAD = 60.0
"""Seconds of every training step in which weights go to vLLM and memory changes hands."""
_NOT_CACHE = 3e9
"""Bytes of a device that vLLM takes beside weights and cache."""
_FLOP_TRAINED = 10.0
"""FLOP per parameter and token: forward and backward 6, recomputed activations 2, old log-probs 2."""
_WEIGHT_BYTES = 2.0
_CACHE_BYTES = 18e-6
"""Bytes per parameter: of the weights; of a token's keys and values, those of Qwen3-8B (144 KiB)."""
_STATE_BYTES = 12.0
_MERGED_BYTES = 2.0
"""Bytes per parameter: weights and two moments in float32; merged weights in bfloat16."""
_SAMPLE_BYTES = 4.0
"""Bytes of text per token."""

_GPU_DEVICES = ("nvidia[0-9]*", "kfd", "dxg")
"""Files in /dev on a machine with a GPU: NVIDIA's driver, AMD's, and either of them in Windows' Linux."""


@dataclass(frozen=True)
class Decoding:
    """Decoding by one vLLM replica: bound by reading weights and caches, not by arithmetic.

    Attributes:
        parameters: of the model.
        cache_bytes: of a token.
        devices: that share the replica.
        memory_share: of a device that vLLM takes.
    """

    parameters: float
    cache_bytes: float
    devices: int
    memory_share: float

    def seconds(self, responses: float, mean: float, longest: float) -> float:
        """Seconds for so many responses of ``mean`` tokens, of which the last is ``longest`` and decodes alone."""
        weights, context = _WEIGHT_BYTES * self.parameters, _PROMPT_TOKENS + mean / 2
        room = self.devices * (self.memory_share * MEMORY - _NOT_CACHE) - weights
        together = max(1.0, min(responses, room / (context * self.cache_bytes)))
        speed = self.devices * BANDWIDTH * READING_UTILISATION
        step = (weights + together * context * self.cache_bytes) / speed + _DECODING_OVERHEAD
        alone = weights / speed + _DECODING_OVERHEAD
        return responses * mean / together * step + (longest - mean) * alone


@dataclass(frozen=True)
class Cost:
    """Estimates, summed over runs: response tokens trained on and evaluated, GPU-hours of both, bytes at the end."""

    trained: float = 0.0
    evaluated: float = 0.0
    training_hours: float = 0.0
    evaluation_hours: float = 0.0
    disk: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Both together."""
        return Cost(*(ours + theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        """The estimates for people."""
        return (
            f"{self.trained / 1e9:.3g} G tokens trained, {self.evaluated / 1e9:.3g} G evaluated, "
            f"{self.training_hours:,.0f} + {self.evaluation_hours:,.0f} GPU-hours, {self.disk / 1e12:.2g} TB of disk"
        )


def run_cost(study: Study, identifier: str) -> Cost:
    """The cost of one run, with its evaluation on every benchmark."""
    run = study.run(identifier)
    model, evaluation = study.config.models[run.model], study.config.evaluation
    parameters = _parameters(model) or 0.0
    cache = _cache_bytes(model)
    devices, longest = evaluation.tensor_parallel_size or 1, evaluation.max_new_tokens
    sampling = Decoding(parameters, cache, devices, study.config.execution.gpu_memory_utilization or 0.9)
    mean, evaluated, seconds = longest * RESPONSE_FRACTION, 0.0, 0.0
    for name, benchmark in study.benchmarks.items():  # each is a job of its own, with its longest response
        responses = benchmark.entry.count * evaluation.samples(name)
        evaluated += responses * mean
        seconds += sampling.seconds(responses, mean, longest) if parameters else 0.0
    evaluating = seconds * devices / 3600
    if run.method == BASE:
        return Cost(evaluated=evaluated, evaluation_hours=evaluating, disk=evaluated * _SAMPLE_BYTES)
    training, cluster = study.run_spec(identifier).training, study.cluster(identifier)
    trained = training.steps * training.rollouts_per_step * training.max_new_tokens * RESPONSE_FRACTION
    seconds = step_seconds(training, cluster, parameters, cache) if parameters else 0.0
    hours = training.steps * seconds * cluster["nodes"] * cluster["gpus_per_node"] / 3600
    disk = parameters * (_STATE_BYTES * cluster["checkpoints_kept"] + _MERGED_BYTES) + evaluated * _SAMPLE_BYTES
    return Cost(trained, evaluated, hours, evaluating, disk)


def step_seconds(training: TrainingSettings, cluster: Mapping[str, Any], parameters: float, cache: float) -> float:
    """The seconds of a training step: rollouts with their tail, passes of the trainer, and what is around them."""
    devices, shared = int(cluster["nodes"] * cluster["gpus_per_node"]), int(cluster["rollout_tensor_parallel"])
    mean = training.max_new_tokens * RESPONSE_FRACTION
    rollouts = Decoding(parameters, cache, shared, cluster["gpu_memory_utilization"])
    sampling = rollouts.seconds(training.rollouts_per_step * shared / devices, mean, training.max_new_tokens)
    flop = _FLOP_TRAINED * parameters * training.rollouts_per_step * (mean + _PROMPT_TOKENS)
    return sampling + flop / (PEAK * TRAINING_UTILISATION * devices) + _STEP_OVERHEAD


def print_warnings(study: Study) -> None:
    """Say on standard error what will not go well here: a plan may be made where no job is to be run."""
    if study.config.execution.device == "cuda" and not any(any(Path("/dev").glob(name)) for name in _GPU_DEVICES):
        warning = "warning: execution.device is cuda, and this machine shows no GPU: jobs started here will fail"
        print(warning, file=sys.stderr)


def print_cost(study: Study) -> None:
    """Print what a study trained by verl would cost, on standard error."""
    if study.engine == VERL:
        print(*plan_lines(study), *prompt_lines(study), sep="\n", file=sys.stderr)


def plan_lines(study: Study) -> list[str]:
    """The estimate for people, by model and in all, with what it rests on."""
    lines = ["What this study would cost, estimated:"]
    total = Cost()
    for model, entry in study.config.models.items():
        runs = [run.run for run in study.runs if run.model == model]
        cost = sum((run_cost(study, run) for run in runs), Cost())
        trained = next((run for run in runs if study.run(run).method != BASE), None)
        parameters = _parameters(entry)
        size = f"{parameters / 1e9:.3g} B parameters" if parameters else "size not stated"
        lines.append(f"  {model} ({size}), {len(runs)} runs with the base model: {cost}")
        if trained and parameters:
            training, cluster = study.run_spec(trained).training, study.cluster(trained)
            seconds = step_seconds(training, cluster, parameters, _cache_bytes(entry))
            lines.append(f"    {seconds:,.0f} s a training step")
        total += cost
    lines.append(f"  all: {total}")
    lines.append(
        f"  by this model: responses are {RESPONSE_FRACTION:.0%} of the longest allowed on average, and each step "
        f"waits for one of the longest; decoding reads weights and caches at {READING_UTILISATION:.0%} of an H100's "
        f"{BANDWIDTH / 1e12:g} TB/s, with as many responses at a time as caches fit; training takes "
        f"{_FLOP_TRAINED:.0f} FLOP per parameter and token at {TRAINING_UTILISATION:.0%} of {PEAK / 1e12:.0f} TFLOPS; "
        f"{_STEP_OVERHEAD:.0f} s a step are around these; attention, tokens that a selection discards and passes that "
        "single methods add are left out."
    )
    return lines


def prompt_lines(study: Study) -> list[str]:
    """What training and evaluation ask: one prompt, or the benchmarks that have another, which is a departure."""
    if not study.methods or study.config.problems is None:
        return []
    if other := study.benchmarks_with_another_prompt:
        return [f"Departure: evaluation has another prompt than training on {', '.join(other)}."]
    own = [name for name, benchmark in study.benchmarks.items() if benchmark.grader != "math"]
    rest = f", but for choices and programs ({', '.join(own)})" if own else ""
    return [f"Training and evaluation have one prompt{rest}: {study.config.problems.prompt!r}"]


def _parameters(model: Model) -> float | None:
    """The number of a model's parameters, if the study states it."""
    return model.parameters if isinstance(model, Existing) else None


def _cache_bytes(model: Model) -> float:
    """Bytes of a token's keys and values: as stated, or in proportion to the model's size; 0 if that is not known."""
    stated = model.cache_bytes if isinstance(model, Existing) else None
    return stated or _CACHE_BYTES * (_parameters(model) or 0.0)
