import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import UserError
from evals.core.records import BASE
from tests.unit.synthetic_results import Study


def _edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_conditions_are_methods_in_study_order_with_the_base_model_first(editable_study: Study) -> None:
    _edit(editable_study.runs_file, lambda runs: runs.append(runs.pop(0)))  # the base model now stands last
    conditions = editable_study.read().conditions
    assert [condition.method for condition in conditions] == [BASE, "grpo", "dapo", "delta"]
    assert [condition.seeds for condition in conditions] == [(), (1, 2), (1, 2), (1, 2)]


def test_unknown_keys_are_passed_over(editable_study: Study) -> None:
    _edit(editable_study.scores[0], lambda content: content["scores"][0].update(future=1))
    _edit(editable_study.comparisons, lambda content: content.update(future=1))
    editable_study.read()


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("scores/chain_3", lambda content: content["scores"][2].pop("average_at_k"), "scores.2: lacks average_at_k"),
        ("scores/chain_3", lambda content: content["scores"][2].pop("correct_counts"), "scores.2: lacks correct_co"),
        ("scores/chain_3", lambda content: content["scores"][2].update(correct_counts=[1] * 11), "accepted: 12"),
        ("scores/chain_3", lambda content: content["scores"][2].update(correct_counts=[33] * 12), "accepted: 0..32"),
        ("scores/chain_3", lambda content: content["scores"][2].update(correct_counts=[-1] * 12), "accepted: 0..32"),
        ("scores/chain_3", lambda content: content.update(samples_per_problem=64), "64 of chain_3, 32 of nested_sums"),
        ("scores/nested_sums", lambda content: content["scores"].pop(1), "scores: no score for tiny-grpo-s1"),
        ("comparisons", lambda content: content["comparisons"][0].pop("verdict"), "comparisons.0: lacks verdict"),
        ("comparisons", lambda content: content["comparisons"].pop(0), "comparisons: none of tiny grpo against dapo"),
    ],
)
def test_partial_results_refused(editable_study: Study, file: str, change: Callable[[Any], object], said: str) -> None:
    _edit(editable_study.results / f"{file}.json", change)
    with pytest.raises(UserError) as error:
        editable_study.read()
    assert said in str(error.value) and "\n" not in str(error.value)
