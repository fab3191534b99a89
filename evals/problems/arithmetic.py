r"""Arithmetic in six structures, functions of lists, and Countdown: the problems of the generated studies.

A solution works one operation a line and ends in its answer in ``\boxed{}``. The operation itself is passed in as a
function, so that the same code writes correct solutions and flawed ones.

    chain      Compute 3+4*7-2 from left to right, modulo 10.      3+4=7, 7*7=9, 9-2=7
    reverse    Compute 3+4*7-2 from right to left, modulo 10.      7-2=5, 4*5=0, 3+0=3
    variables  Let a=3;b=a+4;c=7*b. Compute c modulo 10.           b=3+4=7, c=7*7=9
    worded     Start with 3, plus 4, note 9, times 7.              3+4=7, 7*7=9
    hundreds   Start with 63, plus 4, note 9, minus 8.             63+4=67, 67-8=59
    program    Compute a+4*7 from left to right, modulo 10.        b=a+4, c=b*7 (a program, which is run)
    lists      Start with 3141, reverse, rotate.                   3141 reverse=1413, 1413 rotate=4131
    countdown  Make 42 from 9, 5, 3.                               9*5=45-3=42 (the answer, 9*5-3, is checked)
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

from evals.core.errors import InvalidInput
from evals.core.files import read_jsonl, sha256_file
from evals.core.records import ProblemKind
from evals.problems.problem_set import write_problem_set

OPERATORS = ("+", "-", "*")
"""The three operations, all modulo 10; of the family hundreds, modulo 100."""

OPERATOR_WORDS = {"+": "plus", "-": "minus", "*": "times"}
"""Operator -> its word."""

Operation = Callable[[int, str, int], int]
"""Maps (left number, operator, right digit) to the number written as the result."""


def exact(left: int, operator: str, right: int, modulus: int = 10) -> int:
    """The true result."""
    return {"+": left + right, "-": left - right, "*": left * right}[operator] % modulus


class Problem(Protocol):
    """A problem that can be read, and solved step by step."""

    family: ClassVar[str]

    @property
    def statement(self) -> str:
        """The text that the policy is given."""

    def solve(self, operation: Operation) -> tuple[list[str], int | str]:
        """The lines of a worked solution under ``operation``, and the digit or variable that it ends in."""


def answer(problem: Problem) -> int | str:
    """The correct answer; of a program, what it has to give."""
    if isinstance(problem, Program):
        return problem.outputs
    if isinstance(problem, Countdown):
        return problem.target
    return problem.solve(problem.after if isinstance(problem, Worded) else exact)[1]


def worked_solution(problem: Problem, operation: Operation) -> str:
    """A worked solution that ends in its answer in ``\\boxed{}``; correct if ``operation`` is."""
    lines, result = problem.solve(operation)
    return "\n".join([*lines, f"\\boxed{{{result}}}"])


@dataclass(frozen=True)
class Chain:
    """Digits joined by operators, worked from left to right whatever the usual precedence."""

    digits: tuple[int, ...]
    operators: tuple[str, ...]
    family: ClassVar[str] = "chain"
    direction: ClassVar[str] = "left to right"

    @classmethod
    def draw(cls, operands: int, generator: random.Random) -> Self:
        """A uniformly random chain of ``operands`` digits."""
        digits = tuple(generator.randrange(10) for _ in range(operands))
        return cls(digits, tuple(generator.choice(OPERATORS) for _ in range(operands - 1)))

    @property
    def statement(self) -> str:
        rest = zip(self.operators, self.digits[1:], strict=True)
        chain = str(self.digits[0]) + "".join(f"{operator}{digit}" for operator, digit in rest)
        return f"Compute {chain} from {self.direction}, modulo 10."

    def solve(self, operation: Operation) -> tuple[list[str], int]:
        value, lines = self.digits[0], []
        for operator, digit in zip(self.operators, self.digits[1:], strict=True):
            result = operation(value, operator, digit)
            lines.append(f"{value}{operator}{digit}={result}")
            value = result
        return lines, value


@dataclass(frozen=True)
class Reverse(Chain):
    """A chain worked from right to left."""

    family: ClassVar[str] = "reverse"
    direction: ClassVar[str] = "right to left"

    def solve(self, operation: Operation) -> tuple[list[str], int]:
        value, lines = self.digits[-1], []
        for operator, digit in zip(reversed(self.operators), reversed(self.digits[:-1]), strict=True):
            result = operation(digit, operator, value)
            lines.append(f"{digit}{operator}{value}={result}")
            value = result
        return lines, value


@dataclass(frozen=True)
class Variables:
    """A list of definitions, each using the variable before it and one digit, on either side."""

    first: int
    definitions: tuple[tuple[str, int, bool], ...]
    family: ClassVar[str] = "variables"

    @classmethod
    def draw(cls, operands: int, generator: random.Random) -> Variables:
        """A random list with ``operands`` digits in all, hence ``operands - 1`` operations."""
        definitions = tuple(
            (generator.choice(OPERATORS), generator.randrange(10), generator.random() < 0.5)
            for _ in range(operands - 1)
        )
        return cls(generator.randrange(10), definitions)

    @staticmethod
    def _name(position: int) -> str:
        return chr(ord("a") + position)

    @property
    def statement(self) -> str:
        parts = [f"a={self.first}"]
        for position, (operator, digit, variable_first) in enumerate(self.definitions):
            operands = (self._name(position), str(digit))
            left, right = operands if variable_first else operands[::-1]
            parts.append(f"{self._name(position + 1)}={left}{operator}{right}")
        return f"Let {';'.join(parts)}. Compute {self._name(len(self.definitions))} modulo 10."

    def solve(self, operation: Operation) -> tuple[list[str], int]:
        value, lines = self.first, []
        for position, (operator, digit, variable_first) in enumerate(self.definitions):
            left, right = (value, digit) if variable_first else (digit, value)
            value = operation(left, operator, right)
            lines.append(f"{self._name(position + 1)}={left}{operator}{right}={value}")
        return lines, value


@dataclass(frozen=True)
class Worded:
    """A chain in words with one note, a digit that is no step and has to be left out.

    The steps' digits are at least 2: plus 0 and times 1 never change anything. The note is at least 1, so that adding
    it always does.
    """

    first: int
    steps: tuple[tuple[str, int], ...]
    note: int
    note_position: int
    family: ClassVar[str] = "worded"
    operators: ClassVar[tuple[str, ...]] = OPERATORS
    modulus: ClassVar[int] = 10

    @classmethod
    def draw(cls, operands: int, generator: random.Random) -> Worded:
        """A random chain of ``operands`` digits; its note stands before, between or after the steps."""
        steps = tuple((generator.choice(cls.operators), generator.randrange(2, 10)) for _ in range(operands - 1))
        return cls(generator.randrange(cls.modulus), steps, generator.randrange(1, 10), generator.randrange(operands))

    @classmethod
    def number(cls, value: int) -> str:
        """A value with as many digits as all others have."""
        return f"{value:0{len(str(cls.modulus - 1))}d}"

    @classmethod
    def after(cls, value: int, operator: str, digit: int) -> int:
        """The value after a step."""
        return exact(value, operator, digit, cls.modulus)

    @classmethod
    def phrase(cls, operator: str, digit: int) -> str:
        """A step in words."""
        return f"{OPERATOR_WORDS[operator]} {digit}"

    @property
    def items(self) -> list[tuple[str | None, int]]:
        """The steps and the note, which has no operator, in the order of the statement."""
        items: list[tuple[str | None, int]] = list(self.steps)
        items.insert(self.note_position, (None, self.note))
        return items

    @property
    def statement(self) -> str:
        listed = (
            f"note {digit}" if operator is None else self.phrase(operator, digit) for operator, digit in self.items
        )
        return f"Start with {self.number(self.first)}, {', '.join(listed)}."

    def solve(self, operation: Operation) -> tuple[list[str], int]:
        digits, operators = (digit for _, digit in self.steps), (operator for operator, _ in self.steps)
        return Chain((self.first, *digits), tuple(operators)).solve(operation)


@dataclass(frozen=True)
class Hundreds(Worded):
    """A chain of sums and differences in words, modulo 100: its answer is not guessed as one digit is."""

    family: ClassVar[str] = "hundreds"
    operators: ClassVar[tuple[str, ...]] = ("+", "-")
    modulus: ClassVar[int] = 100


LIST_FUNCTIONS: dict[str, Callable[[str], str]] = {
    "reverse": lambda digits: digits[::-1],
    "rotate": lambda digits: digits[1:] + digits[0],
    "swap": lambda digits: digits[1] + digits[0] + digits[2:],
    "double": lambda digits: digits[:-1] + digits[0],
    "sort": lambda digits: "".join(sorted(digits)),
    "raise": lambda digits: digits.translate(str.maketrans("123456789", "234567891")),
    "lower": lambda digits: digits.translate(str.maketrans("234567891", "123456789")),
    "mirror": lambda digits: digits.translate(str.maketrans("123456789", "987654321")),
}
"""Functions of four digits from 1 to 9, by their names: of the places, and of each digit."""


@dataclass(frozen=True)
class Lists(Worded):
    """A composition of functions of a list: those of :data:`LIST_FUNCTIONS`, each of the result of the one before.

    The task of arXiv 2509.25123, where functions are learned one by one, and reinforcement learning composes them.
    """

    family: ClassVar[str] = "lists"
    modulus: ClassVar[int] = 10_000

    @classmethod
    def draw(cls, operands: int, generator: random.Random) -> Self:
        """A random list of four digits, and ``operands - 1`` functions; there is no note."""
        first = int("".join(generator.choices("123456789", k=4)))
        return cls(first, tuple((generator.choice([*LIST_FUNCTIONS]), 0) for _ in range(operands - 1)), 0, 0)

    @classmethod
    def after(cls, value: int, operator: str, digit: int) -> int:
        return int(LIST_FUNCTIONS[operator](str(value)))

    @classmethod
    def phrase(cls, operator: str, digit: int) -> str:
        return operator

    @property
    def items(self) -> list[tuple[str | None, int]]:
        return [*self.steps]

    def solve(self, operation: Operation) -> tuple[list[str], int]:
        value, lines = self.first, []
        for name, digit in self.steps:
            result = operation(value, name, digit)
            lines.append(f"{value} {name}={result}")
            value = result
        return lines, value


@dataclass(frozen=True)
class Countdown:
    """A target, to be made of all the given digits by sums, differences and products, worked from left to right.

    Several expressions are right, and any order of the digits, so an answer has to be checked
    (config/verifiers/countdown.py). An attempt takes the digits from large to small, and stays between 0 and 99.
    """

    digits: tuple[int, ...]
    target: int
    family: ClassVar[str] = "countdown"

    @classmethod
    def draw(cls, operands: int, generator: random.Random) -> Self:
        """Random digits from 2 to 9, and what one of the attempts makes of them.

        They are sorted, so that a problem has one text: by its text it belongs to training or to evaluation.
        """
        digits = tuple(sorted((generator.randrange(2, 10) for _ in range(operands)), reverse=True))
        made = [result for _, _, result in cls(digits, 0).attempts]
        return cls(digits, generator.choice(made)) if made else cls.draw(operands, generator)

    @property
    def statement(self) -> str:
        return f"Make {self.target:02d} from {', '.join(map(str, self.digits))}."

    @cached_property
    def attempts(self) -> list[tuple[str, str, int]]:
        """Every attempt: worked out, as the expression alone, and its result."""
        first, *others = sorted(self.digits, reverse=True)
        attempts = [(str(first), str(first), first)]
        for digit in others:
            attempts = [
                (f"{worked}{operator}{digit}={after:02d}", f"{expression}{operator}{digit}", after)
                for (worked, expression, value), operator in product(attempts, OPERATORS)
                if 0 <= (after := {"+": value + digit, "-": value - digit, "*": value * digit}[operator]) < 100
            ]
        return attempts

    def solve(self, operation: Operation) -> tuple[list[str], str]:
        """The first attempt that is right; ``operation`` is not asked."""
        return next(([worked], expression) for worked, expression, result in self.attempts if result == self.target)


@dataclass(frozen=True)
class Program:
    """A chain that begins with a variable, for which a program in Python has to be written: one assignment a step.

    Many programs do, so that they have to be run, with each digit as the input (config/verifiers/program.py).
    """

    steps: tuple[tuple[str, int], ...]
    family: ClassVar[str] = "program"

    @classmethod
    def draw(cls, operands: int, generator: random.Random) -> Program:
        """A random chain of the variable and ``operands - 1`` digits."""
        return cls(tuple((generator.choice(OPERATORS), generator.randrange(10)) for _ in range(operands - 1)))

    @property
    def statement(self) -> str:
        chain = "".join(f"{operator}{digit}" for operator, digit in self.steps)
        return f"Compute a{chain} from left to right, modulo 10."

    @property
    def outputs(self) -> str:
        """The ten digits that a right program gives for the inputs 0 to 9."""
        digits, operators = zip(*((digit, operator) for operator, digit in self.steps), strict=True)
        return "".join(str(Chain((value, *digits), operators).solve(exact)[1]) for value in range(10))

    def solve(self, operation: Operation) -> tuple[list[str], str]:
        """The program's lines and its last variable; a digit is as wrong as ``operation`` on it and the one before."""
        lines, before = [], 0
        for step, (operator, digit) in enumerate(self.steps):
            written = (digit + operation(before, operator, digit) - exact(before, operator, digit)) % 10
            lines.append(f"{chr(98 + step)}={chr(97 + step)}{operator}{written}")
            before = digit
        return lines, chr(97 + len(self.steps))


