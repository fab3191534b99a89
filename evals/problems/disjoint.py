"""Check that no evaluation problem was trained on, on the bytes of the files themselves.

A problem is trained on if its text stands in training, but for case and white space, or nearly: if most of its runs
of :data:`RUN_LENGTH` words stand in one training problem. Texts too short to have :data:`FEWEST_RUNS` such runs say
too little for that and are compared as a whole only; so are generated problems, which differ by a digit or a sign
from one another.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_json
from evals.problems.arithmetic import FAMILIES
from evals.problems.problem_set import load

RUN_LENGTH = 8
FEWEST_RUNS = 8
NEARLY_ALL = 0.7
"""Share of a problem's runs in one training problem from which on it counts as the same."""

_MOST_LISTED = 200
"""Training problems that a message lists; a set that shares more with a benchmark is no set to take them from."""

_WORD = re.compile(r"[a-z]+|\d+")


def _normalise(statement: str) -> str:
    return "".join(statement.split()).casefold()


def _word_runs(statement: str) -> frozenset[tuple[str, ...]]:
    """Every run of :data:`RUN_LENGTH` words and numbers; signs and the way that formulas are set do not matter."""
    words = _WORD.findall(statement.casefold())
    return frozenset(tuple(words[start : start + RUN_LENGTH]) for start in range(len(words) - RUN_LENGTH + 1))


@dataclass(frozen=True)
class Evaluated:
    """A benchmark's problems, for comparison with training problems."""

    whole: Mapping[str, str]  # text without case and white space -> id
    runs: Mapping[tuple[str, ...], Sequence[str]]  # word run -> ids of the problems that have it; of long ones only
    counts: Mapping[str, int]  # id -> number of its runs

    @classmethod
    def of(cls, problems: Mapping[str, str], generated: Collection[str] = ()) -> Evaluated:
        """Index texts by id -> text; ``generated`` are the ids of those that are compared as a whole only."""
        runs: dict[tuple[str, ...], list[str]] = defaultdict(list)
        counts = {}
        for identifier, text in problems.items():
            found = _word_runs(text)
            if len(found) >= FEWEST_RUNS and identifier not in generated:
                counts[identifier] = len(found)
                for run in found:
                    runs[run].append(identifier)
        return cls({_normalise(text): identifier for identifier, text in problems.items()}, runs, counts)

    def trained_on(self, text: str) -> tuple[str, str] | None:
        """The problem that a training text is, or nearly is, and which of the two; None if it is none."""
        if (same := self.whole.get(_normalise(text))) is not None:
            return same, "also"
        shared = Counter(identifier for run in _word_runs(text) for identifier in self.runs.get(run, ()))
        for identifier, count in shared.most_common(1):
            if count >= NEARLY_ALL * self.counts[identifier]:
                return identifier, "nearly word for word"
        return None


def check_disjoint(benchmark: Path, out: Path, trained_on: Sequence[Path] = ()) -> None:
    """Fail if a benchmark's problem was trained on; otherwise write what was compared.

    Args:
        benchmark: directory of the benchmark's problems.
        trained_on: JSONL files with a problem a row.
    """
    path = benchmark / "problems.jsonl"
    evaluated_on = load(benchmark).problems
    problems = {str(each.id): each.problem for each in evaluated_on}
    evaluated = Evaluated.of(problems, {str(each.id) for each in evaluated_on if each.family in FAMILIES})
    rows_checked = {}
    for other in trained_on:
        trained = read_jsonl(other, required=("problem",))
        shared = [
            (number, row, match)
            for number, row in enumerate(trained, start=1)
            if (match := evaluated.trained_on(row["problem"])) is not None
        ]
        if shared:  # name the first, and all training problems to leave out if they have ids
            number, _, (identifier, how) = shared[0]
            ids = [str(row["id"]) for _, row, _ in shared if "id" in row]
            remedy = (
                f"; a published set without them, where the study names it: exclude: [{', '.join(ids)}]" if ids else ""
            )
            if len(ids) > _MOST_LISTED:
                remedy = f"; the same holds of {len(ids) - 1} more training problems"
            raise UserError(f"{path}: problem {identifier} is {how} trained on ({other}, line {number}){remedy}")
        rows_checked[str(other)] = {"rows": len(trained), "sha256": sha256_file(other)}
    finding = {"benchmark": benchmark.name, "problems": len(problems), "sha256": sha256_file(path)}
    content = {**finding, "trained_on": rows_checked, "shared": 0}
    write_json(out, {**content, "fingerprint": fingerprint(content)})
