"""Records refuse what is wrong in one line that names the file, the key, what was found and what is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, model_validator

from evals.core.errors import InvalidInput, UserError
from evals.core.files import write_json
from evals.core.record import Record, read_rows
from evals.core.records import Run, read_runs
from evals.core.training_settings import LocalTraining
from tests.unit.engine.conftest import TRAINING as SMALL_TRAINING


class Training(Record):
    steps: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    device: Literal["cpu", "cuda"] = "cpu"

    @model_validator(mode="after")
    def _check(self) -> Training:
        if self.steps == 13:
            raise ValueError("steps is 13; accepted: another number")
        return self


class Scratch(Record):
    source: Literal["from_scratch"]
    layers: int


class Imported(Record):
    source: Literal["hugging_face"]
    path: str


class Study(Record):
    training: Training
    models: dict[str, Annotated[Scratch | Imported, Field(discriminator="source")]]
    seeds: tuple[int, ...] = ()


def study(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "training": {"steps": 4, "learning_rate": 1},
        "models": {"tiny": {"source": "from_scratch", "layers": 2}},
    }
    for place, value in changes.items():
        *parents, last = place.split("__")
        target = content
        for parent in parents:
            target = target[parent]
        if value is None:
            del target[last]
        else:
            target[last] = value
    return content


@pytest.mark.parametrize(
    ("changes", "key", "found", "accepted"),
    [
        ({"training__steps": 0}, "training.steps", "is 0", "at least 1"),
        ({"training__steps": 4.0}, "training.steps", "is 4.0", "a whole number"),
        ({"training__steps": True}, "training.steps", "is True", "a whole number"),
        ({"training__learning_rate": "1e-3"}, "training.learning_rate", "is '1e-3'", "a number"),
        ({"training__learning_rate": float("inf")}, "training.learning_rate", "is inf", "a finite number"),
        ({"training__learning_rate": 0}, "training.learning_rate", "is 0", "above 0"),
        ({"training__device": "gpu"}, "training.device", "is 'gpu'", "cpu, cuda"),
        ({"training__stepz": 3}, "training", "unknown key stepz", "steps, learning_rate, device"),
        ({"training__steps": None}, "training", "lacks steps", ""),
        ({"training__steps": None, "training__learning_rate": None}, "training", "lacks steps, learning_rate", ""),
        (
            {"training__steps": None, "training__stepz": 3},
            "training",
            "unknown key stepz",
            "steps, learning_rate, device",
        ),
        ({"training__steps": 13}, "training", "steps is 13", "another number"),
        ({"training": [1]}, "training", "is [1]", "a mapping"),
        ({"models__tiny__layers": None}, "models.tiny", "lacks layers", ""),
        ({"models__tiny__path": "x"}, "models.tiny", "unknown key path", "source, layers"),
        ({"models__tiny__source": "hub"}, "models.tiny.source", "is 'hub'", "from_scratch, hugging_face"),
        ({"models__tiny__source": None}, "models.tiny", "lacks source", ""),
        ({"seeds": ["1"]}, "seeds.0", "is '1'", "a whole number"),
        ({"seeds": 1}, "seeds", "is 1", "a list"),
        ({"study": "x"}, "", "unknown key study", "training, models, seeds"),
    ],
)
def test_each_kind_of_mistake(changes: dict[str, Any], key: str, found: str, accepted: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Study.parse(study(**changes), "study.yaml")
    assert (error.value.key, error.value.found, error.value.accepted) == (key, found, accepted)
    line = str(error.value)
    assert line.startswith("study.yaml: ") and "\n" not in line and key in line and accepted in line


def test_right_content_is_read_and_written_back_in_the_order_of_the_fields() -> None:
    read = Study.parse(study(seeds=[3, 1]), "study.yaml")
    assert read.training.learning_rate == 1.0
    assert read.to_json()["seeds"] == [3, 1]
    assert list(read.to_json()) == ["training", "models", "seeds"]
    assert Study.parse(read.to_json(), "again") == read


def test_yaml_values_that_json_has_not_are_refused() -> None:
    import datetime

    with pytest.raises(UserError, match=r"study\.yaml"):
        Study.parse(study(training__steps=datetime.date(2026, 1, 1)), "study.yaml")


def test_rows_of_a_file_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"source": "from_scratch", "layers": 1}, {"source": "from_scratch"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InvalidInput) as error:
        read_rows(path, Scratch)
    assert error.value.source == f"{path}: line 2"
    path.write_text(json.dumps(rows[0]) + "\n")
    assert read_rows(path, Scratch) == [Scratch(source="from_scratch", layers=1)]


def test_a_run_sheet_has_each_run_once(tmp_path: Path) -> None:
    row, path = {"run": "tiny-base", "model": "tiny", "method": "base", "seed": None, "title": "B"}, tmp_path / "runs"
    write_json(path, [row])
    assert read_runs(path) == [Run(**row)]
    for content in ([row, row], [], {}, [{**row, "seed": "1"}]):
        write_json(path, content)
        with pytest.raises(UserError, match=f"^{path}"):
            read_runs(path)


# The learning rate of every update, held against tables that were written by hand.

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
