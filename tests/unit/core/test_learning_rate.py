"""The learning rate of every update, held against tables that were written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from evals.core.errors import InvalidInput
from evals.core.training_settings import LearningRateDecay, LocalTraining
from tests.unit.engine.conftest import TRAINING as SMALL_TRAINING

TRAINING = SMALL_TRAINING | {"steps": 8, "updates_per_step": 2, "learning_rate": 0.0012, "warmup_updates": 3}
CONSTANT = [(0.0004, 0.0008), *[(0.0012, 0.0012)] * 7]
HALF = [
    (0.0004, 0.0008),  # warm-up over three updates
    (0.0012, 0.0012),
    (0.0012, 0.0012),
    (0.0012, 0.0012),
    (0.0012, 0.0012),  # four of four parts
    (0.0009, 0.0009),
    (0.0006, 0.0006),
    (0.0003, 0.0003),
]
PART_OF_A_LONGER_ONE = [
    (0.0004, 0.0008),
    (0.0012, 0.0012),
    (0.0012, 0.0012),  # ten of ten parts
    (0.00108, 0.00108),
    (0.00096, 0.00096),
    (0.00084, 0.00084),
    (0.00072, 0.00072),
    (0.0006, 0.0006),
]


def training(**changes: Any) -> LocalTraining:
    return LocalTraining.parse({**TRAINING, **changes}, "training")


@pytest.mark.parametrize(
    ("decay", "table"),
    [(None, CONSTANT), ((4, 8), HALF), ((2, 12), PART_OF_A_LONGER_ONE)],
    ids=["constant", "half", "part of a longer one"],
)
def test_the_rate_of_every_update(decay: tuple[int, int] | None, table: list[tuple[float, float]]) -> None:
    changes = {} if decay is None else {"learning_rate_decay": {"from_step": decay[0], "to_step": decay[1]}}
    settings = training(**changes)
    for step, rates in enumerate(table):
        found = [settings.learning_rate_of(step, 2 * step + number) for number in range(2)]
        assert found == pytest.approx(rates, rel=1e-12), step


def test_a_decay_from_the_start_ends_at_zero() -> None:
    decay = LearningRateDecay(from_step=0, to_step=4)
    assert [decay.factor(step) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_a_constant_rate_leaves_the_settings_as_they_were() -> None:
    """Otherwise every finished training would be out of date."""
    assert training().to_json() == TRAINING


@pytest.mark.parametrize(
    ("changes", "key", "accepted"),
    [
        ({"learning_rate_decay": {"from_step": 4, "to_step": 7}}, "steps", "at most learning_rate_decay.to_step, 7"),
        ({"learning_rate_decay": {"from_step": 7, "to_step": 8}}, "learning_rate_decay.to_step", "at least 2 more"),
        ({"learning_rate_decay": {"from_step": 1, "to_step": 8}}, "warmup_updates", "at most 2, the updates of"),
        ({"learning_rate_decay": {"from_step": -1, "to_step": 8}}, "learning_rate_decay.from_step", "at least 0"),
        ({"learning_rate_decay": 0.5}, "learning_rate_decay", ""),
    ],
)
def test_a_schedule_that_cannot_be_right_is_refused(changes: dict[str, Any], key: str, accepted: str) -> None:
    with pytest.raises(InvalidInput) as error:
        training(**changes)
    assert error.value.key == key and accepted in error.value.accepted and "\n" not in str(error.value)
