"""The curves of the report: the data that they are drawn from, and the drawing in a browser."""

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlvr.report.charts import charts
from tests.browser import Page
from tests.unit.report.test_report import make_report, with_figures
from tests.unit.synthetic_results import Study

METHODS = ("Base model", "GRPO", "DAPO", "DelTA")


def views_of(study: Study) -> dict[str, dict[str, Any]]:
    shown = charts(study.read(), study.results / "runs")
    assert tuple(method["title"] for method in shown["methods"]) == METHODS
    json.dumps(shown, allow_nan=False)
    return {view["name"]: view for view in shown["views"]}


def metric_of(study: Study, method: str, column: str) -> pd.DataFrame:
    paths = [study.results / f"runs/tiny-{method}-s{seed}/metrics.parquet" for seed in (1, 2)]
    return pd.concat([pd.read_parquet(path).set_index("step")[column] for path in paths], axis="columns")


def test_a_training_is_the_mean_and_the_range_of_its_seeds(synthetic_study: Study) -> None:
    base, _, _, (steps, mean, low, high) = views_of(synthetic_study)["Reward"]["lines"]
    rewards = metric_of(synthetic_study, "delta", "reward_mean")
    assert base is None and steps == rewards.index.tolist()
    for shown, expected in ((mean, rewards.mean(axis=1)), (low, rewards.min(axis=1)), (high, rewards.max(axis=1))):
        assert shown == pytest.approx(expected.tolist(), rel=1e-3)
    tokens = metric_of(synthetic_study, "delta", "tokens_generated").cumsum()
    spent = views_of(synthetic_study)["Reward over generated tokens"]["lines"][3]
    assert spent[0][-1] == pytest.approx(tokens.iloc[-1].min(), rel=1e-3)


def test_a_line_ends_with_the_seed_that_stopped_first(editable_study: Study) -> None:
    path = editable_study.results / "runs" / "tiny-delta-s2" / "metrics.parquet"
    pd.read_parquet(path)[:2].to_parquet(path, index=False)
    steps, mean, _, _ = views_of(editable_study)["Reward"]["lines"][3]
    assert steps == [1, 2] and None not in mean


def test_scores_on_held_out_problems_stand_over_what_was_spent(editable_study: Study) -> None:
    runs, last = editable_study.results / "runs", []
    for seed, correct in ((1, 3), (2, 5)):
        directory = runs / f"tiny-delta-s{seed}"
        step = int(pd.read_parquet(directory / "metrics.parquet")["step"].iloc[-1])
        rows = {"step": [0, step], "correct_counts": [[1, 1], [correct, 5]], "samples_per_problem": 10}
        pd.DataFrame(rows).to_parquet(directory / "validation.parquet", index=False)
        last.append(float(pd.read_parquet(directory / "metrics.parquet")["seconds_step"].sum()))
    views = views_of(editable_study)
    base, *others, (seconds, mean, low, high) = views["Held-out score over seconds of training steps"]["lines"]
    assert [base, *others] == [None, None, None], "those that were not validated"
    assert seconds == pytest.approx([np.mean(last)], rel=1e-3)
    assert (mean, low, high) == ([45.0], [40.0], [50.0])


def test_scores_are_those_of_the_files(synthetic_study: Study) -> None:
    views = views_of(synthetic_study)
    rows = [
        [score for score in json.loads(path.read_text())["scores"] if score["method"] == "delta"]
        for path in synthetic_study.scores
    ]
    levels, mean, low, _ = views["pass@k, all benchmarks"]["lines"][3]
    assert levels == sorted(map(int, rows[0][0]["pass_at_k"]))
    of_seeds = [
        [100 * np.mean([row[seed]["pass_at_k"][str(int(k))] for row in rows]) for k in levels] for seed in (0, 1)
    ]
    assert mean == pytest.approx(np.mean(of_seeds, axis=0), rel=1e-3)
    assert low == pytest.approx(np.min(of_seeds, axis=0), rel=1e-3)
    shares, solved = views["Problems solved, chain_3"]["lines"][3]
    rates = np.mean([row["correct_counts"] for row in rows[0]], axis=0) / 32
    assert solved == pytest.approx([100 * np.mean(rates >= share / 100) for share in shares], rel=1e-3)
    assert solved[0] == 100


