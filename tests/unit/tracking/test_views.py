"""The views of a study that ``make ui`` prints the addresses of, as MLflow's own pages show them in Chromium."""

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from evals.core.files import read_jsonl
from tests.browser import CHROMIUM, PATIENCE_SECONDS, Page
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import shown as runs_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
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


def test_curves_are_means_and_bars_equal_the_table(projected: Study, addresses: dict[str, str], page: Page) -> None:
    """However many trainings there are: MLflow would average the hundred that it loads at first."""
    page.open(addresses["curves"], width=1600, height=1200)
    page.wait(f"{_DRAWN}.length >= 3")
    with open(projected.results / "tables/main.csv", newline="") as lines:
        table = {row["title"]: 100 * float(row["all_avg_at_32"]) for row in csv.DictReader(lines)}
    assert list(table)[1:] == ["GRPO", "DAPO", "DelTA"]
    bars = page.value(f"{_DRAWN}.map((each) => each.data).find(([one]) => one.type === 'bar')")
    ((values, texts, names),) = [
        (each["x"], each["text"], each["names"] if "names" in each else each["y"]) for each in bars
    ]
    assert len(values) == len(table) and sorted(values) == sorted(table.values()), names
    assert {f"{float(text):.1f}" for text in texts} == {f"{value:.1f}" for value in table.values()}
    shown = page.text("body")
    assert all(title in shown for title in table) and "4 matching runs" in shown
    lines = page.value(f"{_DRAWN}.slice(3).map((each) => each.data.map(({{x, y}}) => [x.length, y.length]))")
    assert all(len(chart) >= 3 and min(map(min, chart)) >= 8 for chart in lines), "eight steps were trained"


def test_scores_are_sorted_rows(projected: Study, addresses: dict[str, str], page: Page) -> None:
    page.open(addresses["scores"], width=1600, height=1200)
    score = "eval/all/avg_at_32"
    runs = {name: run for name, run in runs_of(projected).items() if run.data.tags["stage"] == "train"}
    values = {name: run.data.metrics[score] for name, run in runs.items()}
    assert len(set(values.values())) > 2
    for text in (score, *values):
        page.wait(f"document.body.innerText.includes({json.dumps(text)})")
    links = "[...document.querySelectorAll('a')].map((each) => [each.innerText, each.getBoundingClientRect().top])"
    heights = {name: top for name, top in page.value(links) if name in values}
    shown = [values[name] for name in sorted(values, key=lambda name: heights[name])]
    assert shown == sorted(values.values(), reverse=True)


def test_responses_to_one_problem_stand_side_by_side(projected: Study, addresses: dict[str, str], page: Page) -> None:
    page.open(addresses["responses"], width=1600, height=1200)
    for text in ("responses.json", "Group by:", "Compare:"):
        page.wait(f"document.body.innerText.includes({json.dumps(text)})")
    places = (
        "problems/chain_3/problems.jsonl",
        *(f"samples/tiny-delta-s{n}/chain_3/samples.jsonl.bz2" for n in (1, 2)),
    )
    problem, *responses = (read_jsonl(projected.results / place)[0] for place in places)
    for text in (problem["problem"], *(response["text"] for response in responses)):
        page.wait(f"document.body.innerText.includes({json.dumps(text)})")
    shown = page.text("body")
    assert sum(shown.count(text) for text in {response["text"] for response in responses}) == 2  # those of two runs
