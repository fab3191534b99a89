"""The file of a submission, the draw of cells, and the odds; tests/workflow/test_module.py replays a study."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from rlvr_board.submission import Cell, Submission, chance_to_find, difference, draw_cells, odds
from tests.commands import rlvr_bench

main = rlvr_bench()
NAMES = [f"tiny-dapo-s{seed}" for seed in range(1, 11)]


def test_the_odds_are_those_of_drawing_without_putting_back() -> None:
    assert round(chance_to_find(96, 10, 5), 2) == 0.43 and round(chance_to_find(96, 10, 20), 2) == 0.92
    assert chance_to_find(6, 1, 6) == 1 and chance_to_find(6, 0, 6) == 0
    assert "5 % if one cell is false, and of 43 % if 10 are" in odds(96, 5)
    assert "100 % if one cell" in odds(1, 1)


def test_a_text_draws_the_same_cells_in_any_order_and_another_text_draws_others() -> None:
    drawn = draw_cells(NAMES, 3, "ab12")
    assert drawn == draw_cells(NAMES[::-1], 3, "ab12") and len(set(drawn)) == 3
    counts = Counter(cell for seed in range(2000) for cell in draw_cells(NAMES, 3, str(seed)))
    assert all(520 < counts[name] < 680 for name in NAMES)  # 600 of each, with a standard deviation of 20


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (Cell(fingerprint="b", files={"runs/a": "1"}), "another run"),
        (Cell(fingerprint="a", files={"runs/a": "2"}), "runs/a"),
        (Cell(fingerprint="a", files={"runs/a": "1", "grades/a": "1"}), "grades/a"),
        (Cell(fingerprint="a", files={}), "runs/a"),
        (Cell(fingerprint="a", files={"runs/a": "1"}), ""),
    ],
)
def test_a_cell_differs_where_any_file_or_what_decides_it_does(made: Cell, word: str) -> None:
    found = difference(Cell(fingerprint="a", files={"runs/a": "1"}), made)
    assert word in found and bool(word) == bool(found)


def written(path: Path, **changes: object) -> Path:
    cells = {name: {"fingerprint": "a", "files": {}} for name in NAMES}
    study = {"study": "x", "methods": {"mine": {"loss": {"file": "../../loss.py", "name": "mine"}}}}
    content = {"study": study, "root_hash": "00", "table": ["| a |"], "cells": cells, **changes}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("changes", "words", "error"),
    [
        ({}, ["--cells", "11"], "--cells: is 11; accepted: 1 to 10"),
        ({}, ["--cells", "0"], "--cells: is 0; accepted: 1 to 10"),
        ({}, [], "components: lacks ../../loss.py"),
        ({"components": {"../loss.py": ""}}, [], "components.../loss.py"),
        ({"cells": {}}, [], "accepted: 1 to 0"),
        ({"table": 7}, [], "table"),
    ],
)
def test_a_file_that_is_no_submission_is_one_line_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], words: list[str], error: str
) -> None:
    path = written(tmp_path / "study.json", **changes)
    assert main(["replay", str(path), "--seed", "ab", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and error in said


def test_the_page_of_rules_has_these_odds() -> None:
    page = (Path(__file__).parents[1] / "submissions/README.md").read_text()
    header, *rows = [re.findall(r"\d+", line) for line in re.findall(r"^\|[^-\n]*$", page, re.MULTILINE)]
    cells, *replayed = map(int, header)
    for false, *said in rows:
        assert [round(100 * chance_to_find(cells, int(false), k)) for k in replayed] == list(map(int, said))
    assert len(rows) == 4


def test_submissions_of_this_repository_can_be_read() -> None:
    for path in Path(__file__).parents[1].glob("submissions/**/*.json"):
        Submission.read(path)
