"""The page of training rollouts, and the way to it from the report: in a browser, as a reader goes it."""

import base64
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evals.core.files import fingerprint, write_parquet
from evals.core.manifest import read_manifest, verify_outputs
from rlvr.engines.rollouts import KIND, ROLLOUT_COLUMNS, rollout_directory
from rlvr.report.rollouts import write_rollouts_page
from rlvr.tokens.table import REPLAY_COLUMNS
from tests.artifacts import vouch_for
from tests.browser import Page
from tests.stages import status
from tests.unit.report.test_report import make_report, with_figures
from tests.unit.report.test_responses import choose
from tests.unit.synthetic_results import Study

HOSTILE = "<img src=x onerror=alert(1)>"
LONGEST = 6


def out(study: Study) -> Path:
    return study.root / "rollouts" / "index.html"


def make_page(study: Study, *replayed: Path) -> int:
    given = study.runs_file, study.results, out(study), ["chain_3", "nested_sums"], replayed
    return status(write_rollouts_page, *given)


def rows_of(run: str, step: int, columns: dict[str, str], problems: Sequence[int]) -> pd.DataFrame:
    """Made-up rows: of every problem a right rollout of three tokens, and a wrong one of as many as allowed."""
    rows: list[dict[str, Any]] = []
    for group, problem in enumerate(problems):
        for sample, texts in enumerate((["7", " is", "<end>"], ["no", HOSTILE, "\n", "a", "b", "c"])):
            for position, text in enumerate(texts):
                number = len(rows)
                advantage = (1.0 + group / 10) * (1 if sample == 0 else -1)
                about = {"run": run, "step": step, "problem": f"train-{problem:03d}", "group": group, "sample": sample}
                of_rollout = {"mini_batch": 1, "reward": 1.0 - sample, "advantage": advantage, "side": 1 - 2 * sample}
                of_token = {"position": position, "token": number, "text": text, "token_class": "format"}
                weights = {"weight": 2.0 if position == 1 else 1.0, "entropy": number % 3, "ratio": 1.0, "gate": 1.0}
                rows.append(about | of_rollout | of_token | weights | {"old_log_prob": -0.5, "new_log_prob": -0.25})
    return pd.DataFrame(rows)[list(columns)].astype(columns)


def keep(study: Study, run: str, step: int, problems: Sequence[int]) -> None:
    """The rollouts of a step, as a run leaves them."""
    place = study.results / "runs" / run
    directory = rollout_directory(place, step)
    write_parquet(directory / "tokens.parquet", rows_of(run, step, ROLLOUT_COLUMNS, problems))
    training = read_manifest(place / "manifest.json", "run").fingerprint[:16]
    vouch_for(directory / "tokens.parquet", KIND, parameters={"run": run, "training": training, "steps": [step]})


@pytest.fixture
def study(editable_study: Study) -> Study:
    """A study whose trainings have kept steps 1 and 4; seeds have other problems, and GRPO has kept nothing."""
    for run in editable_study.runs():
        place = editable_study.results / "runs" / run["run"]
        if run["seed"] is not None:
            manifest = read_manifest(place / "manifest.json", "run")
            training = {**manifest.parameters["training"], "max_new_tokens": LONGEST}
            replace(manifest, parameters={**manifest.parameters, "training": training}).write(place / "manifest.json")
        if run["method"] in ("dapo", "delta"):
            for step, problems in ((1, (0, 1)), (4, (2, 3, 1))):
                keep(editable_study, run["run"], step, [each + 4 * (run["seed"] - 1) for each in problems])
    return with_figures(editable_study)


def heads(page: Page) -> list[str]:
    return list(page.value("[...document.querySelectorAll('#heat thead th')].map((e) => e.innerText)"))


def names(page: Page) -> list[str]:
    return list(page.value("[...document.querySelectorAll('#heat tbody th')].map((e) => e.innerText)"))


def colours(page: Page) -> list[str]:
    tokens = "document.querySelectorAll('#cell article:first-of-type span[class^=token]')"
    return list(page.value(f"[...{tokens}].map((e) => e.className)"))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desktop light", "phone dark"])
