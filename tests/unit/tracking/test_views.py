"""The views of a study that ``make ui`` prints the addresses of, as MLflow's own pages show them in Chromium."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.entities import Run

from evals.core.files import read_jsonl
from tests.browser import CHROMIUM, PATIENCE_SECONDS, Page, browser
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import client_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
METHODS = ("grpo", "dapo", "delta")
_DRAWN = "[...document.querySelectorAll('.js-plotly-plot')].filter((each) => each.data)"


@pytest.fixture(scope="module")
def addresses(projected: Study, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The address of each view, as `rlvr-bench ui` prints it; served until the tests have ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("ui") / "log"
    command = [sys.executable, "-m", "rlvr", "ui", "--results", str(projected.results), "--port", str(port)]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ), start_new_session=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while len(found := dict(re.findall(r"laptop: (\w+) +(http\S+)", log.read_text()))) < 3:
            assert time.monotonic() < deadline and process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield found
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path / "chromium") as opened:
        yield opened


def trainings(projected: Study) -> dict[str, Run]:
    """The trainings of the database, by their names."""
    client = client_of(projected)
    experiment = client.get_experiment_by_name("laptop")
    found = client.search_runs([experiment.experiment_id], "tags.stage LIKE 'train%'")
    return {run.info.run_name: run for run in found}


def test_curves_are_means_over_the_seeds_of_each_method(
    projected: Study, addresses: dict[str, str], page: Page
) -> None:
    page.open(addresses["curves"], width=1600, height=1200)
    page.wait(f"{_DRAWN}.length >= 3")
    shown = page.text("body")
    assert all(f"Group: {method}" in shown for method in METHODS), shown
    bars = page.value(
        f"{_DRAWN}.map((each) => each.data).find(([one]) => one.type === 'bar').map(({{x, y}}) => [x, y])"
    )
    ((values, names),) = bars
    runs = trainings(projected).values()
    (score,) = {key for run in runs for key in run.data.metrics if key.startswith("eval/all/avg_at_")}
    for method in METHODS:
        scores = [run.data.metrics[score] for run in runs if run.data.tags["method"] == method]
        (shown_value,) = [value for value, name in zip(values, names, strict=True) if name.endswith(f".{method}")]
        assert len(scores) == 2 and shown_value == pytest.approx(sum(scores) / 2)
    lines = page.value(f"{_DRAWN}.slice(1).map((each) => each.data.map(({{x, y}}) => [x.length, y.length]))")
    assert all(len(chart) >= len(METHODS) and min(map(min, chart)) >= 8 for chart in lines), "eight steps were trained"


def test_scores_are_rows_from_the_highest_to_the_lowest(
    projected: Study, addresses: dict[str, str], page: Page
) -> None:
    page.open(addresses["scores"], width=1600, height=1200)
    runs = trainings(projected)
    (score,) = {key for run in runs.values() for key in run.data.metrics if key.startswith("eval/all/avg_at_")}
    values = {name: run.data.metrics[score] for name, run in runs.items()}
    assert len(set(values.values())) > 2
    for text in (score, *values, *map(str, values.values())):
        page.wait(f"document.body.innerText.includes({json.dumps(text)})")
    links = "[...document.querySelectorAll('a')].map((each) => [each.innerText, each.getBoundingClientRect().top])"
    heights = {name: top for name, top in page.value(links) if name in values}
    shown = [values[name] for name in sorted(values, key=lambda name: heights[name])]
    assert shown == sorted(values.values(), reverse=True)


def test_responses_to_one_problem_stand_side_by_side(projected: Study, addresses: dict[str, str], page: Page) -> None:
    page.open(addresses["responses"], width=1600, height=1200)
    for text in ("responses.json", "Group by:", "Compare:"):
        page.wait(f"document.body.innerText.includes({json.dumps(text)})")
    places = ("problems/chain_3/problems", *(f"samples/tiny-delta-s{seed}/chain_3/samples" for seed in (1, 2)))
    problem, *responses = (read_jsonl(projected.results / f"{place}.jsonl")[0] for place in places)
    for text in (problem["problem"], *(response["text"] for response in responses)):
        page.wait(f"document.body.innerText.includes({json.dumps(text)})")
    shown = page.text("body")
    assert sum(shown.count(text) for text in {response["text"] for response in responses}) == 2  # those of two runs
