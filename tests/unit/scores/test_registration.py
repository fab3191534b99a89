import json
from pathlib import Path
from typing import Any

import pytest

from evals.core.comparisons import Comparison
from evals.core.errors import UserError
from evals.core.files import fingerprint
from evals.scores.registration import Outcome, outcome, read_entries, register, registered_content

STUDY: dict[str, Any] = {
    "study": "mine",
    "seeds": [1, 2],
    "methods": {"dapo": {}, "delta": {}},
    "execution": {"device": "cpu"},
    "registration": {"method": "delta", "smallest_effect": 0.02},
}


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.001, 0.03), Outcome.SUPERIOR),
        ((0.025, 0.03), Outcome.SUPERIOR),
        ((0.001, 0.019), Outcome.EQUIVALENT),  # a difference, but of less than would matter
        ((-0.019, 0.019), Outcome.EQUIVALENT),
        ((-0.02, 0.01), Outcome.UNDECIDED),
        ((-0.001, 0.03), Outcome.UNDECIDED),
        ((-0.03, -0.001), Outcome.INFERIOR),
        (None, Outcome.UNDECIDED),
    ],
)
def test_the_interval_decides_against_the_smallest_effect(
    interval: tuple[float, float] | None, expected: Outcome
) -> None:
    comparison = Comparison.model_construct(confidence_interval=interval)
    assert outcome(comparison, 0.02) == expected


def test_a_change_is_a_further_entry_that_counts_what_could_have_been_seen(tmp_path: Path) -> None:
    path, manifests = tmp_path / "registration.json", [tmp_path / "a.json", tmp_path / "b.json"]
    assert register(STUDY, manifests, path)
    assert not register(STUDY | {"execution": {"device": "cuda"}, "study": "renamed"}, manifests, path)
    manifests[0].write_text("{}")
    assert register(STUDY | {"seeds": [1, 2, 3], "controls": {}}, manifests, path)
    first, second = read_entries(path)
    assert first.sha256 == fingerprint(registered_content(STUDY)) and (first.finished, first.changed) == (0, ())
    assert second.finished == 1 and second.changed == ("controls", "seeds")
    assert register(STUDY, manifests, path)  # going back is a change too
    assert [entry.sha256 for entry in read_entries(path)] == [first.sha256, second.sha256, first.sha256]


def test_a_study_without_a_registration_writes_nothing(tmp_path: Path) -> None:
    study = {key: value for key, value in STUDY.items() if key != "registration"}
    assert not register(study, [], tmp_path / "registration.json")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "registration.json"
    path.write_text(json.dumps([{"registered": "today"}]))
    with pytest.raises(UserError, match=r"registration\.json: entry 1: lacks"):
        register(STUDY, [], path)
