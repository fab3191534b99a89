"""The learning rate of every update, held against tables that were written by hand."""

from typing import Any

import pytest

from evals.core.errors import InvalidInput
from evals.core.training_settings import LocalTraining
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
    [
        ({}, CONSTANT),
        ({"learning_rate_decay_from": 0.5}, HALF),
        ({"learning_rate_decay_from": 1 / 6, "planned_steps": 12}, PART_OF_A_LONGER_ONE),
    ],
    ids=["constant", "half", "part of a longer one"],
)
def test_the_rate_of_every_update(decay: dict[str, Any], table: list[tuple[float, float]]) -> None:
    settings = training(**decay)
    for step, rates in enumerate(table):
        found = [settings.learning_rate_of(step, 2 * step + number) for number in range(2)]
        assert found == pytest.approx(rates, rel=1e-12), step


def test_a_decay_from_the_start_ends_at_zero() -> None:
    settings = training(steps=4, warmup_updates=0, learning_rate_decay_from=0)
    assert [settings.decay_factor(step) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_a_training_up_to_a_step_keeps_the_rates_of_the_whole() -> None:
    whole = training(learning_rate_decay_from=0.5)
    part = whole.after(6)
    assert (part.steps, part.planned_steps) == (6, 8)
    assert [part.decay_factor(step) for step in range(6)] == [whole.decay_factor(step) for step in range(6)]
    assert whole.after(8) == whole and part.after(6) == part and part.after(5).planned_steps == 8
    assert training().after(6) == training(steps=6)


@pytest.mark.parametrize(
    ("changes", "key", "accepted"),
    [
        ({"learning_rate_decay_from": 0.5, "planned_steps": 7}, "planned_steps", "at least steps, 8"),
        ({"learning_rate_decay_from": 0.9}, "learning_rate_decay_from", "less, or 1 for a constant rate"),
        ({"learning_rate_decay_from": 0.125}, "warmup_updates", "at most 2, the updates of"),
        ({"learning_rate_decay_from": -1}, "learning_rate_decay_from", "at least 0"),
        ({"updates_per_step": 3}, "updates_per_step", "a divisor of prompts_per_step * samples_per_prompt"),
        ({"updates_per_step": 1000}, "updates_per_step", "so that every update has a prompt of its own"),
    ],
)
def test_a_schedule_that_cannot_be_right_is_refused(changes: dict[str, Any], key: str, accepted: str) -> None:
    with pytest.raises(InvalidInput) as error:
        training(**changes)
    assert error.value.key == key and accepted in error.value.accepted and "\n" not in str(error.value)
