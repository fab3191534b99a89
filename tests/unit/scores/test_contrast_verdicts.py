"""The contrast of methods in comparisons.json: its numbers by hand, and what it does to verdicts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from evals.core.files import write_parquet
from evals.core.manifest import read_manifest
from tests.artifacts import vouch_for
from tests.unit.scores.test_compare_command import Counts, compare, rows_of, study, write_scores

STEPS = (2, 5, 8)


def write_run(
    root: Path,
    method: str,
    seed: int,
    angles: Sequence[float] | None,
    floor: Sequence[float] = (5.0, 5.5, 4.5),
    against: str = "dapo",
) -> None:
    """A finished training that measured these angles in degrees at :data:`STEPS`, or none."""
    directory = root / "runs" / f"tiny-{method}-s{seed}"
    frame = pd.DataFrame({"step": range(1, 11), "loss": 0.0, "reward_mean": 0.5}).set_index("step")
    parameters: dict[str, Any] = {"method": {"loss": method}}
    if angles is not None:
        frame.loc[list(STEPS), "contrast_degrees"] = list(angles)
        frame.loc[list(STEPS), "contrast_floor_degrees"] = list(floor)
        frame["contrast_slope_degrees"] = 2.0 * seed
        parameters["contrast"] = {"reference_method": against, "method": {"loss": against}, "steps": list(STEPS)}
    write_parquet(directory / "metrics.parquet", frame.reset_index())
    vouch_for(directory / "metrics.parquet", "run", parameters=parameters)


def contrasts_of(root: Path) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in json.loads((root / "comparisons.json").read_text())["contrasts"]}


def write(root: Path, counts: Counts) -> None:
    write_scores(root, "easy", counts)


def test_contrast_goes_into_comparisons_and_verdicts(tmp_path: Path) -> None:
    gains = {"dapo": 0.2, "near": 0.2, "far": 0.2, "harmful": 0.02, "batched": 0.2}
    write(tmp_path, study(1, gains))
    offsets = {"near": (-0.3, 0.1, 0.4), "far": (19.0, 25.0, 22.0), "harmful": (-0.3, 0.1, 0.4)}
    for seed in (1, 2, 3):
        write_run(tmp_path, "dapo", seed, (0.0, 0.0, 0.0))
        write_run(tmp_path, "batched", seed, None)
        for method, values in offsets.items():
            floor = (5.0 + seed, 5.5, 4.5)
            write_run(tmp_path, method, seed, [each + values[seed - 1] for each in floor], floor)
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    rows, found = rows_of(tmp_path), contrasts_of(tmp_path)
    assert set(found) == set(offsets)  # neither the reference nor what measured nothing
    for name in ("easy", "all"):
        assert rows["near", "dapo", name]["verdict"] == "no contrast with the reference"
        assert rows["far", "dapo", name]["verdict"] == "not distinguishable"
        assert rows["batched", "dapo", name]["verdict"] == "not distinguishable"
        # A difference that was found is one, whatever the angle says.
        assert rows["harmful", "dapo", name]["verdict"] == "worse"
        assert rows["near", "base", name]["verdict"] == "better"
    for method, values in offsets.items():
        row = found[method]
        assert row["degrees"] == pytest.approx(5 + 2 / 3 + np.mean(values))
        assert row["floor_degrees"] == pytest.approx(5 + 2 / 3)
        assert (row["slope_degrees"], row["seeds"]) == (4.0, 3)
        floors = np.array([np.mean((5.0 + seed, 5.5, 4.5)) for seed in (1, 2, 3)])
        ratios = np.log((floors + values) / floors)
        assert row["ratio_interval"] == pytest.approx(
            np.exp(stats.t.interval(0.95, 2, ratios.mean(), stats.sem(ratios)))
        )
        assert row["is_above_floor"] == (method == "far")
    read = read_manifest(tmp_path / "comparisons.manifest.json", "comparisons").inputs
    assert str(tmp_path / "runs" / "tiny-far-s2" / "metrics.parquet") in read


NOTHING = (np.nan, np.nan)
NO_CONTRAST, UNSEEN = "no contrast with the reference", "not distinguishable"


def three_seeds(low: float, high: float) -> list[tuple[Sequence[float], Sequence[float]]]:
    """Three seeds whose ratios of angle and floor have this interval."""
    middle, width = np.log(low * high) / 2, np.log(high / low) / 2
    spread = width / (stats.t.ppf(0.975, 2) / np.sqrt(3))
    return [((5.0 * np.exp(middle + offset),) * 3, (5.0,) * 3) for offset in (-spread, 0.0, spread)]


@pytest.mark.parametrize(
    ("seeds", "interval", "is_above", "verdict"),
    [
        # The control itself, whose angle is the floor, and a method that is the reference.
        ([((5.0, 6.0, 7.0 + seed),) * 2 for seed in (1, 2, 3)], (1.0, 1.0), False, NO_CONTRAST),
        ([((0.0, 0.0, 0.0), (5.0, 6.0, 7.0))] * 3, (1e-6 / 6, 1e-6 / 6), False, NO_CONTRAST),
        # One seed decides by its steps, and 0.5 to 3 is neither; a single step decides by its ratio.
        ([((25.0, 27.0, 26.0), (5.0, 5.5, 4.5))], (4.18, 6.51), True, UNSEEN),
        ([((4.0, 9.0, 5.5), (5.0, 5.5, 4.5))], (0.478, 2.86), False, UNSEEN),
        ([((4.0, *NOTHING), (5.0, *NOTHING))], None, False, NO_CONTRAST),
        ([((6.0, *NOTHING), (5.0, *NOTHING))], None, True, UNSEEN),
        # Measured: the interval of the difference of these angles is -4 to 75 degrees; SAPO's two of SmolLM2.
        ([((57.4,) * 3, (5.0,) * 3), ((40.9,) * 3, (7.9,) * 3), ((26.7,) * 3, (6.1,) * 3)], (1.78, 22.9), True, UNSEEN),
        ([((14.9,) * 3, (4.05,) * 3), ((51.4,) * 3, (6.36,) * 3)], (0.037, 810), False, UNSEEN),
        (three_seeds(0.5, 1.9), (0.5, 1.9), False, NO_CONTRAST),
        (three_seeds(0.5, 2.1), (0.5, 2.1), False, UNSEEN),
        (three_seeds(1.1, 1.9), (1.1, 1.9), True, UNSEEN),
    ],
)
def test_the_interval_of_the_ratio_of_angle_and_floor_decides(
    tmp_path: Path,
    seeds: list[tuple[Sequence[float], Sequence[float]]],
    interval: tuple[float, float] | None,
    is_above: bool,
    verdict: str,
) -> None:
    write(tmp_path, study(1, {"dapo": 0.2, "near": 0.2}, seeds=len(seeds)))
    for seed, (angles, floor) in enumerate(seeds, start=1):
        write_run(tmp_path, "dapo", seed, [0.0 * angle for angle in angles], floor)
        write_run(tmp_path, "near", seed, angles, floor)
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    row = contrasts_of(tmp_path)["near"]
    assert row["is_above_floor"] == is_above
    assert row["ratio_interval"] == (interval and pytest.approx(interval, rel=0.01))
    assert rows_of(tmp_path)["near", "dapo", "all"]["verdict"] == verdict


def test_an_angle_to_another_method_is_none_to_the_reference(tmp_path: Path) -> None:
    write(tmp_path, study(1, {"dapo": 0.2, "near": 0.2, "sapo": 0.2}, seeds=1))
    write_run(tmp_path, "dapo", 1, (0.0, 0.0, 0.0))
    write_run(tmp_path, "near", 1, (1.0, 1.0, 1.0), against="sapo")
    write_run(tmp_path, "sapo", 1, None)
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    assert contrasts_of(tmp_path) == {}
    assert rows_of(tmp_path)["near", "dapo", "all"]["verdict"] == "not distinguishable"
    assert compare(tmp_path) == 0  # without trainings there is nothing to read
    assert contrasts_of(tmp_path) == {}
