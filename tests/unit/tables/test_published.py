"""Published numbers: the project's own files, what a wrong line says, and when a number compares."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evals.core.errors import InvalidInput
from evals.core.records import BASE
from evals.results import Results
from evals.tables.published import AVERAGES, Published, compare_with_papers, read_reference, write_paper_vs_ours_table
from tests.statistics.populations import wilson_interval
from tests.unit.synthetic_results import full_size_results

REFERENCE = Path(__file__).resolve().parents[3] / "config" / "reference"
SETTINGS = {
    "temperature": 1.0,
    "top_p": 0.7,
    "max_new_tokens": 96,
    "training_problems": "generated",
    "checkpoint": "last",
    "evaluation_prompt": "that of training",
}
PAPER = {"citation": "Someone, 2026", "note": None, **SETTINGS}


def published(value: float, **changes: Any) -> Published:
    row = Published(
        paper="P", arxiv="2600.00001", table="Table 1", model="tiny", method="dapo", row="DAPO", benchmark="chain_3",
        metric="avg@32", value=value, certainty="published",
    )  # fmt: skip
    return row.model_copy(update=changes)


def test_the_projects_own_files_are_well_formed_and_name_methods_of_the_catalogue() -> None:
    rows, settings = read_reference(REFERENCE)
    catalogue = (REFERENCE.parent / "methods.yaml").read_text()
    assert len(rows) > 250
    assert all(row.arxiv in settings for row in rows)
    assert all(row.method == "base" or f"\n{row.method}:\n" in catalogue for row in rows)


def test_a_papers_average_is_the_mean_of_its_benchmarks() -> None:
    """30 problems each, HMMT February 2026 has 33; where a row lacks a benchmark, the settings name all."""
    rows, settings = read_reference(REFERENCE)
    weights, checked, incomplete = {"hmmt_feb_2026": 33}, 0, 0
    for average in rows:
        if average.benchmark not in AVERAGES or average.metric not in ("avg@16", "avg@32", "mean of 6"):
            continue
        same = (average.table, average.model, average.row)
        cells = {row.benchmark: row.value for row in rows if (row.table, row.model, row.row) == same}
        parts = settings[average.arxiv].get("averages", {}).get(average.benchmark, set(cells) - {average.benchmark})
        if not set(parts) <= set(cells):
            incomplete += 1
            continue
        weighted = {name: weights.get(name, 30) if "weighted" in average.benchmark else 1 for name in parts}
        mean = sum(weighted[name] * cells[name] for name in parts) / sum(weighted.values())
        assert mean == pytest.approx(average.value, abs=0.011), average
        checked += 1
    assert checked > 20 and incomplete == 6


@pytest.mark.parametrize(
    ("line", "key", "accepted"),
    [
        ("P,2600.00001,T,m,dapo,r,b,avg@16,abc,published", "value", "a number"),
        ("P,2600.00001,T,m,dapo,r,b,avg@16,120,published", "value", "at most 100"),
        ("P,2600.00001,T,m,dapo,r,b,avg@16,12,guessed", "certainty", "published, column inferred, third-party text"),
        ("P,2600.00001,T,m,,r,b,avg@16,12,published", "method", "at least 1"),
    ],
)
def test_a_wrong_line_is_named(line: str, key: str, accepted: str, tmp_path: Path) -> None:
    header = (REFERENCE / "published.csv").read_text().splitlines()[0]
    path = tmp_path / "published.csv"
    path.write_text(f"{header}\n{line}\n")
    with pytest.raises(InvalidInput) as error:
        read_reference(tmp_path)
    assert (error.value.source, error.value.key, error.value.accepted) == (f"{path}: line 2", key, accepted)


@pytest.mark.parametrize("content", ["", "paper,value\n"])
def test_a_file_with_other_columns_or_none_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    path.write_text(content)
    with pytest.raises(InvalidInput) as error:
        read_reference(tmp_path)
    assert error.value.source == str(path)
    assert error.value.accepted == (REFERENCE / "published.csv").read_text().splitlines()[0].replace(",", ", ")


def test_settings_have_to_be_complete(tmp_path: Path) -> None:
    path, row = tmp_path / "settings.yaml", published(1.0).to_json()
    (tmp_path / "published.csv").write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
    path.write_text("'2600.00001': {citation: x, note: null, temperature: 1.0}\n")
    with pytest.raises(InvalidInput) as error:
        read_reference(tmp_path)
    assert error.value.source == f"{path}: 2600.00001"
    lacking = "top_p, max_new_tokens, training_problems, checkpoint, evaluation_prompt"
    assert error.value.found == f"lacks {lacking}"


def test_inside_outside_and_not_comparable(results: Results) -> None:
    """A study whose settings are those of the paper: only then is there a verdict on the number."""
    k = results.samples_per_problem
    own = {"models": {"tiny": "tiny"}, **SETTINGS}
    settings = {"2600.00001": PAPER}
    (ours,) = compare_with_papers(results, [published(50.0, metric=f"avg@{k}")], settings, own)
    low, high = 100 * ours["confidence_low"], 100 * ours["confidence_high"]

    def verdict(value: float, **changes: Any) -> str:
        rows = [published(value, **{"metric": f"avg@{k}", **changes})]
        return compare_with_papers(results, rows, settings, own)[0]["verdict"]

    assert verdict(100 * ours["ours"]) == "inside"
    assert verdict(low) == "inside"
    assert verdict(low - 3.25) == "outside by 3.2"
    assert verdict(min(high + 2.0, 100.0)).startswith("outside by")
    assert verdict(50.0, model="Qwen3-8B-Base") == "not comparable"
    unknown = {"2600.00001": PAPER | {"temperature": None}}
    one = compare_with_papers(results, [published(50.0, metric=f"avg@{k}")], unknown, own)[0]
    assert one["verdict"].endswith(", as far as published") and one["published"] == 0.5
    assert (one["differing"], one["unknown"]) == ("", "temperature (not given, 1.0)")


def test_no_published_number_compares_with_a_tiny_model_which_one_line_says(results: Results, tmp_path: Path) -> None:
    own = {"models": {"tiny": "tiny, trained from scratch"}, **SETTINGS}
    compared = compare_with_papers(results, *read_reference(REFERENCE), own)
    for one in compared:
        assert one["verdict"] == "not comparable"
        for what in ("model", "benchmark", "training problems"):
            assert any(each.startswith(f"{what} (") for each in one["differs"].split("; ")), one
    write_paper_vs_ours_table(results, REFERENCE, own, tmp_path / "table")
    text = (tmp_path / "table.md").read_text()
    assert f"None of {len(compared)} published numbers is of a model and a benchmark" in text and "arXiv" not in text
    assert len((tmp_path / "table.csv").read_text().splitlines()) == len(compared) + 1 > 50


def test_a_number_of_our_model_and_benchmark_brings_the_others_and_their_notes(tmp_path: Path) -> None:
    own = {"models": {"m": "Qwen3-8B-Base"}, **SETTINGS}
    results = full_size("delta", 16)
    write_paper_vs_ours_table(results, REFERENCE, own, tmp_path / "table")
    text, compared = (tmp_path / "table.md").read_text(), compare_with_papers(results, *read_reference(REFERENCE), own)
    assert sum(line.startswith("| ") for line in text.splitlines()) == len(compared) + 2
    assert f"0 of {len(compared)} published numbers" in text and "and 0 as far as" in text
    assert "\narXiv 2605.21467: " in text and "DelTA (arXiv 2605.21467), Table 3, row DelTA" in text


SIZES = {
    "aime_2024": 30, "aime_2025": 30, "aime_2026": 30, "hmmt_feb_2025": 30, "hmmt_nov_2025": 30, "hmmt_feb_2026": 33,
    "brumo_2025": 30,
}  # fmt: skip
"""The benchmarks of DelTA's table."""