def test_a_point_is_how_often_a_method_and_the_reference_solve_a_problem(synthetic_study: Study) -> None:
    views = views_of(synthetic_study)
    scores = json.loads(next(path for path in synthetic_study.scores if path.stem == "chain_3").read_text())["scores"]
    shares = {
        method: 100 * np.mean([row["correct_counts"] for row in scores if row["method"] == method], axis=0) / 32
        for method in ("base", "dapo", "delta")
    }
    base, grpo, dapo, (xs, ys) = views["chain_3, against DAPO"]["lines"]
    assert base is None and dapo is None and grpo is not None
    assert xs == pytest.approx(shares["dapo"], rel=1e-3) and ys == pytest.approx(shares["delta"], rel=1e-3)
    base, *_, (xs, ys) = views["chain_3, against the base model"]["lines"]
    assert base is None and xs == pytest.approx(shares["base"], rel=1e-3)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desktop light", "phone dark"])
def test_a_reader_uses_the_curves(editable_study: Study, page: Page, width: int, dark: bool) -> None:
    study = with_figures(editable_study)
    assert make_report(study) == 0
    rewards = metric_of(study, "delta", "reward_mean")
    page.open((study.root / "report.html").as_uri(), width, 800, dark)
    lines = "document.querySelectorAll('#curves path[data-method]').length"
    assert page.value(lines) == 3, "the base model has no training"
    page.click("#curves .drawing svg")  # in the middle; values are those of the nearest step
    said = page.text("#curves .legend button:nth-child(4)").strip()
    middle = rewards.iloc[len(rewards) // 2 - 1 : len(rewards) // 2 + 1]
    assert said.startswith("DelTA ")
    values = [float(each) for each in re.findall(r"[\d.]+", said)]
    assert any(values == pytest.approx([row.mean(), row.min(), row.max()], rel=5e-3) for _, row in middle.iterrows()), (
        said,
        middle,
    )
    assert page.value("document.querySelectorAll('#curves circle').length") == 3
    page.press("Escape")
    assert page.value("document.querySelectorAll('#curves circle').length") == 0
    page.press("ArrowRight")
    said = page.text("#curves .legend button:nth-child(4)")
    assert float(re.findall(r"[\d.]+", said)[0]) == pytest.approx(rewards.iloc[0].mean(), rel=5e-3)
    page.click("#curves .legend button:nth-child(2)")
    assert page.value(lines) == 2
    assert page.value("document.querySelector('#curves .legend button:nth-child(2)').ariaPressed") == "false"
    page.click("#curves .controls button:nth-of-type(2)")  # none
    assert page.value(lines) == 0
    page.click("#curves .controls button:nth-of-type(1)")
    choice = "document.querySelector('#curves select')"
    name = "pass@k, chain_3"
    page.value(f"{choice}.value = [...{choice}.options].find((each) => each.text === '{name}').value, 0")
    page.value(f"{choice}.dispatchEvent(new Event('change')), 0")
    assert page.value(lines) == 4 and page.text("#curves .axis") == "pass@k, %"
    name = "chain_3, against DAPO"
    page.value(f"{choice}.value = [...{choice}.options].find((each) => each.text === '{name}').value, 0")
    page.value(f"{choice}.dispatchEvent(new Event('change')), 0")
    assert page.value(lines) == 1, "points of all methods would cover one another"
    xs, ys = views_of(study)[name]["lines"][1]
    above = sum(y > x for x, y in zip(xs, ys, strict=True))
    assert f": {above} problems above the diagonal" in page.text("#curves .axis")
    page.click("#curves .drawing svg")
    page.press("ArrowRight")
    found = re.search(r"problem (\d+), ", page.value("document.querySelector('#curves svg[role]').textContent"))
    said = page.text("#curves .legend button:nth-child(2)").split()[-1]
    assert found and float(said) == pytest.approx(ys[int(found[1]) - 1], abs=0.5)
    assert page.value("document.documentElement.scrollWidth") == width, "nothing is wider than the window"
    assert page.complaints() == []
