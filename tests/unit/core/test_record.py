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
