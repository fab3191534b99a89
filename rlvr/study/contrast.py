"""Which trainings measure their contrast with the reference method, and at which steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evals.core.run_spec import ContrastMeasurement
from evals.core.training_settings import TrainingSettings

DEFAULT_STEPS = 4


@dataclass(frozen=True)
class Trained:
    """A method as it is trained: its name in the study, the keys of its entry that decide a run, and the settings."""

    name: str
    entry: Mapping[str, Any]
    training: TrainingSettings


def measured_contrast(method: Trained, reference: Trained, steps: int) -> ContrastMeasurement | None:
    """The measurement of a method's training at ``steps`` steps; None where an angle would say nothing.

    An angle compares what two methods make of the same rollout batch and mini-batch. So it applies where they differ in
    nothing else: both have the same batching (assignment and selection) and the same training settings. A method that
    differs in which rollouts it samples or selects, in how it divides them, or in a learning rate, may have an angle of
    0 and differ all the same: it has no contrast measured, which is not the same as having none.
    """
    if steps == 0:
        return None
    measured, other = (side.training.model_copy(update={"early_stop": None}) for side in (method, reference))
    if method.entry["batching"] != reference.entry["batching"] or measured != other:
        return None
    return ContrastMeasurement(
        reference_method=reference.name, method=dict(reference.entry), steps=spread(method.training.steps, steps)
    )


def spread(steps: int, count: int) -> tuple[int, ...]:
    """The middles of ``count`` equal parts of a training, from 1: of 24 steps 4 are 3, 9, 15 and 21."""
    return tuple(sorted({math.ceil(steps * (2 * part + 1) / (2 * count)) for part in range(count)}))
