"""Estimate the cost of a study on GPUs: tokens, GPU-hours by a stated model, disk, and what saved states cost."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from evals.core.config.base_models import Existing
from evals.core.records import BASE
from evals.core.run_spec import LOCAL, VERL
from rlvr.engines.verl import RESPONSE_FRACTION
from rlvr.study.model_size import ModelSize, model_size
from rlvr.study.study import Study

PEAK = 989e12
"""FLOP per second of an H100 in bfloat16, dense."""
BANDWIDTH, MEMORY = 3.35e12, 80e9
"""Bytes per second that it reads, and bytes that it has."""
TRAINING_UTILISATION, READING_UTILISATION = 0.35, 0.75
"""Parts of them that are reached."""
_PROMPT_TOKENS = 200.0
_DECODING_OVERHEAD, _OWN_DECODING_OVERHEAD = 0.003, 0.03
"""Seconds of every decoding step beside its reads: of vLLM, and of the local engine, which launches each operation."""
_STEP_OVERHEAD = 60.0
"""Seconds of every training step of verl in which weights go to vLLM and memory changes hands."""
_NOT_CACHE = 3e9
"""Bytes of a device that vLLM takes beside weights and cache."""
_FLOP_TRAINED = 10.0
"""FLOP per parameter and token: forward and backward 6, recomputed activations 2, old log-probs 2."""
_WEIGHT_BYTES, _STATE_BYTES, _KEPT_BYTES, _MERGED_BYTES = 2.0, 12.0, 4.0, 2.0
"""Bytes per parameter: of weights that are sampled; of weights and two moments in float32; of the weights of a state
that is kept; of merged weights."""
_WRITING = 2e9
"""Bytes of a state that a node writes per second: assumed."""
_JOB_HOURS, _NODE_HOURS = 48.0, 6300.0
"""Hours between two kills of a training: by the time limit in profiles/slurm, and by a fault of each node.

The latter is from 419 unexpected interruptions in 54 days of 2,048 nodes (arXiv 2407.21783, section 3.3.4).
"""
_SAMPLE_BYTES = 4.0
"""Bytes of text per token."""
PUBLISHED_OVER_PLANNED = (1.4, 1.7)
"""Seconds of the one published training step over the plan's for it, without and with DelTA's own passes.

It took 363 s on 8 B200 (arXiv 2605.21467); docs/paper_scale.md has the arithmetic.
"""

_ONE_GPU = {
    "nodes": 1, "gpus_per_node": 1, "rollout_tensor_parallel": 1, "gpu_memory_utilization": 0.9, "checkpoints_kept": 1
}  # fmt: skip
"""What a training of the local engine has."""
_LEFT_OUT = {
    VERL: f"{_STEP_OVERHEAD:.0f} s a step are around these; attention, tokens that a selection discards and passes "
    "that single methods add are left out; a node writes states at "
    f"{_WRITING / 1e9:g} GB/s, and a training is killed every {_JOB_HOURS:g} h by its time limit and every "
    f"{_NODE_HOURS:,.0f} h by each of its nodes.",
    LOCAL: f"a decoding step takes {_OWN_DECODING_OVERHEAD:g} s besides, which is assumed and not measured; attention "
    "and passes that single methods add are left out.",
}
"""What an estimate for an engine says last."""
_GPU_DEVICES = ("nvidia[0-9]*", "kfd", "dxg")
"""Files in /dev on a machine with a GPU: NVIDIA's driver, AMD's, and either of them in Windows' Linux."""


@dataclass(frozen=True)
class Decoding:
    """Decoding by one replica of a model: bound by reading weights and caches, not by arithmetic.

    Attributes:
        model: its size.
        devices: that share the replica.
        memory_share: of a device that decoding takes.
        overhead: seconds of a decoding step beside its reads.
        most: responses at a time, if they are limited.
    """

    model: ModelSize
    devices: int
    memory_share: float
    overhead: float = _DECODING_OVERHEAD
    most: float = math.inf

    def seconds(self, responses: float, mean: float, longest: float) -> float:
        """Seconds for so many responses of ``mean`` tokens, of which the last is ``longest`` and decodes alone."""
        weights, cache = _WEIGHT_BYTES * self.model.parameters, (_PROMPT_TOKENS + mean / 2) * self.model.cache_bytes
        room = self.devices * (self.memory_share * MEMORY - _NOT_CACHE) - weights
        together = max(1.0, min(responses, self.most, room / cache))
        speed = self.devices * BANDWIDTH * READING_UTILISATION
        step = (weights + together * cache) / speed + self.overhead
        alone = weights / speed + self.overhead
        return responses * mean / together * step + (longest - mean) * alone


