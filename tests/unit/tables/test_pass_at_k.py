"""pass@k by k: held to a count over all choices of responses, and the k from which the base model is ahead."""

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from evals.core.errors import UserError
from evals.core.files import read_json, write_json, write_parquet
from evals.core.manifest import verify_outputs
from evals.core.records import BASE, Chosen
from evals.core.yaml_file import read_yaml
from evals.tables.checkpoints import write_checkpoints_table
from evals.tables.pass_at_k import Curve, curves, write_pass_at_k_table
from evals.tables.phenomena import (
    Evidence,
    Phenomenon,
    answer,
    base_ahead_from,
    entropy_law,
    gain,
    metric_change,
    metric_ratio,
    pass_at_k_difference,
    read_phenomena,
    spread_of_seeds,
    weights_unchanged,
    write_phenomena_table,
)
from rlvr.study.source_files import CONFIG
from tests.stages import status
from tests.unit.synthetic_results import Study, write_small_study


def test_a_curve_is_the_mean_of_all_choices_of_k_responses(synthetic_study: Study) -> None:
    results = synthetic_study.read()
    row = next(row for row in results.conditions if row.method == "dapo")
    estimated, samples = curves(results)[row], results.samples_per_problem
    k = 2
    expected = []
    for name in results.benchmarks:
        of_runs = []
        for run in row.runs:
            shares = []
            for correct in results.scores[run.run, name].correct_counts:
                right = [True] * correct + [False] * (samples - correct)
                drawn = list(combinations(range(samples), k))
                shares.append(sum(any(right[one] for one in choice) for choice in drawn) / len(drawn))
            of_runs.append(np.mean(shares))
        expected.append(np.mean(of_runs))
    assert estimated.values[k - 1] == pytest.approx(np.mean(expected))
    assert estimated.values[0] == pytest.approx(results.average(row).value)
    low, high = estimated.band(0.95)
    assert (low <= estimated.values).all() and (estimated.values <= high).all()


def test_the_base_model_is_ahead_from_the_first_k_at_which_its_curve_is_higher() -> None:
    def curve(values: list[float], base: Curve | None = None) -> Curve:
        return Curve(np.array(values), np.tile(values, (100, 1)), base)

    base = curve([0.2, 0.5, 0.8])
    assert curve([0.4, 0.5, 0.7], base).overtaken(0.95) == (3.0, (3.0, 3.0))
    assert curve([0.4, 0.6, 0.9], base).overtaken(0.95) == (math.inf, (math.inf, math.inf))
    assert base.overtaken(0.95) is None


def test_the_table_has_every_method_with_its_lead_over_the_base_model(synthetic_study: Study, tmp_path: Path) -> None:
    results = synthetic_study.read()
    write_pass_at_k_table(results, tmp_path / "pass_at_k")
    table = pd.read_csv(tmp_path / "pass_at_k.csv")
    assert table["method"].to_list() == [row.method for row in results.conditions]
    assert table["base_ahead_from"].isna().to_list() == [row.method == BASE for row in results.conditions]
    assert f"k = {results.samples_per_problem}" in (tmp_path / "pass_at_k.md").read_text()


# The table of last and best policies, of two fabricated studies that stand for both.


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
    assert "of 2 checkpoints along each run" in text and "selected on" in text
    rows = [line for line in text.splitlines() if line.startswith("| DelTA")]
    assert ["†" in line for line in rows] == [False, True, False, True]  # in both tables of the best alone
    assert "Without chain_3 (%)" in text
    assert set(verify_outputs(tmp_path / "checkpoints.manifest.json", "table").inputs) > set(map(str, choices(best)))


def test_trainings_with_fewer_policies_are_said(synthetic_study: Study, best: Study, tmp_path: Path) -> None:
    paths = choices(best)
    write_json(paths[2], {**read_json(paths[2]), "averages": {"4": 0.75}})
    assert write(synthetic_study, best, paths, tmp_path / "checkpoints") == 0
    assert "of 1 to 2 checkpoints along each run" in (tmp_path / "checkpoints.md").read_text()


def test_a_choice_that_is_missing_is_refused(synthetic_study: Study, best: Study, tmp_path: Path) -> None:
    assert write(synthetic_study, best, choices(best)[1:], tmp_path / "checkpoints") == 2


# Known effects: rows of the shipped file, what each statistic measures, and the answer that an interval gives.

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


def test_every_row_has_ends_and_a_study_that_there_is() -> None:
    rows = read_phenomena(FILE)
    assert len(rows) > 20 and len({row.effect for row in rows}) == len(rows)
    for row in rows:
        assert row.reproduced or row.in_part
        assert row.study is None or row.study == read_yaml(CONFIG / f"{row.study}.yaml")["study"]


def test_weights_are_compared_as_bfloat16_rounds_them(evidence: Evidence, tmp_path: Path) -> None:
    row = evidence.results.condition("dapo")
    assert row is not None
    base = torch.linspace(-3, 3, 1000)
    shares = []
    for number, run in enumerate(row.runs):
        ours = base + 0.002 * (1 + number) * torch.sin(torch.arange(1000))
        shares.append(float((ours.bfloat16() == base.bfloat16()).double().mean()))
        for directory, weights in ((tmp_path / "runs" / run.run, ours), (tmp_path / "base" / run.base_model, base)):
            (directory / "checkpoint").mkdir(parents=True, exist_ok=True)
            save_file({"w": weights}, directory / "checkpoint" / "model.safetensors")
    estimate = weights_unchanged(Evidence(evidence.results, None, tmp_path / "runs"), "dapo")
    assert estimate is not None and estimate[0] == pytest.approx(np.mean(shares)) and 0 < estimate[0] < 1


