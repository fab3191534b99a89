"""Problems as the files of four public releases have them: three of word problems, with solutions, and OlympiadBench.

GSM8K (arXiv 2110.14168), SVAMP (arXiv 2103.07191), and the training set of MAWPS and ASDiv-A in SVAMP's repository. On
the Hugging Face Hub, GSM8K and SVAMP have the same columns.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from evals.core.errors import InvalidInput

Row = dict[str, Any]

_ANSWER_MARK = "\n#### "
"""The sign before the answer in GSM8K; the other solutions here end in the same way."""
_CALCULATION = re.compile(r"<<([^<>]*)>>")
_OPERATOR = re.compile(r"(?<=[\d)])\s*([-+*/=])\s*(?=[-(.\d])")
"""A sign between two numbers or brackets."""
_NUMBER_PLACE = re.compile(r"number(\d+)")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_MOST_DECIMALS = 2
_ROUNDING = Fraction(1, 10**6)


@dataclass(frozen=True)
class Release:
    """The form of a release's rows."""

    columns: Sequence[str]  # those that are read
    read: Callable[[Mapping[str, Any]], Row | None]
    """Makes ``problem``, ``answer`` and what there is of ``id`` and ``solution`` of a row; None leaves it out."""
    has_ids: bool = False  # whether its rows have an ``id``
    has_solutions: bool = False  # whether they have a ``solution``

    def rows(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Row]:
        """The rows in the project's form, in their order; InvalidInput names one that is not of the release's form."""
        read = []
        for number, row in enumerate(rows, start=1):
            try:
                read.append(self.read(row))
            except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                complaint = f"is not of the form of the release ({type(error).__name__}: {error})"
                raise InvalidInput(f"{where}: row {number}", "", complaint) from error
        return [row for row in read if row is not None]


def _gsm8k(row: Mapping[str, Any]) -> Row:
    """A problem whose solution ends in ``#### 72``; the calculator's notes, as ``<<48/2=24>>``, are taken off."""
    solution, mark, answer = _CALCULATION.sub("", row["answer"]).rpartition(_ANSWER_MARK)
    if not mark:
        raise ValueError(f"answer lacks {_ANSWER_MARK.strip()}")
    answer = answer.strip().replace(",", "")
    return {"problem": row["question"].strip(), "answer": answer, "solution": f"{solution}{_ANSWER_MARK}{answer}"}


def _gsm8k_steps(row: Mapping[str, Any]) -> Row | None:
    """The same, with the calculator's notes alone as the solution: ``48 / 2 = 24``, a line each.

    Left out where a solution has none, or the last one's result is not the answer as a number.
    """
    notes = [_OPERATOR.sub(r" \1 ", note.replace(",", "")) for note in _CALCULATION.findall(row["answer"])]
    read = _gsm8k(row)
    try:
        ends_in_answer = Fraction(notes[-1].rpartition("= ")[2]) == Fraction(read["answer"])
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    if not ends_in_answer:
        return None
    return {**read, "solution": "\n".join(notes) + _ANSWER_MARK + read["answer"]}


def _svamp(row: Mapping[str, Any]) -> Row:
    """A problem in two parts with a number as the answer."""
    problem = f"{row['Body'].strip()} {row['Question'].strip()}"
    return {"id": row["ID"], "problem": problem, "answer": _decimal(Fraction(str(row["Answer"])))}


def _olympiadbench(row: Mapping[str, Any]) -> Row:
    """A problem with one final answer in a list; the evaluation scripts of Qwen2.5-Math have 675 of them."""
    (answer,) = row["final_answer"]
    return {"id": row["id"], "problem": row["question"].strip(), "answer": answer}


def _mawps(row: Mapping[str, Any]) -> Row | None:
    """A problem with places for its numbers and an equation in Polish notation, of which the solution's steps are made.

    Left out where a number has more than two decimals, most of them results of divisions that the problem did not mean,
    and where the equation's value is not the answer.
    """
    numbers = [Fraction(number) for number in row["Numbers"].split()]
    steps: list[str] = []
    tokens = iter(row["Equation"].split())

    def value() -> Fraction:
        token = next(tokens, "")
        if (operation := _OPERATIONS.get(token)) is None:
            placeholder = _NUMBER_PLACE.fullmatch(token)
            return numbers[int(placeholder[1])] if placeholder else Fraction(token)
        left, right = value(), value()
        result: Fraction = operation(left, right)
        steps.append(f"{_decimal(left)} {token} {_decimal(right)} = {_decimal(result)}")
        return result

    result = value()
    is_unclear = abs(result - Fraction(row["Answer"])) > _ROUNDING
    if is_unclear or "" in map(_decimal, numbers) or any(step.endswith(" = ") for step in steps):
        return None
    problem = _NUMBER_PLACE.sub(lambda match: _decimal(numbers[int(match[1])]), row["Question"]).strip()
    answer = _decimal(result)
    return {"problem": problem, "answer": answer, "solution": "\n".join(steps) + _ANSWER_MARK + answer}


def _decimal(number: Fraction) -> str:
    """``51``, ``0.3``; nothing for a number of more than two decimals."""
    scaled = number * 10**_MOST_DECIMALS
    if scaled.denominator != 1:
        return ""
    whole, rest = divmod(abs(scaled.numerator), 10**_MOST_DECIMALS)
    decimals = f"{rest:0{_MOST_DECIMALS}d}".rstrip("0")
    return "-" * (number < 0) + str(whole) + f".{decimals}" * bool(decimals)


RELEASES = {
    "gsm8k": Release(("question", "answer"), _gsm8k, has_solutions=True),
    "gsm8k_steps": Release(("question", "answer"), _gsm8k_steps, has_solutions=True),
    "svamp": Release(("ID", "Body", "Question", "Answer"), _svamp, has_ids=True),
    "olympiadbench": Release(("id", "question", "final_answer"), _olympiadbench, has_ids=True),
    "mawps": Release(("Question", "Numbers", "Equation", "Answer"), _mawps, has_solutions=True),
}
"""Name in ``columns`` of a benchmark or a training set -> the form of its rows."""