@dataclass(frozen=True)
class Cost:
    """Estimates, summed over runs: response tokens trained on and evaluated, GPU-hours of both, bytes at the end.

    Hours and bytes are NaN where a model's size is not known.
    """

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
        tokens = f"{self.trained / 1e9:.3g} G tokens trained, {self.evaluated / 1e9:.3g} G evaluated"
        if math.isnan(self.evaluation_hours):
            return f"{tokens}; GPU-hours and disk follow from the size"
        hours = f"{self.training_hours:,.0f} + {self.evaluation_hours:,.0f} GPU-hours"
        return f"{tokens}, {hours}, {self.disk / 1e12:.2g} TB of disk"


def run_cost(study: Study, identifier: str, size: ModelSize | None) -> Cost:
    """The cost of one run of a model of that size, if it is known, with its evaluation on every benchmark."""
    run, evaluation = study.run(identifier), study.config.evaluation
    devices, longest = evaluation.tensor_parallel_size or 1, evaluation.max_new_tokens
    mean, evaluated, seconds = longest * RESPONSE_FRACTION, 0.0, 0.0
    # Each is a job of its own, with its longest response.
    jobs = [benchmark.entry.count * evaluation.samples(name) for name, benchmark in study.benchmarks.items()]
    best, kept = study.config.best_checkpoint, 0
    if best is not None and run.method != BASE:
        kept = (study.run_spec(identifier).training.steps - 1) // best.every
        jobs = 2 * jobs + [study.benchmarks[best.benchmark].entry.count * best.k] * (kept + 1)
    for responses in jobs:
        evaluated += responses * mean
        seconds += _evaluation(study, size).seconds(responses, mean, longest) if size else math.nan
    evaluating = seconds * devices / 3600
    if run.method == BASE:
        return Cost(evaluated=evaluated, evaluation_hours=evaluating, disk=evaluated * _SAMPLE_BYTES)
    training, cluster = study.run_spec(identifier).training, _cluster(study, identifier)
    trained = training.steps * training.rollouts_per_step * training.max_new_tokens * RESPONSE_FRACTION
    if size is None:
        return Cost(trained, evaluated, math.nan, math.nan, math.nan)
    devices = cluster["nodes"] * cluster["gpus_per_node"]
    hours = training.steps * step_seconds(study, identifier, size) * devices / 3600
    states = _STATE_BYTES * cluster["checkpoints_kept"] + (_KEPT_BYTES * kept if study.engine == VERL else 0.0)
    if training.lora is not None:  # of adapters alone, which are next to nothing
        states = 0.0
    disk = size.parameters * (states + _MERGED_BYTES * (kept + 1)) + evaluated * _SAMPLE_BYTES
    return Cost(trained, evaluated, hours, evaluating, disk)


def step_seconds(study: Study, identifier: str, size: ModelSize) -> float:
    """The seconds of a training step of a run: rollouts with their tail, the trainer's passes, what is around them."""
    training, cluster = study.run_spec(identifier).training, _cluster(study, identifier)
    devices, shared = int(cluster["nodes"] * cluster["gpus_per_node"]), int(cluster["rollout_tensor_parallel"])
    decoding, around = Decoding(size, shared, cluster["gpu_memory_utilization"]), _STEP_OVERHEAD
    if study.engine != VERL:
        decoding, around = _own_decoding(size, study.config.training["sampling_batch_size"]), 0.0
    mean = training.max_new_tokens * RESPONSE_FRACTION
    sampling = decoding.seconds(training.rollouts_per_step * shared / devices, mean, training.max_new_tokens)
    flop = _FLOP_TRAINED * size.parameters * training.rollouts_per_step * (mean + _PROMPT_TOKENS)
    return sampling + flop / (PEAK * TRAINING_UTILISATION * devices) + around


