"""Known effects: rows of the shipped file, what each statistic measures, and the answer that an interval gives."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evals.core.errors import UserError
from evals.core.files import write_parquet
from evals.tables.phenomena import (
    Evidence,
    Phenomenon,
    answer,
    entropy_law,
    gain,
    metric_change,
    metric_ratio,
    read_phenomena,
    spread_of_seeds,
    write_phenomena_table,
)
from rlvr.study.source_files import CONFIG
from tests.unit.synthetic_results import Study

FILE = CONFIG / "phenomena.yaml"


@pytest.fixture
def evidence(synthetic_study: Study, tmp_path: Path) -> Evidence:
    """The made-up study, whose runs recorded an entropy that halves and a reward that follows it by the law."""
    results = synthetic_study.read()
    for number, run in enumerate(run for run in results.runs if run.seed is not None):
        entropy = np.linspace(1.0, 0.5, 6) * (1 + 0.01 * number)
        frame = {"entropy": entropy, "reward_mean": 3.0 - np.exp(entropy), "clip_fraction": [0.01 * (1 + number)] * 6}
        (tmp_path / run.run).mkdir()
        write_parquet(tmp_path / run.run / "metrics.parquet", pd.DataFrame(frame))
    return Evidence(results, None, tmp_path)


def test_every_row_says_what_it_measures_or_what_is_lacking() -> None:
    rows = read_phenomena(FILE)
    assert len(rows) > 20 and len({row.effect for row in rows}) == len(rows)
    for row in rows:
        assert (row.statistic is None) == (row.lacks is not None)
        assert row.statistic is None or row.reproduced or row.in_part


def test_statistics_of_runs_are_over_seeds_of_the_same_number(evidence: Evidence) -> None:
    change = metric_change(evidence, "entropy", "dapo")
    assert change is not None and change[0] == pytest.approx(0.5)
    law = entropy_law(evidence, "dapo")
    assert law is not None and law[0] == pytest.approx(1.0)
    ratio, again = (metric_ratio(evidence, "clip_fraction", *pair) for pair in (("delta", "dapo"), ("dapo", "delta")))
    assert ratio is not None and again is not None and ratio[0] * again[0] == pytest.approx(1.0)
    assert ratio[1][0] * again[1][1] == pytest.approx(1.0)
    assert metric_ratio(evidence, "clip_fraction", "gspo", "dapo") is None, "the study has no such method"


def test_differences_and_spreads_are_those_of_the_study(evidence: Evidence) -> None:
    compared = evidence.results.comparison(evidence.results.condition("delta"), "dapo")  # type: ignore[arg-type]
    measured = gain(evidence, "delta", "dapo")
    assert compared is not None and measured is not None and measured[0] == pytest.approx(100 * compared.difference)
    names = evidence.results.benchmarks
    of_both = gain(evidence, "delta", "dapo", names)
    assert of_both is not None and of_both[0] == pytest.approx(measured[0])
    scores = [100 * score for score in evidence.results.average(evidence.results.condition("dapo")).by_seed]  # type: ignore[arg-type]
    spread = spread_of_seeds(evidence, "dapo")
    assert spread is not None and spread[0] == pytest.approx(np.std(scores, ddof=1)) and spread[1][0] < spread[0]


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        ((5.0, (4.0, 6.0)), "reproduced"),
        ((5.0, (1.0, 6.0)), "in part"),
        ((2.0, (1.0, 3.0)), "in part"),
        ((0.5, (0.4, 0.6)), "not"),
        ((math.inf, (math.inf, math.inf)), "not"),
        (None, "not measured: the study lacks the methods"),
    ],
)
def test_the_whole_interval_reproduces(estimate: tuple[float, tuple[float, float]] | None, said: str) -> None:
    row = Phenomenon(effect="x", source="y", published="z", statistic="gain", reproduced=(3.0, 9.0), in_part=(1.0, 9.0))
    assert answer(row, estimate) == said


def test_the_table_counts_the_answers(evidence: Evidence, tmp_path: Path) -> None:
    write_phenomena_table(evidence.results, FILE, evidence.training, tmp_path / "phenomena")
    answers = pd.read_csv(tmp_path / "phenomena.csv")["answer"]
    shown = (tmp_path / "phenomena.md").read_text()
    assert f"shows {(answers == 'reproduced').sum()} of {len(answers)} known effects" in shown
    assert "none [none, none]" not in answers.to_list()


def test_a_statistic_that_there_is_not_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rows: [{effect: a, source: b, published: c, statistic: gains}]\n")
    with pytest.raises(UserError, match=r"mine\.yaml: row 1: statistic: is 'gains' \(did you mean gain\?\); accepted"):
        read_phenomena(file)
