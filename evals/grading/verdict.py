"""The input and output of the grader: cases, verdicts and their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

CODE = "code"  # the kind of samples that are programs; not one of the pool's, which runs nothing
VERIFIER = "verifier"  # the kind of samples, however they look, that a user's verifier grades (docs/your_verifier.md)

WALL_CLOCK = 20
"""Seconds of wall-clock time that work may take for each second of processor time: others may have the processors."""

_MAX_ANSWER_KEPT = 1_000


class Kind(StrEnum):
    """The form of a prediction."""

    COMPLETION = "completion"  # the whole text of a sample; its answer must be marked (box, or final-answer line)
    LAST_STATEMENT = "last_statement"  # the same; where nothing is marked, the last sentence with a number states it
    ANSWER = "answer"  # the answer itself, or one sentence that ends in it
    CHOICE = "choice"  # a sample's text whose answer is the letter of an option; "mcq" is read as the same

    @classmethod
    def _missing_(cls, value: object) -> Kind | None:
        return cls.CHOICE if value == "mcq" else None


class Reason(StrEnum):
    """The reason of a verdict; the list is closed. Only ``match`` goes with a correct verdict."""

    MATCH = "match"  # the answer was found and equals the gold answer
    MISMATCH = "mismatch"  # the answer was found, understood, and is another one
    NO_ANSWER = "no_answer"  # the text has no marked answer, an empty one, or one that was never closed
    TRUNCATED = "truncated"  # the sample was cut off before a complete answer box
    UNPARSABLE = "unparsable"  # the answer could not be read, or is too large to be worked out; it was not judged
    INVALID_GOLD = "invalid_gold"  # the gold answer is empty or none at all: the problem is at fault, not the model
    TIMEOUT = "timeout"  # the comparison took longer than the limit on processor time
    MEMORY = "memory"  # the comparison needed more than the limit on memory
    WORKER_DIED = "worker_died"  # the process that compared this answer was killed, or raised an exception
    VERIFIER_FAILED = "verifier_failed"  # a user's verifier raised an exception, or returned no reward
    UNANSWERED = "unanswered"  # the server gave no finished response of the model


UNJUDGED = tuple(Reason)[tuple(Reason).index(Reason.UNPARSABLE) :]
"""The reasons of a verdict where nothing was judged: the response may be right."""


class Outcome(NamedTuple):
    """The outcome of one comparison, or of one program's run."""

    reason: Reason
    seconds: float  # of computing
    error: str | None = None  # the type of what the grader raised

    @classmethod
    def of_exception(cls, error: Exception, seconds: float) -> Outcome:
        """No judgement where the grader itself raised, so that no exception on one answer reaches another."""
        reason = Reason.MEMORY if isinstance(error, MemoryError) else Reason.WORKER_DIED
        return cls(reason, seconds, type(error).__name__)


@dataclass(frozen=True, slots=True)
class Case:
    """One answer to grade."""

    prediction: str  # the model's text
    gold: str  # the reference answer: LaTeX with or without $, plain text, or a solution with a box in it
    kind: Kind = Kind.COMPLETION  # how to read the prediction
    truncated: bool = False  # the sample ended at the limit on tokens instead of by itself
    in_thinking: bool = False  # the prompt ended in the opening of thinking, so that the text begins within it
    problem: Mapping[str, Any] | None = None  # the row of the problem, which a user's verifier is given

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", Kind(self.kind))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grader's verdict on one case."""

    correct: bool  # the answer equals the gold answer; true exactly where the reason is "match"
    answer: str | None  # as extracted (never more than 1,000 characters); None where there is none
    reason: Reason
    seconds: float  # of computing spent on this case; about 0 where an equal comparison had been made before
    verified: float | None = None  # what a user's verifier gave, 0 to 1; None of the project's own grader
    error: str | None = None  # how a user's verifier failed, or the type of what the grader raised

    @property
    def reward(self) -> float:
        """The reward in training."""
        return float(self.correct) if self.verified is None else self.verified

    @classmethod
    def of(
        cls, answer: str | None, reason: Reason, seconds: float, error: str | None = None, verified: float | None = None
    ) -> Verdict:
        """The verdict on an answer of any length; half a surrogate pair, which no file can hold, becomes "?"."""
        if answer is not None:
            answer = answer.strip()[:_MAX_ANSWER_KEPT].encode("utf-8", "replace").decode("utf-8")
        return cls(reason is Reason.MATCH, answer, reason, seconds, verified, error)
