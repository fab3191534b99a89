"""Grading: does a model's text give the reference answer?

    from evals.grading import Case, GradingPool

    if __name__ == "__main__":  # a script needs this: each worker process imports it
        with GradingPool(workers=2) as pool:
            verdicts = pool.grade([Case(prediction=text, gold="\\frac{1}{2}")])

The same pool scores evaluations and rewards training. What counts as an answer, and as equal, is in docs/grading.md.
"""

from evals.grading.pool import GradingPool
from evals.grading.verdict import Case, Kind, Reason, Verdict

__all__ = ["Case", "GradingPool", "Kind", "Reason", "Verdict"]

VERSION = 2
"""Raised whenever the same text and reference could get another verdict."""
