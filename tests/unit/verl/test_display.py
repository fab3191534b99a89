"""What a run shows while verl trains, over attempts."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from rlvr.engines.verl.display import Display, keep_metrics
from rlvr.engines.verl.launch import Places
from rlvr.runs.progress import METRICS_SO_FAR, PARAMETERS
from tests.unit.verl.conftest import make_run


def log(places: Places, steps: range, reward: float) -> None:
    """What verl has written when it has done ``steps``."""
    lines = [json.dumps({"step": step, "data": {"rlvr/reward_mean": reward}}) for step in steps]
    places.metrics.parent.mkdir(parents=True, exist_ok=True)
    places.metrics.write_text("\n".join(lines) + "\n", encoding="utf-8")


def shown(places: Places) -> dict[int, float]:
    """Reward by step."""
    frame = pd.read_parquet(places.run / METRICS_SO_FAR)
    return dict(zip(frame["step"], frame["reward_mean"], strict=True)) if len(frame) else {}


def step_of_progress(places: Places) -> int:
    return int(json.loads((places.run / "progress.json").read_text())["step"])


def test_steps_that_a_resumed_attempt_does_again_are_not_done_yet(places: Places) -> None:
    run = make_run("dapo", steps=9)
    places.run.mkdir(parents=True)
    first = Display(run, places, {"seed": 1}, 0)
    assert shown(places) == {}
    log(places, range(1, 8), 0.1)
    first.look()
    assert shown(places) == dict.fromkeys(range(1, 8), 0.1) and step_of_progress(places) == 7
    again = Display(run, places, {"seed": 1}, 4)
    keep_metrics(places)
    assert shown(places) == dict.fromkeys(range(1, 5), 0.1)
    again.look()
    log(places, range(5, 7), 0.2)
    again.look()
    assert shown(places) == {**dict.fromkeys(range(1, 5), 0.1), 5: 0.2, 6: 0.2} and step_of_progress(places) == 6
    assert pd.read_parquet(places.run / METRICS_SO_FAR).attrs == {PARAMETERS: {"seed": 1}}


def test_a_display_that_cannot_be_written_stops_nothing(places: Places, tmp_path: Path) -> None:
    Display(make_run("dapo"), places, {}, 0)  # the run's directory is not there
    assert not list(tmp_path.rglob(METRICS_SO_FAR))