def full_size(method: str, samples: int, sizes: dict[str, int] = SIZES) -> Results:
    return full_size_results({"m": [method]}, sizes, samples)


def test_every_verdict_can_occur_on_results_of_full_size() -> None:
    results, (published_rows, settings) = full_size("delta", 16), read_reference(REFERENCE)
    rows = [row for row in published_rows if row.table == "Table 3" and row.model == "Qwen3-8B-Base"]
    paper = settings["2605.21467"]
    own = {"models": {"m": "Qwen3-8B-Base"}, **{name: paper[name] for name in SETTINGS}}
    ours = {one["benchmark"]: 100 * one["ours"] for one in compare_with_papers(results, rows, settings, own)}

    def verdicts(shift: float, own: dict[str, Any] = own, **changes: Any) -> set[str]:
        """Of published numbers that lie beside ours."""
        values = {name: min(100.0, value + shift) for name, value in ours.items()}
        moved = [row.model_copy(update={"value": values[row.benchmark]}) for row in rows if row.method == "delta"]
        compared = compare_with_papers(results, moved, {"2605.21467": paper | changes}, own)
        return {re.sub(r" by [\d.]+", "", one["verdict"]) for one in compared}

    assert (verdicts(0.0), verdicts(40.0)) == ({"inside"}, {"outside"})
    assert verdicts(0.0, top_p=None) == {"inside, as far as published"}
    assert verdicts(40.0, top_p=None) == {"outside, as far as published"}
    assert verdicts(0.0, own | {"checkpoint": "last"}) == {"not comparable"}


