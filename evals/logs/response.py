"""The record of a response in another tool's log, and its grade by that tool's own score."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from evals.core.records import MATCH, FinishReason, Grade, Sample
from evals.grading.visible import opens_thinking

_WORDS = {"c": 1.0, "i": 0.0, "n": 0.0, "p": 0.5, "true": 1.0, "false": 0.0}
"""The values in words: inspect_ai's correct, incorrect, no answer and partial, and those of CSV files."""


@dataclass(frozen=True)
class Judgement:
    """The value of one of a tool's scores for a response."""

    value: Any  # as it stands in the log
    answer: str | None = None  # that the tool took from the text; empty: it found none, None: the log does not say
    samples: int = 1  # the number of samples that the value is the mean of


@dataclass(frozen=True)
class Response:
    """The texts that a policy gave to a problem and that are judged together, usually one."""

    problem_id: str
    judgements: Mapping[str, Judgement]  # name of a score -> what it says
    texts: Sequence[str] = ()
    gold: str | None = None  # the reference answer
    tokens: Sequence[int] = ()  # lengths of the texts in their order; empty where the log does not say
    ends: Sequence[FinishReason | None] = ()  # how they ended, likewise
    prompt: str = ""  # as far as the log says; it may end in the opening of thinking


@dataclass(frozen=True)
class Log:
    """The responses of one policy to one benchmark, read from ``path``."""

    path: Path
    run: str
    benchmark: str
    responses: Sequence[Response]

    @property
    def scores(self) -> list[str]:
        """The names of all scores, in the order met."""
        return list(dict.fromkeys(name for response in self.responses for name in response.judgements))


@dataclass(frozen=True)
class Judging:
    """The choice among the verdicts of a log."""

    score: str | None = None  # of a log's scores the one that says what is correct; its beginning up to a comma will do
    correct_from: float | None = None  # a score from this value on is correct; without it only 0 and 1 are accepted
    regrade: bool = False  # grade the texts of other tools' logs with our grader, against the answers in the log

    def grades_here(self, log: Log) -> bool:
        """Return whether our grader is asked, as it is too where a log has texts alone."""
        return self.regrade or not log.scores

    def grades(self, log: Log) -> list[Grade]:
        """The grades of a log by its chosen score; InvalidInput where none is chosen, or a value is no verdict."""
        numbers: dict[str, Iterator[int]] = defaultdict(count)  # of each problem, in the order met
        return [
            Grade(
                problem_id=response.problem_id,
                sample=next(numbers[response.problem_id]),
                correct=correct,
                answer=answer or None,
                reason=MATCH if correct else "no_answer" if answer == "" else "mismatch",
                tokens=_nth(response.tokens, sample, samples),
                finish_reason=_nth(response.ends, sample, samples),
            )
            for response, answer, samples, right in self._judged(log)
            for sample in range(samples)
            for correct in [sample < right]
        ]

    def _judged(self, log: Log) -> list[tuple[Response, str | None, int, int]]:
        """Each response with the tool's answer, its number of samples, and how many of them are correct."""
        name = self._chosen(log)
        judged = []
        for response in log.responses:
            judgement = response.judgements.get(name)
            if judgement is None:
                raise UserError(f"{log.path}: problem {response.problem_id}: has no score {name}")
            if judgement.samples > 1 and len(response.texts) not in (0, judgement.samples):
                where, held = f"problem {response.problem_id}: {name}", len(response.texts)
                raise InvalidInput(
                    str(log.path), where, f"is of {judgement.samples} samples, of {held} texts", "as many"
                )
            right = self._right(judgement)
            if right is None:
                accepted = "0 or 1" + (f", or a share of {judgement.samples}" if judgement.samples > 1 else "")
                where = f"problem {response.problem_id}: {name}"
                raise InvalidInput(str(log.path), where, f"is {judgement.value!r}", f"{accepted}; or --correct-from")
            judged.append((response, judgement.answer, judgement.samples, right))
        return judged

    def _chosen(self, log: Log) -> str:
        names = log.scores
        if self.score is not None:
            matching = [name for name in names if name == self.score]
            matching = matching or [name for name in names if name.partition(",")[0] == self.score]
            if len(matching) != 1:
                raise InvalidInput("--score", "", f"{self.score} is not one score of {log.path}", ", ".join(names))
            return matching[0]
        columns = [[response.judgements.get(name) for response in log.responses] for name in names]
        verdicts = [
            [judgement and (self._right(judgement), judgement.samples) for judgement in column] for column in columns
        ]
        if any(column != verdicts[0] or None in column for column in verdicts[1:]):
            raise InvalidInput(str(log.path), "", f"has {len(names)} scores", f"--score with one of {', '.join(names)}")
        return names[0]

    def _right(self, judgement: Judgement) -> int | None:
        """The number of correct samples behind a value; None if the value is no verdict."""
        value = number_of(judgement.value)
        if value is None:
            return None
        if self.correct_from is not None and judgement.samples == 1:
            return int(value >= self.correct_from)
        right = value * judgement.samples
        return round(right) if abs(right - round(right)) < 1e-6 and 0 <= round(right) <= judgement.samples else None


def number_of(value: Any) -> float | None:
    """A score as a number, also one in a word or in the digits of a CSV file; None where it is no number."""
    if isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    elif not isinstance(value, bool | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def samples_of(log: Log) -> list[Sample]:
    """Every text of a log, as samples of its problems."""
    numbers: dict[str, Iterator[int]] = defaultdict(count)  # of each problem, in the order met
    if lacking := [response.problem_id for response in log.responses if not response.texts]:
        raise UserError(f"{log.path}: problem {lacking[0]}: has no text to grade")
    return [
        Sample(
            problem_id=response.problem_id,
            sample=next(numbers[response.problem_id]),
            text=text,
            tokens=_nth(response.tokens, sample, len(response.texts)),
            finish_reason=_nth(response.ends, sample, len(response.texts)),
            in_thinking=opens_thinking(response.prompt) or None,
        )
        for response in log.responses
        for sample, text in enumerate(response.texts)
    ]


def golds_of(log: Log) -> dict[str | int, str]:
    """The reference answers in a log, by problem; empty unless every problem has one.

    Of a solution in GSM8K's form, which lm-eval logs whole, the answer is what stands after ``####``.
    """
    golds = {response.problem_id: (response.gold or "").rpartition("####")[2].strip() for response in log.responses}
    known: dict[str | int, str] = {problem: gold for problem, gold in golds.items() if gold}
    return known if len(known) == len(golds) else {}


def _nth(values: Sequence[Any], number: int, expected: int) -> Any:
    """The value of one of several texts; None where the log does not have one for each."""
    return values[number] if len(values) == expected else None