def test_a_reader_goes_from_the_report_to_a_rollout_and_back(study: Study, page: Page, width: int, dark: bool) -> None:
    assert make_page(study) == 0 and make_report(study, rollouts="rollouts/index.html") == 0
    page.open((study.root / "report.html").as_uri(), width, 800, dark)
    page.click('nav a[href="rollouts/index.html"]')
    page.wait("document.body.dataset.ready")
    page.wait("document.querySelector('#cell article')")  # of the first step all methods have the same rollouts
    assert page.text("#cell h2") == "DAPO on train-002, step 4"
    assert page.value("document.getElementById('colour').value") == "entropy"
    values = page.value("[...document.querySelectorAll('.values span')].map((each) => each.innerText)")
    assert len(values) == 5 and values[0] == "less" and all(each.startswith("≥ ") for each in values[1:])
    choose(page, "step", "0")
    assert heads(page) == ["Problem", "DAPO", "DelTA"]
    assert names(page) == ["train-000", "train-001", "train-004", "train-005"]
    assert page.text("#summary") == "4 of 4 problems, 2 columns, 16 responses"

    choose(page, "step", "1")
    assert names(page) == ["train-002", "train-003", "train-001", "train-006", "train-007", "train-005"]
    choose(page, "run", "tiny-delta-s2")
    assert heads(page) == ["Problem", "DelTA"] and len(names(page)) == 3
    page.click('#heat button[data-problem="3"]')
    page.wait("document.querySelector('#cell h2')?.innerText === 'DelTA on train-006, step 4'")
    if width < 600:
        assert page.value("document.querySelector('#cell h2').getBoundingClientRect().top") >= 0, "the problem first"
    assert page.text("#cell article").startswith(
        "Sample 0 correct: reward 1, advantage 1.000, optimizer step 1, 3 tokens"
    )
    wrong = page.value("document.querySelectorAll('#cell article')[1].innerText")
    assert "wrong: reward 0, advantage -1.000, optimizer step 1, 6 tokens, cut off" in wrong and HOSTILE in wrong
    assert page.value("document.querySelectorAll('#cell img').length") == 0
    assert "run=tiny-delta-s2" in page.value("location.hash") and "step=4" in page.value("location.hash")
    assert page.value("document.documentElement.scrollWidth") == width, "nothing is wider than the window"
    page.click("nav a")
    page.wait("document.querySelector('#main') && location.pathname.endsWith('/report.html')")
    assert {address.partition(":")[0] for address in page.requests()} <= {"file", "data"}
    assert page.complaints() == []


def test_rollouts_are_ordered_filtered_and_coloured_by_what_was_recorded(study: Study, page: Page) -> None:
    assert make_page(study) == 0
    page.open(f"{out(study).as_uri()}#run=tiny-dapo-s1&step=4&problem=train-003")
    page.wait("document.querySelector('#cell article')")
    assert page.text("#cell h2") == "DAPO on train-003, step 4"
    known = page.value("[...document.getElementById('colour').options].map((each) => each.value)")
    assert known == ["push", "weight", "entropy", "surprise"], "nothing of the update"
    choose(page, "colour", "weight")
    page.wait("document.querySelector('#cell article .token-4')")
    assert colours(page) == ["token-0", "token-4", "token-0"]
    assert "blue above 1, orange below" in page.text("#cell > p.quiet")
    choose(page, "colour", "push")
    page.wait("document.querySelectorAll('#cell article .token-0').length === 0")
    first = "document.querySelector('#cell article').innerText.slice(0, 8)"
    for order, sample in (("advantage", 0), ("tokens", 1), ("reward", 0)):
        choose(page, "sort", order)
        page.wait(f"{first} === 'Sample {sample}'")
    choose(page, "kind", "lowered")
    assert set(page.value("[...document.querySelectorAll('#heat button')].map((e) => e.innerText)")) == {"50"}
    page.click("#cell p:nth-of-type(3) button:nth-of-type(5)")
    page.wait("document.querySelectorAll('#cell article').length === 1")
    assert page.text("#cell article").startswith("Sample 1 wrong")
    page.press("n")
    page.wait("document.querySelector('#cell h2').innerText === 'DAPO on train-001, step 4'")
    choose(page, "step", "0")  # where this problem was too
    page.wait("document.querySelector('#cell h2').innerText === 'DAPO on train-001, step 1'")
    page.press("Escape")
    page.press("ArrowUp")
    page.press("ArrowRight")
    page.press("Enter")
    page.wait("document.querySelector('#cell h2').innerText === 'DelTA on train-000, step 1'")
    choose(page, "run", "tiny-dapo-s2")
    page.wait("document.getElementById('cell').hidden")
    assert page.complaints() == []


