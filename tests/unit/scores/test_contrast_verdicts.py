"""The contrast of methods in comparisons.json: its numbers by hand, and what it does to verdicts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from evals.core.files import fingerprint, write_parquet
from evals.core.manifest import Manifest, hash_files, read_manifest
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
    frame = pd.DataFrame({"step": range(1, 11), "loss": 0.0}).set_index("step")
    parameters: dict[str, Any] = {"method": {"loss": method}}
    if angles is not None:
        frame.loc[list(STEPS), "contrast_degrees"] = list(angles)
        frame.loc[list(STEPS), "contrast_floor_degrees"] = list(floor)
        frame["contrast_slope_degrees"] = 2.0 * seed
        parameters["contrast"] = {"reference_method": against, "method": {"loss": against}, "steps": list(STEPS)}
    write_parquet(directory / "metrics.parquet", frame.reset_index())
    outputs = hash_files(directory, directory / "metrics.parquet")
    Manifest("run", {}, outputs, parameters, fingerprint(parameters)).write(directory / "manifest.json")


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


def test_the_control_itself_never_has_contrast(tmp_path: Path) -> None:
    write(tmp_path, study(1, {"dapo": 0.2, "control": 0.2}))
    for seed in (1, 2, 3):
        write_run(tmp_path, "dapo", seed, (0.0, 0.0, 0.0))
        write_run(tmp_path, "control", seed, (5.0, 6.0, 7.0 + seed), (5.0, 6.0, 7.0 + seed))
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    assert contrasts_of(tmp_path)["control"]["ratio_interval"] == [1.0, 1.0]
    assert rows_of(tmp_path)["control", "dapo", "all"]["verdict"] == "no contrast with the reference"


@pytest.mark.parametrize(("angles", "is_above"), [((25.0, 27.0, 26.0), True), ((4.0, 9.0, 5.5), False)])
def test_one_seed_decides_by_its_steps(tmp_path: Path, angles: tuple[float, ...], is_above: bool) -> None:
    write(tmp_path, study(1, {"dapo": 0.2, "near": 0.2}, seeds=1))
    write_run(tmp_path, "dapo", 1, (0.0, 0.0, 0.0))
    write_run(tmp_path, "near", 1, angles)
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    row = contrasts_of(tmp_path)["near"]
    assert row["is_above_floor"] == is_above
    assert rows_of(tmp_path)["near", "dapo", "all"]["verdict"] == "not distinguishable"  # 0.5 to 3 is neither
    ratios = np.log(np.array(angles) / (5.0, 5.5, 4.5))
    assert row["ratio_interval"] == pytest.approx(np.exp(stats.t.interval(0.95, 2, ratios.mean(), stats.sem(ratios))))


def test_seeds_that_differ_far_above_the_floor_have_contrast(tmp_path: Path) -> None:
    """The interval of the difference of these angles, which were measured, is -4 to 75 degrees."""
    write(tmp_path, study(1, {"dapo": 0.2, "far": 0.2}))
    for seed, angle, floor in ((1, 57.4, 5.0), (2, 40.9, 7.9), (3, 26.7, 6.1)):
        write_run(tmp_path, "dapo", seed, (0.0, 0.0, 0.0))
        write_run(tmp_path, "far", seed, (angle,) * 3, (floor,) * 3)
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    assert contrasts_of(tmp_path)["far"]["is_above_floor"]
    assert rows_of(tmp_path)["far", "dapo", "all"]["verdict"] == "not distinguishable"


def test_seeds_too_few_to_measure_contrast_do_not_deny_it(tmp_path: Path) -> None:
    """SAPO's two trainings of SmolLM2: the interval of the ratio is 0.04 to 810."""
    write(tmp_path, study(1, {"dapo": 0.2, "far": 0.2}, seeds=2))
    for seed, angle, floor in ((1, 14.9, 4.05), (2, 51.4, 6.36)):
        write_run(tmp_path, "dapo", seed, (0.0, 0.0, 0.0))
        write_run(tmp_path, "far", seed, (angle,) * 3, (floor,) * 3)
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    found = contrasts_of(tmp_path)["far"]
    assert found["ratio_interval"] == pytest.approx([0.037, 810], rel=0.03) and not found["is_above_floor"]
    assert rows_of(tmp_path)["far", "dapo", "all"]["verdict"] == "not distinguishable"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.5, 1.9, "no contrast with the reference"),
        (0.5, 2.1, "not distinguishable"),
        (1.1, 1.9, "not distinguishable"),  # it has contrast
    ],
)
def test_the_interval_of_the_ratio_decides(tmp_path: Path, low: float, high: float, verdict: str) -> None:
    write(tmp_path, study(1, {"dapo": 0.2, "near": 0.2}))
    middle, width = np.log(low * high) / 2, np.log(high / low) / 2
    spread = width / (stats.t.ppf(0.975, 2) / np.sqrt(3))
    for seed, offset in ((1, -spread), (2, 0.0), (3, spread)):
        write_run(tmp_path, "dapo", seed, (0.0, 0.0, 0.0))
        write_run(tmp_path, "near", seed, (5.0 * np.exp(middle + offset),) * 3, (5.0,) * 3)
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    assert contrasts_of(tmp_path)["near"]["ratio_interval"] == pytest.approx([low, high])
    assert rows_of(tmp_path)["near", "dapo", "all"]["verdict"] == verdict


@pytest.mark.parametrize(("angle", "verdict"), [(4.0, "no contrast with the reference"), (6.0, "not distinguishable")])
def test_a_single_step_decides_by_its_ratio(tmp_path: Path, angle: float, verdict: str) -> None:
    write(tmp_path, study(1, {"dapo": 0.2, "near": 0.2}, seeds=1))
    nothing = (np.nan, np.nan)
    write_run(tmp_path, "dapo", 1, (0.0, *nothing), (5.0, *nothing))
    write_run(tmp_path, "near", 1, (angle, *nothing), (5.0, *nothing))
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    assert contrasts_of(tmp_path)["near"]["ratio_interval"] is None
    assert rows_of(tmp_path)["near", "dapo", "all"]["verdict"] == verdict


def test_a_method_that_is_the_reference_has_no_contrast(tmp_path: Path) -> None:
    write(tmp_path, study(1, {"dapo": 0.2, "same": 0.2}))
    for seed in (1, 2, 3):
        write_run(tmp_path, "dapo", seed, (0.0, 0.0, 0.0))
        write_run(tmp_path, "same", seed, (0.0, 0.0, 0.0), (5.0, 6.0, 7.0))
    assert compare(tmp_path, training=tmp_path / "runs") == 0
    assert not contrasts_of(tmp_path)["same"]["is_above_floor"]


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
