"""The table of last and best policies, of two fabricated studies that stand for both."""

from pathlib import Path

import pandas as pd
import pytest

from evals.core.files import read_json, write_json
from evals.core.manifest import verify_outputs
from evals.core.records import Chosen
from evals.tables.checkpoints import write_checkpoints_table
from tests.stages import status
from tests.unit.synthetic_results import Study, write_small_study


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Another study of the same methods, whose runs stand for the best policies."""
    return write_small_study(tmp_path_factory.mktemp("best"), steps=4)


def choices(study: Study) -> list[Path]:
    """Every training of ``study`` chose its policy after 4 steps."""
    paths = []
    for method in ("grpo", "dapo", "delta"):
        for seed in (1, 2):
            path = study.results / "runs" / f"tiny-{method}-s{seed}" / "chosen.json"
            averages = {"4": 0.75, "8": 0.5}
            choice = Chosen(run="r", benchmark="chain_3", samples_per_problem=2, step=4, averages=averages)
            write_json(path, choice.to_json())
            paths.append(path)
    return paths


def write(last: Study, best: Study, chosen: list[Path], out: Path) -> int:
    of_best = best.scores, best.comparisons, best.runs_file
    return status(write_checkpoints_table, last.read(), *of_best, chosen, out)


def test_both_policies_of_every_method_are_rows(synthetic_study: Study, best: Study, tmp_path: Path) -> None:
    out = tmp_path / "checkpoints"
    assert write(synthetic_study, best, choices(best), out) == 0
    frame = pd.read_csv(tmp_path / "checkpoints.csv")
    assert frame["checkpoint"].tolist() == ["base", *["last", "best"] * 3]
    assert frame["steps"].tolist()[1:3] == [pytest.approx(float("nan"), nan_ok=True), "4 4"]
    scores = next(read_json(path) for path in best.scores if path.stem == "chain_3")["scores"]
    own = [row["average_at_k"] for row in scores if row["method"] == "delta"]
    row = frame[(frame["method"] == "delta") & (frame["checkpoint"] == "best")].iloc[0]
    assert row["chain_3"] == pytest.approx(sum(own) / 2)
    assert row["chosen_average"] == 0.75 and row["selected_on"] == "chain_3"
    text = (tmp_path / "checkpoints.md").read_text()
    assert "of 2 policies along each training" in text and "selected on" in text
    rows = [line for line in text.splitlines() if line.startswith("| DelTA")]
    assert ["†" in line for line in rows] == [False, True, False, True]  # in both tables of the best alone
    assert "Without chain_3 (%)" in text
    assert set(verify_outputs(tmp_path / "checkpoints.manifest.json", "table").inputs) > set(map(str, choices(best)))


def test_trainings_with_fewer_policies_are_said(synthetic_study: Study, best: Study, tmp_path: Path) -> None:
    paths = choices(best)
    write_json(paths[2], {**read_json(paths[2]), "averages": {"4": 0.75}})
    assert write(synthetic_study, best, paths, tmp_path / "checkpoints") == 0
    assert "of 1 to 2 policies along each training" in (tmp_path / "checkpoints.md").read_text()


def test_a_choice_that_is_missing_is_refused(synthetic_study: Study, best: Study, tmp_path: Path) -> None:
    assert write(synthetic_study, best, choices(best)[1:], tmp_path / "checkpoints") == 2
