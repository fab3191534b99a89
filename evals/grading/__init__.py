"""Grading: does a model's text give the reference answer?

    from evals.grading import Case, GradingPool

    if __name__ == "__main__":  # a script needs this: each worker process imports it
        with GradingPool(workers=2) as pool:
            verdicts = pool.grade([Case(prediction=text, gold="\\frac{1}{2}")])

The same pool scores evaluations and rewards training. What counts as an answer, and as equal, is in docs/grading.md.
"""

from evals.grading.pool import GradingPool
from evals.grading.verdict import UNJUDGED, Case, Kind, Reason, Verdict

__all__ = ["UNJUDGED", "Case", "GradingPool", "Kind", "Reason", "Verdict"]

VERSION = 8
"""Raised whenever the same text and reference could get another verdict."""

CHOICE_VERSION = 8
"""Raised whenever that could happen to a text of multiple choice; other kinds do not depend on it."""

INTEGER_VERSION = 3
"""Raised whenever that could happen to a local model's response to a problem whose answer is an integer.

Trainings by the local engine depend on this version instead, for their problems have no other answers.
"""
