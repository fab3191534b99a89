"""Grading: does a model's text give the reference answer?

The same pool scores evaluations and rewards training. docs/grading.md has an example, and says what counts as equal.
"""

from evals.grading.pool import GradingPool
from evals.grading.verdict import UNJUDGED, Case, Kind, Reason, Verdict

__all__ = ["UNJUDGED", "Case", "GradingPool", "Kind", "Reason", "Verdict"]

VERSION = 10
"""Raised whenever the same text and reference could get another verdict."""

CHOICE_VERSION = 10
"""Raised whenever that could happen to a text of multiple choice; other kinds do not depend on it."""

INTEGER_VERSION = 3
"""Raised whenever that could happen to a local model's response to a problem whose answer is an integer.

Runs of the local engine depend on this version instead, for their problems have no other answers.
"""
