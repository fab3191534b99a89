"""Estimate the cost of a study trained by verl: tokens, GPU-hours by a stated model, disk."""

from __future__ import annotations

import sys
from dataclasses import astuple, dataclass

from evals.core.config.base_models import HuggingFace, Model
from evals.core.records import BASE
from evals.core.run_spec import VERL
from rlvr.study.study import Study

PEAK = 989e12
"""FLOP per second of an H100 in bfloat16, dense."""
TRAINING_UTILISATION = 0.35
GENERATION_UTILISATION = 0.10
"""Parts of the peak that are reached; generation is bound by memory."""
RESPONSE_FRACTION = 0.35
"""Mean length of a response over the longest that is allowed."""
_FLOP_GENERATED = 2.0
_FLOP_TRAINED = 10.0
"""FLOP per parameter and token: forward and backward 6, recomputed activations 2, old log-probs 2."""
_STATE_BYTES = 12.0
_MERGED_BYTES = 2.0
"""Bytes per parameter: weights and two moments in float32; merged weights in bfloat16."""
_SAMPLE_BYTES = 4.0
"""Bytes of text per token."""


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
    parameters = _parameters(study.config.models[run.model]) or 0.0
    evaluation = study.config.evaluation
    problems = sum(benchmark.entry.count for benchmark in study.benchmarks.values())
    evaluated = problems * evaluation.samples_per_problem * evaluation.max_new_tokens * RESPONSE_FRACTION
    evaluating = _hours(_FLOP_GENERATED * parameters * evaluated, GENERATION_UTILISATION)
    if run.method == BASE:
        return Cost(evaluated=evaluated, evaluation_hours=evaluating, disk=evaluated * _SAMPLE_BYTES)
    training = study.run_spec(identifier).training
    trained = training.steps * training.rollouts_per_step * training.max_new_tokens * RESPONSE_FRACTION
    hours = _hours(_FLOP_GENERATED * parameters * trained, GENERATION_UTILISATION)
    hours += _hours(_FLOP_TRAINED * parameters * trained, TRAINING_UTILISATION)
    kept = study.cluster(identifier)["checkpoints_kept"]
    disk = parameters * (_STATE_BYTES * kept + _MERGED_BYTES) + evaluated * _SAMPLE_BYTES
    return Cost(trained, evaluated, hours, evaluating, disk)


def print_cost(study: Study) -> None:
    """Print what a study trained by verl would cost, on standard error."""
    if study.engine == VERL:
        print(*plan_lines(study), sep="\n", file=sys.stderr)


def plan_lines(study: Study) -> list[str]:
    """The estimate for people, by model and in all, with what it rests on."""
    lines = ["What this study would cost, estimated:"]
    total = Cost()
    for model, entry in study.config.models.items():
        runs = [run.run for run in study.runs if run.model == model]
        cost = sum((run_cost(study, run) for run in runs), Cost())
        parameters = _parameters(entry)
        size = f"{parameters / 1e9:.3g} B parameters" if parameters else "size not stated"
        lines.append(f"  {model} ({size}), {len(runs)} runs with the base model: {cost}")
        total += cost
    lines.append(f"  all: {total}")
    lines.append(
        f"  by this model: responses are {RESPONSE_FRACTION:.0%} of the longest allowed on average; "
        f"{_FLOP_TRAINED:.0f} FLOP per parameter and trained token, {_FLOP_GENERATED:.0f} per generated one, "
        f"at {TRAINING_UTILISATION:.0%} and {GENERATION_UTILISATION:.0%} of an H100's {PEAK / 1e12:.0f} TFLOPS; "
        "attention, tokens that a selection discards and passes that single methods add are left out."
    )
    return lines


def _parameters(model: Model) -> float | None:
    """The number of a model's parameters, if the study states it."""
    return model.parameters if isinstance(model, HuggingFace) else None


def _hours(flop: float, utilisation: float) -> float:
    return flop / (PEAK * utilisation) / 3600
