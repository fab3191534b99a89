"""Check that no evaluation problem was trained on, on the bytes of the files themselves.

A problem is trained on if its text stands in training, but for case and white space, or nearly: if most of its runs
of :data:`RUN_LENGTH` words stand in one training problem. Texts too short to have :data:`FEWEST_RUNS` such runs say
too little for that and are compared as a whole only; so are generated problems, which differ by a digit or a sign
from one another.

A problem that is a training problem with other numbers is no error, but listed as a near copy: with numbers and number
words masked, the two share nine tenths of their words.
"""

from __future__ import annotations

import math
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

NEAR_COPY = 0.9
"""Share of the masked words of two problems, of all that either has, from which on one is a near copy of the other."""

FEWEST_WORDS = 8
"""Masked words that a problem has to have for that: "Compute # + #" says too little."""

_MOST_LISTED = 200
"""Training problems that a message lists; a set that shares more with a benchmark is no set to take them from."""

_WORD = re.compile(r"[a-z]+|\d+")
_UNITS = "one|two|three|four|five|six|seven|eight|nine"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_NUMBER = re.compile(
    rf"\d+(?:[.,]\d+)*|\b(?:zero|{_UNITS}|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    rf"|(?:{_TENS})(?:[- ](?:{_UNITS}))?|hundreds?|thousands?|millions?|billions?|dozens?|half|twice|thrice)\b"
)


def _normalise(statement: str) -> str:
    return "".join(statement.split()).casefold()


def _word_runs(statement: str) -> frozenset[tuple[str, ...]]:
    """Every run of :data:`RUN_LENGTH` words and numbers; signs and the way that formulas are set do not matter."""
    words = _WORD.findall(statement.casefold())
    return frozenset(tuple(words[start : start + RUN_LENGTH]) for start in range(len(words) - RUN_LENGTH + 1))


def masked_words(statement: str) -> list[str]:
    """The words of a problem in their order, every number and number word as #."""
    return re.findall(r"[a-z]+|#", _NUMBER.sub(" # ", statement.casefold()))


@dataclass(frozen=True)
class MaskedTexts:
    """The masked words of a benchmark's problems, to find those of which a training problem is a near copy."""

    words: Mapping[str, frozenset[str]]  # id -> its masked words, of which there are enough
    with_word: Mapping[str, Sequence[str]]  # a word -> ids of the problems that have it among their rarest

    @classmethod
    def of(cls, problems: Mapping[str, str]) -> MaskedTexts:
        """Index texts by id -> text: a near copy of one has one at least of so many of its rarest words."""
        all_words = {identifier: frozenset(masked_words(text)) for identifier, text in problems.items()}
        words = {identifier: masked for identifier, masked in all_words.items() if len(masked) >= FEWEST_WORDS}
        counts = Counter(word for masked in words.values() for word in masked)
        with_word: dict[str, list[str]] = defaultdict(list)
        for identifier, masked in words.items():
            rarest = sorted(masked, key=lambda word: (counts[word], word))
            for word in rarest[: len(masked) - math.ceil(NEAR_COPY * len(masked)) + 1]:
                with_word[word].append(identifier)
        return cls(words, with_word)

    def copies(self, text: str) -> set[str]:
        """The problems that a training text is a near copy of."""
        words = frozenset(masked_words(text))
        candidates = {identifier for word in words for identifier in self.with_word.get(word, ())}
        return {other for other in candidates if _overlap(words, self.words[other]) >= NEAR_COPY}

    @property
    def repeated(self) -> list[list[str]]:
        """Groups of problems that are near copies of one another, by way of others too."""
        group_of = {identifier: {identifier} for identifier in self.words}
        for identifier, words in self.words.items():
            for other in {each for word in words for each in self.with_word.get(word, ())}:
                if _overlap(words, self.words[other]) >= NEAR_COPY and group_of[other] is not group_of[identifier]:
                    group_of[identifier] |= group_of[other]
                    group_of.update(dict.fromkeys(group_of[other], group_of[identifier]))
        groups = {id(group): sorted(group) for group in group_of.values() if len(group) > 1}
        return sorted(groups.values())


def _overlap(one: Collection[str], other: Collection[str]) -> float:
    """The share of the words of both among those of either."""
    shared = len(set(one) & set(other))
    return shared / (len(one) + len(other) - shared)


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
            word_runs = _word_runs(text)
            if len(word_runs) >= FEWEST_RUNS and identifier not in generated:
                counts[identifier] = len(word_runs)
                for run in word_runs:
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
    generated = {str(each.id) for each in evaluated_on if each.family in FAMILIES}
    evaluated = Evaluated.of(problems, generated)
    masked = MaskedTexts.of({identifier: text for identifier, text in problems.items() if identifier not in generated})
    rows_checked, near_copies = {}, dict[str, str]()
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
        for number, row in enumerate(trained, start=1):
            for identifier in masked.copies(row["problem"]):
                near_copies.setdefault(identifier, f"{other}, line {number}")
        rows_checked[str(other)] = {"rows": len(trained), "sha256": sha256_file(other)}
    if near_copies:
        first = min(near_copies)
        print(
            f"{path}: {len(near_copies)} of {len(problems)} problems are training problems but for their numbers, such "
            f"as {first} ({near_copies[first]}); {out} lists them",
            flush=True,
        )
    finding = {"benchmark": benchmark.name, "problems": len(problems), "sha256": sha256_file(path)}
    content = {**finding, "trained_on": rows_checked, "shared": 0}
    content |= {"near_copies": dict(sorted(near_copies.items())), "repeated": masked.repeated}
    topics: dict[str, list[str]] = {}
    for each in evaluated_on:
        topics.setdefault(each.topic or "", []).append(str(each.id))
    content |= {"topics": topics} if set(topics) != {""} else {}
    write_json(out, {**content, "fingerprint": fingerprint(content)})
