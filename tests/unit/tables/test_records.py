import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import InvalidInput, UserError
from evals.core.records import BASE, read_runs
from evals.results import Results, read_results
from tests.unit.synthetic_results import Study


def _read(study: Study) -> Results:
    return read_results(study.runs_file, study.scores, study.comparisons)


def _edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_conditions_are_methods_in_study_order_with_the_base_model_first(editable_study: Study) -> None:
    _edit(editable_study.runs_file, lambda runs: runs.append(runs.pop(0)))  # the base model now stands last
    conditions = _read(editable_study).conditions
    assert [condition.method for condition in conditions] == [BASE, "grpo", "dapo", "delta"]
    assert [condition.seeds for condition in conditions] == [(), (1, 2), (1, 2), (1, 2)]


def test_unknown_keys_are_passed_over(editable_study: Study) -> None:
    _edit(editable_study.scores[0], lambda content: content["scores"][0].update(future=1))
    _edit(editable_study.comparisons, lambda content: content.update(future=1))
    _read(editable_study)


@pytest.mark.parametrize("key", ["average_at_k", "correct_counts", "truncation_rate"])
def test_a_score_without_a_key_is_named(editable_study: Study, key: str) -> None:
    path = editable_study.scores[0]
    _edit(path, lambda content: content["scores"][2].pop(key))
    with pytest.raises(InvalidInput) as error:
        _read(editable_study)
    assert (error.value.source, error.value.key, error.value.found) == (str(path), "scores.2", f"lacks {key}")


@pytest.mark.parametrize(("counts", "accepted"), [([1] * 11, "12"), ([33] * 12, "0..32"), ([-1] * 12, "0..32")])
def test_counts_that_do_not_fit_the_benchmark_are_named(
    editable_study: Study, counts: list[int], accepted: str
) -> None:
    _edit(editable_study.scores[0], lambda content: content["scores"][2].update(correct_counts=counts))
    with pytest.raises(InvalidInput, match=rf"tiny-grpo-s2: correct_counts has .*accepted: {accepted}$"):
        _read(editable_study)


def test_a_comparison_without_a_key_is_named(editable_study: Study) -> None:
    _edit(editable_study.comparisons, lambda content: content["comparisons"][0].pop("verdict"))
    with pytest.raises(InvalidInput) as error:
        _read(editable_study)
    assert (error.value.key, error.value.found) == ("comparisons.0", "lacks verdict")


def test_a_run_without_a_score_is_named(editable_study: Study) -> None:
    _edit(editable_study.scores[1], lambda content: content["scores"].pop(1))
    with pytest.raises(UserError, match=r"nested_sums\.json: scores: no score for tiny-grpo-s1"):
        _read(editable_study)


def test_a_method_without_a_comparison_is_named(editable_study: Study) -> None:
    def drop(content: Any) -> None:
        content["comparisons"] = [row for row in content["comparisons"] if row["method"] != "delta"]

    _edit(editable_study.comparisons, drop)
    with pytest.raises(UserError, match=r"comparisons: none of tiny delta against dapo on chain_3"):
        _read(editable_study)


def test_benchmarks_with_different_k_are_refused(editable_study: Study) -> None:
    _edit(editable_study.scores[0], lambda content: content.update(samples_per_problem=64))
    with pytest.raises(UserError, match=r"samples_per_problem: .* 64 of chain_3, 32 of"):
        _read(editable_study)


@pytest.mark.parametrize("content", ["{}", "[]", '[{"run": "x"}]', "[3]", "["])
def test_a_run_list_that_is_none_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "runs.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"runs\.json") as caught:
        read_runs(path)
    assert "\n" not in str(caught.value)