@dataclass(frozen=True)
class Saving:
    """What the states of a training by verl cost, all in seconds but the interval.

    Attributes:
        seconds: of a state, while devices wait.
        step: of a training step.
        interval: steps between two states.
        between_kills: the mean time between two kills.
    """

    seconds: float
    step: float
    interval: int
    between_kills: float

    @property
    def best_interval(self) -> int:
        """Steps between two states with which saving and what kills cost are least, by Young's formula."""
        return max(1, round(math.sqrt(2 * self.seconds * self.between_kills) / self.step))

    def __str__(self) -> str:
        """The costs for people."""
        share, lost = self.seconds / (self.interval * self.step), self.interval * self.step / 2 / 60
        return (
            f"a state every {self.interval} takes {self.seconds:,.0f} s, {share:.1%} of training, and a kill costs "
            f"{lost:,.0f} min on average; least is lost with one every {self.best_interval}"
        )


def saving(study: Study, identifier: str, size: ModelSize) -> Saving:
    """The cost of the states of a training by verl that trains all weights."""
    cluster = study.cluster(identifier)
    nodes = cluster["nodes"]
    return Saving(
        _STATE_BYTES * size.parameters / (_WRITING * nodes),
        step_seconds(study, identifier, size),
        cluster["checkpoint_interval"],
        3600 / (1 / _JOB_HOURS + nodes / _NODE_HOURS),
    )


def _cluster(study: Study, identifier: str) -> Mapping[str, Any]:
    return study.cluster(identifier) if study.engine == VERL else _ONE_GPU


def _evaluation(study: Study, size: ModelSize) -> Decoding:
    evaluation = study.config.evaluation
    if evaluation.backend == "vllm":
        memory = study.config.execution.gpu_memory_utilization or 0.9
        return Decoding(size, evaluation.tensor_parallel_size or 1, memory)
    return _own_decoding(size, evaluation.sampling_batch_size)


def _own_decoding(size: ModelSize, most: int | None) -> Decoding:
    return Decoding(size, 1, _ONE_GPU["gpu_memory_utilization"], _OWN_DECODING_OVERHEAD, most or math.inf)


def print_warnings(study: Study) -> None:
    """Say on standard error what will not go well here: a plan may be made where no job is to be run."""
    if study.config.execution.device == "cuda" and not any(any(Path("/dev").glob(name)) for name in _GPU_DEVICES):
        warning = "warning: execution.device is cuda, and this machine shows no GPU: jobs started here will fail"
        print(warning, file=sys.stderr)


def print_cost(study: Study) -> None:
    """Print what a study on GPUs would cost, on standard error."""
    existing = any(isinstance(model, Existing) for model in study.config.models.values())
    if study.engine == VERL or (study.config.execution.device == "cuda" and existing):
        print(*plan_lines(study), *prompt_lines(study), sep="\n", file=sys.stderr)


def plan_lines(study: Study) -> list[str]:
    """The estimate for people, by model and in all, with what it rests on."""
    lines = ["What this study would cost, estimated:"]
    total = Cost()
    for model, entry in study.config.models.items():
        runs = [run.run for run in study.runs if run.model == model]
        size = model_size(entry)
        cost = sum((run_cost(study, run, size) for run in runs), Cost())
        trained = next((run for run in runs if study.run(run).method != BASE), None)
        known = f"{size.parameters / 1e9:.3g} B parameters" if size else "size not known: `parameters` states it"
        lines.append(f"  {model} ({known}), {len(runs)} runs with the base model: {cost}")
        if trained and size:
            line = f"    {step_seconds(study, trained, size):,.0f} s a training step"
            if study.engine == VERL and study.run_spec(trained).training.lora is None:
                line += f"; {saving(study, trained, size)}"
            lines.append(line)
        total += cost
    lines.append(f"  all: {total}")
    if study.engine == VERL and total.training_hours > 0:  # NaN where a size is not known
        least, most = PUBLISHED_OVER_PLANNED
        lines.append(
            f"  training: {least * total.training_hours:,.0f} to {most * total.training_hours:,.0f} GPU-hours if steps "
            f"take {least} to {most} times these seconds, as the one published step did (DelTA, arXiv 2605.21467)"
        )
    lines.append(
        f"  by this model: responses are {RESPONSE_FRACTION:.0%} of the longest allowed on average, and each step "
        f"waits for one of the longest; decoding reads weights and caches at {READING_UTILISATION:.0%} of an H100's "
        f"{BANDWIDTH / 1e12:g} TB/s, with as many responses at a time as caches fit; training takes "
        f"{_FLOP_TRAINED:.0f} FLOP per parameter and token at {TRAINING_UTILISATION:.0%} of {PEAK / 1e12:.0f} TFLOPS; "
        + _LEFT_OUT[study.engine]
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
