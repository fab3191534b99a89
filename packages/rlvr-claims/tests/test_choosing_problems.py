"""The first problems of a benchmark as the set that thresholds of decoding are chosen on."""

from functools import partial
from pathlib import Path

import pytest

from evals.core.errors import UserError
from evals.core.files import write_jsonl
from evals.core.manifest import Manifest, hash_files
from evals.problems.arithmetic import write_problems
from evals.problems.problem_set import load
from rlvr_claims.decoding.jobs import take_problems


def test_the_first_problems_of_a_benchmark_are_a_set_of_their_own(tmp_path: Path) -> None:
    write_problems("b", [{"family": "chain", "operands": 3}], "evaluation", 5, 1, tmp_path / "b")
    take = partial(take_problems, tmp_path / "b", tmp_path / "few")
    take(3)
    assert load(tmp_path / "few").problems == load(tmp_path / "b").problems[:3]
    take()
    assert load(tmp_path / "few").problems == load(tmp_path / "b").problems
    for count in (6, 0, -1):
        with pytest.raises(UserError, match=f"has 5 problems, and {count} are to be taken"):
            take(count)


@pytest.mark.parametrize(
    ("files", "gated", "words"),
    [(("problems", "tests"), {}, "has tests beside its problems"), (("problems",), {"gated": True}, "is gated")],
)
def test_a_benchmark_with_tests_and_a_gated_one_are_not_taken_from(
    files: tuple[str, ...], gated: dict[str, bool], words: str, tmp_path: Path
) -> None:
    for name in files:
        write_jsonl(tmp_path / "b" / f"{name}.jsonl", [{"id": "p", "problem": "Add.", "answer": "1"}])
    outputs = hash_files(tmp_path / "b", *(tmp_path / "b").iterdir())
    Manifest("problems", {}, outputs, gated, "x").write(tmp_path / "b" / "manifest.json")
    with pytest.raises(UserError, match=words):
        take_problems(tmp_path / "b", tmp_path / "few")