def test_pass_at_k_is_compared_seed_by_seed(evidence: Evidence) -> None:
    results, k = evidence.results, evidence.results.samples_per_problem
    rows = [results.condition(name) for name in ("delta", "dapo")]
    scores = [
        [
            np.mean(
                [np.mean(np.array(results.scores[run.run, name].correct_counts) > 0) for name in results.benchmarks]
            )
            for run in row.runs
        ]
        for row in rows
        if row is not None
    ]
    estimate = pass_at_k_difference(evidence, "delta", "dapo")
    assert k > 1 and estimate is not None
    assert estimate[0] == pytest.approx(100 * np.mean(np.subtract(*scores)))
    alone = pass_at_k_difference(evidence, "delta", "dapo", k=1)
    ours, theirs = (results.average(row).by_seed for row in rows if row is not None)
    assert alone is not None and alone[0] == pytest.approx(100 * np.mean(np.subtract(ours, theirs)))
    assert pass_at_k_difference(evidence, "delta", "nobody") is None
    assert base_ahead_from(evidence, "dapo", k) is not None and base_ahead_from(evidence, "dapo", k + 1) is None
    fell = replace(results, fallen=frozenset({next(run.run for run in results.runs if run.method == "delta")}))
    assert pass_at_k_difference(replace(evidence, results=fell), "delta", "dapo") is None, "one seed is left"


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
        (None, "not measured for want of the runs of config/mine.yaml"),
    ],
)
def test_the_whole_interval_reproduces(estimate: tuple[float, tuple[float, float]] | None, said: str) -> None:
    ends = {"reproduced": (3.0, 9.0), "in_part": (1.0, 9.0)}
    row = Phenomenon(effect="x", source="y", published="z", statistic="gain", study="mine", **ends)
    assert answer(row, estimate) == said


def test_the_table_counts_the_answers(evidence: Evidence, tmp_path: Path) -> None:
    write_phenomena_table(evidence.results, FILE, evidence.training, tmp_path / "phenomena")
    answers = pd.read_csv(tmp_path / "phenomena.csv")["answer"]
    shown = (tmp_path / "phenomena.md").read_text()
    assert f"shows {(answers == 'reproduced').sum()} of {len(answers)} known effects" in shown
    assert "none [none, none]" not in answers.to_list()
    inputs = verify_outputs(tmp_path / "phenomena.manifest.json", "table").inputs
    read = [path for path in inputs if path.endswith("metrics.parquet")]
    assert {Path(path).parent.name for path in read} >= {
        run.run for run in evidence.results.runs if run.method == "dapo"
    }


def test_an_effect_that_another_study_shows_names_it(evidence: Evidence, tmp_path: Path) -> None:
    other, synthetic = tmp_path / "effects" / "results", evidence.results.sources
    for source in synthetic:
        target = other / ("scores" if source.parent.name == "scores" else "") / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    file = tmp_path / "mine.yaml"
    row = "effect: a, source: b, published: c, statistic: gain, arguments: {method: delta}, reproduced: [null, null]"
    nothing = replace(evidence.results, runs=tuple(run for run in evidence.results.runs if run.method != "delta"))
    for results, named, study, said in (
        (nothing, ", study: effects", ["effects"], "This study and those of effects show 1 of 1"),
        (nothing, "", [], "This study shows 0 of 1"),
        (evidence.results, ", study: effects", ["this study"], "This study shows 1 of 1"),
    ):
        file.write_text(f"rows: [{{{row}{named}}}]\n")
        write_phenomena_table(results, file, evidence.training, tmp_path / "table", (), [other])
        assert pd.read_csv(tmp_path / "table.csv")["study"].dropna().to_list() == study
        assert said in (tmp_path / "table.md").read_text()


def test_a_statistic_that_there_is_not_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rows: [{effect: a, source: b, published: c, statistic: gains}]\n")
    with pytest.raises(UserError, match=r"mine\.yaml: row 1: statistic: is 'gains' \(did you mean gain\?\); accepted"):
        read_phenomena(file)


@pytest.mark.parametrize(
    ("statistic", "said"),
    [
        ("base_ahead_from, arguments: {method: dapo}", "arguments: lacks samples"),
        ("base_ahead_from, arguments: {method: dapo, samples: many}", "arguments.samples: "),
        ("gain, arguments: {method: dapo, agianst: base}", "arguments: unknown key agianst; accepted: method, against"),
        ("gain, arguments: {method: dapo, benchmarks: hundreds_7}", "arguments.benchmarks: "),
        ("gain", "arguments: lacks method"),
    ],
)
def test_arguments_that_a_statistic_does_not_take_are_one_line(statistic: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"rows: [{{effect: a, source: b, published: c, statistic: {statistic}}}]\n")
    with pytest.raises(UserError, match=rf"mine\.yaml: row 1: {said}"):
        read_phenomena(file)