FAMILIES: dict[str, Callable[[int, random.Random], Problem]] = {
    Chain.family: Chain.draw,
    Reverse.family: Reverse.draw,
    Variables.family: Variables.draw,
    Worded.family: Worded.draw,
    Hundreds.family: Hundreds.draw,
    Program.family: Program.draw,
    Lists.family: Lists.draw,
    Countdown.family: Countdown.draw,
}
"""Family name -> function that draws a problem with a number of operands."""

Split = Literal["train", "evaluation"]

_EVALUATION_SHARE = 5
"""One problem in this many belongs to evaluation."""

_MOST_DRAWS_PER_PROBLEM = 200
"""Draws after which a set is called impossible: a family of short problems holds only so many different ones."""


def draw_problem(kind: ProblemKind, generator: random.Random) -> Problem:
    """Draw one problem of a kind."""
    return FAMILIES[kind.family](kind.operands, generator)


def split_of(statement: str) -> Split:
    """The side that a problem belongs to, by the SHA-256 of its text.

    It is no list: a benchmark added later cannot collide with anything that was trained on, and nothing has to be drawn
    again. :mod:`evals.problems.disjoint` checks the files all the same.
    """
    digest = hashlib.sha256(statement.encode("utf-8")).digest()
    return "evaluation" if int.from_bytes(digest[:8], "big") % _EVALUATION_SHARE == 0 else "train"