def test_a_papers_average_is_ours_over_its_benchmarks_with_its_weights() -> None:
    results, (rows, settings) = full_size("delta", 16), read_reference(REFERENCE)
    own = {"models": {"m": "Qwen3-8B-Base"}, **{name: settings["2605.21467"][name] for name in SETTINGS}}
    averages = [one for one in compare_with_papers(results, rows, settings, own) if one["benchmark"] in AVERAGES]
    counts = {name: np.array(results.scores["m-delta", name].correct_counts) for name in SIZES}
    by_table = {one["table"]: one for one in averages if one["published_model"] == "Qwen3-8B-Base"}
    every = np.concatenate(list(counts.values())).mean() / 16
    assert by_table["Table 3"]["ours"] == pytest.approx(every)
    four = ("aime_2025", "aime_2026", "hmmt_nov_2025", "hmmt_feb_2026")
    of_four = np.concatenate([counts[name] for name in four]).mean() / 16
    assert by_table["Table 4: Component ablation"]["ours"] == pytest.approx(of_four)
    assert by_table["Table 4: Component ablation"]["verdict"].split(" by ")[0] in ("inside", "outside")
    # Over benchmarks that we do not have, ours is the mean of ours, and says so.
    assert any("benchmark (Avg(problem-weighted), mean of ours)" in one["differing"] for one in averages)
    alone = [
        row for row in rows if row.table == "Table 3" and row.benchmark in AVERAGES
    ]  # without the benchmarks that it is of
    assert all(
        "benchmark (Avg(problem-weighted), mean of ours)" in one["differing"]
        for one in compare_with_papers(results, alone, settings, own)
    )


@pytest.mark.parametrize(
    ("metric", "value"), [("pass@16", "any right"), ("pass@2", "one of two"), ("cons@16", 0.5), ("avg@8", "mean")]
)
def test_every_metric_that_we_compute_is_matched(metric: str, value: float | str) -> None:
    """More samples measure the same average more exactly; pass@k and the majority depend on k."""
    results = full_size("delta", 16)
    own = {"models": {"m": "tiny"}, **SETTINGS}
    one = compare_with_papers(
        results, [published(50.0, method="delta", benchmark="aime_2024", metric=metric)], {"2600.00001": PAPER}, own
    )
    counts = np.array(results.scores["m-delta", "aime_2024"].correct_counts)
    wrong = 16 - counts
    both_wrong = wrong * (wrong - 1) / (16 * 15)
    expected = {
        "any right": (counts > 0).mean(), "mean": counts.mean() / 16, "one of two": 1 - both_wrong.mean()
    }.get(str(value), value)  # fmt: skip
    assert one[0]["ours"] == pytest.approx(expected) and not one[0]["differing"]
    if metric == "pass@16":  # too few problems have no right sample
        assert (counts == 0).sum() < 8 and one[0]["verdict"] == "no interval"
        row, silent = published(50.0, method="delta", benchmark="aime_2024", metric=metric), PAPER | {"top_p": None}
        (one_silent,) = compare_with_papers(results, [row], {"2600.00001": silent}, own)
        assert one_silent["verdict"] == "no interval, as far as published"
        return
    low, high = one[0]["confidence_low"], one[0]["confidence_high"]
    assert low < one[0]["ours"] < high
    if metric == "cons@16":  # 15 of 30 problems: all that is known of the votes
        ends = wilson_interval([1.0] * 15 + [0.0] * 15, 1)
        assert (low, high) == pytest.approx(tuple(map(float, ends)), abs=0.01)


@pytest.mark.parametrize("metric", ["pass@1024", "cons@8"])
def test_a_metric_of_another_k_differs(metric: str) -> None:
    other = published(50.0, method="delta", benchmark="aime_2024", metric=metric)
    own = {"models": {"m": "tiny"}, **SETTINGS}
    (one,) = compare_with_papers(full_size("delta", 16), [other], {"2600.00001": PAPER}, own)
    assert one["differing"] == f"metric ({metric}, avg@16)"


