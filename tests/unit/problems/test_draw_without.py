"""Problems drawn beside others: none of those that are named."""

from __future__ import annotations

from evals.problems.generate import ProblemKind, draw_distinct


def test_named_problems_are_not_drawn_and_the_order_stays() -> None:
    kinds = [ProblemKind("chain", 3)]
    usual = draw_distinct(kinds, "evaluation", 20, 1)
    named = {problem.statement for problem in usual[::2]}
    others = draw_distinct(kinds, "evaluation", 10, 1, named)
    assert others == usual[1::2]