def replay(study: Study, rows: pd.DataFrame) -> Path:
    """The directory of a replayed step 2 of GRPO with these rows."""
    directory = study.root / "tokens" / "tiny-grpo-s1"
    write_parquet(directory / "tokens.parquet", rows)
    training = read_manifest(study.results / "runs/tiny-grpo-s1/manifest.json", "run").fingerprint
    parameters = {"steps": [2]}
    identity = fingerprint({"parameters": parameters, "run": training})
    vouch_for(directory / "tokens.parquet", "token_table", parameters=parameters, identity=identity)
    return directory


def test_the_change_by_passes_in_float32_is_called_so(study: Study) -> None:
    rows = rows_of("tiny-grpo-s1", 2, REPLAY_COLUMNS, [0])
    for further, title in (({}, "over the step"), ({"displacement": 0.125}, "over the step, by passes in float32")):
        directory = replay(study, rows.assign(**further))
        assert make_page(study, directory) == 0
        found = re.search(r'id="index">([\w+/=]+)', out(study).read_text())
        assert found is not None
        assert f'"log-prob change {title}"' in zlib.decompress(base64.b64decode(found[1])).decode()


def test_a_replayed_step_has_what_the_update_did(study: Study, page: Page) -> None:
    directory = replay(study, rows_of("tiny-grpo-s1", 2, REPLAY_COLUMNS, [0]))
    assert make_page(study, directory) == 0
    page.open(f"{out(study).as_uri()}#step=2&run=tiny-grpo-s1")
    page.wait("document.querySelector('#cell article')")
    assert page.text("#cell h2").endswith("on train-000, step 2")
    choose(page, "colour", "change")
    page.wait("document.querySelector('#cell article .token-4')")
    vouch_for(directory / "tokens.parquet", "token_table", parameters={"steps": [2]}, identity="of another training")
    assert make_page(study, directory) == 0
    page.open(out(study).as_uri())
    page.wait("document.body.dataset.ready")
    assert page.value("document.getElementById('step').options.length") == 2


def test_a_study_without_kept_rollouts_says_so(synthetic_study: Study, page: Page, tmp_path: Path) -> None:
    write_rollouts_page(synthetic_study.runs_file, synthetic_study.results, tmp_path / "rollouts/index.html")
    page.open((tmp_path / "rollouts/index.html").as_uri())
    page.wait("document.body.dataset.ready")
    assert page.text("#summary").startswith("No training run of this study has kept rollouts")
    assert page.complaints() == [] and (tmp_path / "rollouts/texts").is_dir()


def test_the_manifest_names_the_texts_and_what_they_are_of(study: Study) -> None:
    assert make_page(study) == 0
    manifest = verify_outputs(out(study).with_name("manifest.json"), "rollouts")
    runs = [f"tiny-{method}-s{seed}" for method in ("dapo", "delta") for seed in (1, 2)]
    assert set(manifest.outputs) == {"index.html", *(f"texts/{run}-step{step}-0.js" for run in runs for step in (1, 4))}
    assert sum(path.endswith("tokens.parquet") for path in manifest.inputs) == 8


def test_damaged_rollouts_are_one_line(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    path = study.results / "runs/tiny-dapo-s1/rollouts/step-4/tokens.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    assert make_page(study) == 2
    error = capsys.readouterr().err
    assert "step-4/tokens.parquet: its bytes differ" in error and error.count("\n") == 1