def test_a_majority_that_was_not_computed_is_no_number() -> None:
    results = full_size("delta", 16, {"aime_2024": 30})
    scores = {key: score.model_copy(update={"majority_at_k": None}) for key, score in results.scores.items()}
    row = published(50.0, method="delta", benchmark="aime_2024", metric="cons@16")
    own = {"models": {"m": "tiny"}, **SETTINGS}
    (one,) = compare_with_papers(replace(results, scores=scores), [row], {"2600.00001": PAPER}, own)
    assert one["differing"] == "metric (cons@16, avg@16)"


def test_an_average_over_benchmarks_of_which_the_row_lacks_one_is_over_all() -> None:
    rows, settings = read_reference(REFERENCE)
    results = full_size("ppl", 32, {"aime_2024": 30, "aime_2025": 30, "amc_2022_2023": 83})
    own = {"models": {"m": "Qwen2.5-Math-7B"}, **{name: settings["2603.22117"][name] for name in SETTINGS}}
    found = [one for one in compare_with_papers(results, rows, settings, own) if one["method"] == "ppl"]
    (one,) = (one for one in found if (one["benchmark"], one["metric"]) == ("Average(3)", "avg@32"))
    counts = [np.mean(results.scores["m-ppl", name].correct_counts) / 32 for name in results.benchmarks]
    assert one["ours"] == pytest.approx(np.mean(counts)) and not one["differing"]


def test_a_model_without_a_name_in_papers_compares_with_nothing() -> None:
    results, row = full_size("delta", 16), published(50.0, method="delta", benchmark="aime_2024")
    own = {"models": {"m": None}, **SETTINGS}
    (one,) = compare_with_papers(results, [row], {"2600.00001": PAPER}, own)
    assert one["verdict"] == "not comparable" and one["differing"] == "model (tiny, not named: published_as)"


def test_a_method_that_a_model_changes_stands_beside_the_entry_that_it_is() -> None:
    rows = [published(1.0, method="fipo"), published(2.0, method="fipo_symmetric_range")]
    results = full_size("fipo", 16)
    own = {"models": {"m": "tiny"}, "methods": {"m": {"fipo": "fipo_symmetric_range"}}, **SETTINGS}
    (one,) = compare_with_papers(results, rows, {"2600.00001": PAPER}, own)
    assert (one["published"], one["method"]) == (0.02, "fipo")


def test_a_number_stands_beside_its_papers_reference_where_that_is_one_number(results: Results) -> None:
    own, reference = {"models": {"tiny": "tiny"}, **SETTINGS}, results.reference_method
    rows = [
        published(40.0, method=reference, benchmark="Avg"),
        published(43.5, method="delta", benchmark="Avg", row="M"),
        published(10.0, method="delta", row="M"),  # the reference has no number of this benchmark
        published(20.0, method="delta", table="Table 2", benchmark="amc", row="M"),
        published(19.0, method=reference, table="Table 3", benchmark="amc"),
        published(30.0, method="delta", table="Table 2", benchmark="math", row="M"),
        *(published(29.0 + place, method=reference, table=f"Table {3 + place}", benchmark="math") for place in (0, 1)),
    ]
    ours = [one for one in compare_with_papers(results, rows, {"2600.00001": PAPER}, own) if one["method"] == "delta"]
    assert [one["their_difference"] for one in ours] == [pytest.approx(0.035), None, pytest.approx(0.01), None]
    assert all(
        one["their_difference"] is None for one in compare_with_papers(results, rows[:1], {"2600.00001": PAPER}, own)
    )


def test_each_model_shows_its_own_difference_beside_the_published_one(results: Results) -> None:
    others = tuple(run.model_copy(update={"model": "other", "run": f"other-{run.run}"}) for run in results.runs)
    scores = {(f"other-{run}", name): score for (run, name), score in results.scores.items()}
    comparisons = {
        ("other", *key): row.model_copy(update={"difference": row.difference + 0.1})
        for (_, *key), row in results.comparisons.items()
    }
    both = replace(
        results,
        runs=(*results.runs, *others),
        scores={**results.scores, **scores},
        comparisons={**results.comparisons, **comparisons},
    )
    reference = results.reference_method
    compared = [row for row in both.conditions if row.method not in (BASE, reference)]
    method = compared[0].method
    own = {"models": {"tiny": "tiny", "other": "tiny"}, **SETTINGS}
    found = compare_with_papers(both, [published(43.5, method=method, benchmark="Avg")], {"2600.00001": PAPER}, own)
    shown = {(one["model"], one["method"]): one["our_difference"] for one in found}
    expected = {(row.model, row.method): both.comparison(row, reference) for row in compared if row.method == method}
    assert shown == {row: comparison.difference for row, comparison in expected.items() if comparison}
    assert len(set(shown.values())) == 2