def draw_stream(kinds: Sequence[ProblemKind], split: Split, seed: int) -> Iterator[Problem]:
    """Problems of one side without end, kinds equally likely, the same for the same seed; a problem may come again."""
    generator = random.Random(f"{split}/{seed}")
    while True:
        problem = draw_problem(generator.choice(kinds), generator)
        if split_of(problem.statement) == split:
            yield problem


def draw_distinct(
    kinds: Sequence[ProblemKind], split: Split, count: int, seed: int, without: Collection[str] = ()
) -> list[Problem]:
    """``count`` different problems of one side, none of which has its statement in ``without``."""
    problems: dict[str, Problem] = {}
    for draws, problem in enumerate(draw_stream(kinds, split, seed)):
        if len(problems) == count:
            break
        if draws > _MOST_DRAWS_PER_PROBLEM * count:
            names = ", ".join(f"{kind.family} of {kind.operands}" for kind in kinds)
            raise InvalidInput("", "count", f"{count} different {split} problems of {names} cannot be drawn", "fewer")
        if problem.statement not in without:
            problems.setdefault(problem.statement, problem)
    return list(problems.values())


def as_rows(problems: Sequence[Problem], name: str) -> list[dict[str, str]]:
    """Rows of ``problems.jsonl``: id, problem, answer, family."""
    width = len(str(len(problems) - 1))
    return [
        {
            "id": f"{name}-{number:0{width}d}",
            "problem": problem.statement,
            "answer": str(answer(problem)),
            "family": problem.family,
        }
        for number, problem in enumerate(problems)
    ]


def write_problems(
    name: str,
    kinds: Sequence[Mapping[str, Any]],
    split: Split,
    count: int,
    seed: int,
    out: Path,
    without: Sequence[Path] = (),
) -> None:
    """Draw different problems from a seed.

    Args:
        name: prefix of the problems' ids.
        kinds: such as {"family": "chain", "operands": 3}.
        split: side that the problems belong to.
        without: JSONL files whose problems are not drawn.
    """
    drawn = [ProblemKind.parse(kind, "kinds") for kind in kinds]
    excluded = {row["problem"] for file in without for row in read_jsonl(file, required=("problem",))}
    rows = as_rows(draw_distinct(drawn, split, count, seed, excluded), name)
    content = {"name": name, "split": split, "count": count, "seed": seed, "kinds": [kind.to_json() for kind in drawn]}
    write_problem_set(out, rows, content, {str(file): sha256_file(file) for file in without}, {"rows": len(rows)})
