"""The part of grading that happens in the calling process: extraction, and what can be decided without algebra."""

from __future__ import annotations

import time
from dataclasses import dataclass

from evals.grading.comparison import compare
from evals.grading.exact import canonical_integer, decide
from evals.grading.extraction import extract_answer, extract_gold
from evals.grading.letters import gold_letter
from evals.grading.normalisation import is_readable, normalise
from evals.grading.verdict import Case, Kind, Reason, Verdict

MAX_ANSWER_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Undecided:
    """A comparison that needs algebra: both sides normalised, and what has been spent on it so far."""

    extracted: str
    answer: str
    gold: str
    seconds: float

    def verdict(self, reason: Reason, seconds: float) -> Verdict:
        """The verdict that a worker's reason makes of this comparison."""
        return _verdict(self.extracted, reason, self.seconds + seconds)


def examine(case: Case) -> Verdict | Undecided:
    """Grade a case as far as text allows.

    Nothing here evaluates anything: its time is bounded by the length of the text.
    """
    start = time.perf_counter()
    extraction = extract_answer(case.prediction, case.kind, case.truncated)
    gold = extract_gold(case.gold)
    if not gold.strip():
        return _verdict(extraction.answer, Reason.INVALID_GOLD, time.perf_counter() - start)
    if extraction.answer is None:
        return _verdict(None, extraction.reason or Reason.NO_ANSWER, time.perf_counter() - start)
    if case.kind is Kind.CHOICE:
        letter = gold_letter(gold)
        reason = Reason.INVALID_GOLD if letter is None else _reason(extraction.answer == letter)
        return _verdict(extraction.answer, reason, time.perf_counter() - start)
    if case.kind is Kind.ANSWER and _is_verbatim(case):
        return _verdict(case.prediction, Reason.MATCH, time.perf_counter() - start)
    return _examine_pair(extraction.answer, gold, start)


def _examine_pair(extracted: str, gold: str, start: float) -> Verdict | Undecided:
    integer, reference = canonical_integer(extracted), canonical_integer(gold)
    if integer is not None and reference is not None:  # most answers, and any number of digits: before all else
        return _verdict(extracted, _reason(integer == reference), time.perf_counter() - start)
    if not is_readable(extracted):
        reason = _reason(True) if extracted.strip() == gold.strip() else Reason.UNPARSABLE
        return _verdict(extracted, reason, time.perf_counter() - start)
    if not is_readable(gold):
        return _verdict(extracted, Reason.INVALID_GOLD, time.perf_counter() - start)
    answer, gold = normalise(extracted), normalise(gold)
    decision = compare(answer, gold, decide)
    spent = time.perf_counter() - start
    return (
        Undecided(extracted, answer, gold, spent) if decision is None else _verdict(extracted, _reason(decision), spent)
    )


def _is_verbatim(case: Case) -> bool:
    """Whether a prediction is the gold text itself, words and all (``odd $n$``)."""
    readable = is_readable(case.prediction) and is_readable(case.gold)
    return readable and decide(normalise(case.prediction), normalise(case.gold)) is True


def _reason(equal: bool) -> Reason:
    return Reason.MATCH if equal else Reason.MISMATCH


def _verdict(answer: str | None, reason: Reason, seconds: float) -> Verdict:
    kept = answer if answer is None else answer.strip()[:MAX_ANSWER_KEPT]
    if kept is not None and not kept.isascii():
        kept = kept.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be written to a file
    return Verdict(reason is Reason.MATCH, kept, reason, seconds)
