"""The input and output of the grader: cases, verdicts and their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CODE = "code"
"""The kind of samples that are programs; not one of the pool's, which runs nothing."""

_MAX_ANSWER_KEPT = 1_000


class Kind(StrEnum):
    """The form of a prediction."""

    COMPLETION = "completion"  # the whole text of a sample; its answer must be marked (box, or final-answer line)
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
    WORKER_DIED = "worker_died"  # the process that compared this answer was killed or crashed


@dataclass(frozen=True, slots=True)
class Case:
    """One answer to grade."""

    prediction: str  # the model's text
    gold: str  # the reference answer: LaTeX with or without $, plain text, or a solution with a box in it
    kind: Kind = Kind.COMPLETION  # how to read the prediction
    truncated: bool = False  # the sample ended at the limit on tokens instead of by itself
    in_thinking: bool = False  # the prompt ended in the opening of thinking, so that the text begins within it

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", Kind(self.kind))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grader's verdict on one case."""

    correct: bool  # the answer equals the gold answer; true exactly where the reason is "match"
    answer: str | None  # as extracted (never more than 1,000 characters); None where there is none
    reason: Reason
    seconds: float  # of computing spent on this case; about 0 where an equal comparison had been made before

    @classmethod
    def of(cls, answer: str | None, reason: Reason, seconds: float) -> Verdict:
        """The verdict on an answer of any length; half a surrogate pair, which no file can hold, becomes "?"."""
        if answer is not None:
            answer = answer.strip()[:_MAX_ANSWER_KEPT].encode("utf-8", "replace").decode("utf-8")
        return cls(reason is Reason.MATCH, answer, reason, seconds)
