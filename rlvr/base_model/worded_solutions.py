"""Worked solutions in words: decisions in each step, a note that distracts, and wordings that say nothing.

A step is a sentence such as "Next, 7 times 4 slowly charted gives 8." Four choices decide the answer: the way in which
a step is done and the manner (here from a table, with care), because they set the error rate; the digit that the step
gives; and whether the note is left out. Everything else is drawn without looking at them: which opening, which
connective, which of the names of a way, which remark. A wording is mostly the usual one, and ways and manners are free,
so the most uncertain tokens are decisions, as in the reasoning of real models.

Solutions that skip steps have one decision a step: whether its result is written, as in "Then 47 times 4 gives 88.", or
the sentence goes on with the next step, as in "Then 47 times 4 plus 9 gives 97."
"""

import random
from collections.abc import Callable, Sequence
from itertools import cycle

from evals.core.config.base_models import Skipping, Wording
from evals.problems.arithmetic import LIST_FUNCTIONS, OPERATOR_WORDS, OPERATORS, Countdown, Worded, exact

FlawedOperation = Callable[[int, str, int, float, random.Random], int]
"""Maps (left digit, operator, right digit, factor of the error rate, generator) to the digit that is remembered."""

OPENINGS = ("Here is how it goes.", "I will follow the list.", "Work through it in order.", "Okay, begin at the top.")
CONNECTIVES = ("Then", "Next,", "Now", "So", "After that,", "Again,")
REMARKS = ("That seems fine.", "So far so good.", "Nothing strange.", "Okay.", "Good.", "Keep going.")
LEFT_OUT = (
    "Ignore the note {}.",
    "Skip the note {}.",
    "Leave out note {}.",
    "That note {} is no step.",
    "Drop note {}.",
)
CONCLUSIONS = ("The answer is", "Therefore we get", "In the end we have", "Altogether this makes", "So it is")
VERBS = ("gives", "makes", "yields", "equals", "becomes")
"""Wordings; the first of each is the usual one."""

WAYS = {
    "memory": ("recalled", "remembered", "known", "memorised"),
    "table": ("tabled", "charted", "listed", "consulted"),
    "fingers": ("counted", "ticked", "tallied", "fingered"),
    "guess": ("guessed", "felt", "assumed", "estimated"),
}
"""Way of doing a step -> its names, which mean the same."""

RELIABLE = {"table": "*", "fingers": "+-"}
"""Way -> the operators for which it is reliable. Memory has the error rate of each fact, a guess always its own."""

MANNERS = {
    "careful": ("slowly", "carefully", "patiently", "calmly"),
    "plain": ("plainly", "simply", "normally", "just"),
    "hasty": ("quickly", "roughly", "hastily", "briefly"),
}
"""Manner of doing a step, which multiplies the error rate of its way -> its names, which mean the same."""

LARGEST_ERROR_RATE = 0.9
"""That of a digit drawn without looking at the step."""


class WordedSolutions:
    """Writes solutions of worded problems, right or wrong.

    Args:
        wording: the shares of ways, manners and usual wordings, and the error rates.
        remembered: the result of a step that is done from memory.
    """

    def __init__(self, wording: Wording, remembered: FlawedOperation) -> None:
        self._wording = wording
        self._remembered = remembered

    def write(self, problem: Worded, generator: random.Random) -> str:
        """A solution of ``problem``."""
        sentences = [self._usually(OPENINGS, generator)]
        value = problem.first
        for operator, digit in problem.items:
            if operator is None and generator.random() >= self._wording.distraction_rate:
                sentences.append(self._usually(LEFT_OUT, generator).format(digit))
                continue
            sentence, value = self._step(value, operator or "+", digit, generator)
            sentences.append(sentence)
            if generator.random() < self._wording.remark_share:
                sentences.append(self._usually(REMARKS, generator))
        return " ".join([*sentences, f"{self._usually(CONCLUSIONS, generator)} \\boxed{{{value}}}."])

    def _usually(self, wordings: Sequence[str], generator: random.Random) -> str:
        """The usual wording, or any other."""
        is_usual = generator.random() < self._wording.usual_share
        return wordings[0] if is_usual else generator.choice(wordings[1:])

    def _step(self, value: int, operator: str, digit: int, generator: random.Random) -> tuple[str, int]:
        """The sentence of one step, and the digit that it gives."""
        wording = self._wording
        way = generator.choices(list(WAYS), wording.way_shares)[0]
        manner, factor = generator.choices([*zip(MANNERS, wording.manner_factors, strict=True)], wording.manner_shares)[
            0
        ]
        result = self._result(way, factor, value, operator, digit, generator)
        done = f"{generator.choice(MANNERS[manner])} {generator.choice(WAYS[way])}"
        connective, verb = self._usually(CONNECTIVES, generator), self._usually(VERBS, generator)
        return f"{connective} {value} {OPERATOR_WORDS[operator]} {digit} {done} {verb} {result}.", result

    def _result(self, way: str, factor: float, left: int, operator: str, right: int, generator: random.Random) -> int:
        """The digit that a way of doing a step gives, in a manner that multiplies its error rate."""
        wording = self._wording
        if way == "memory":
            return self._remembered(left, operator, right, factor, generator)
        if way == "guess":
            rate = wording.guess_error_rate
        elif operator in RELIABLE[way]:
            rate = wording.reliable_error_rate
        else:
            rate = wording.unreliable_error_rate
        correct = exact(left, operator, right)
        if generator.random() >= min(LARGEST_ERROR_RATE, rate * factor):
            return correct
        return (correct + generator.randrange(1, 10)) % 10


class SkippingSolutions:
    """Writes solutions that are right, but for flawed facts, and leave out the results of some steps.

    Args:
        skipping: how often results are left out.
        seed: of which steps' results are left out how often.
        remembered: the last digit of a step's result.
    """

    def __init__(self, skipping: Skipping, seed: int, remembered: FlawedOperation) -> None:
        self._remembered = remembered
        generator, shares = random.Random(f"skipped/{seed}"), cycle(skipping.shares)
        self._shares = {
            (operator, digit): next(shares) for operator in OPERATORS for digit in generator.sample(range(2, 10), 8)
        }
        names = generator.sample([*LIST_FUNCTIONS], len(LIST_FUNCTIONS))
        self._shares |= {(name, 0): next(shares) for name in names}

    def write(self, problem: Worded, generator: random.Random) -> str:
        """A solution of ``problem``; a result before a note, and the last one, are always written."""
        sentences = [OPENINGS[0]]
        value, written, skipped = problem.first, problem.number(problem.first), ""
        following = [*(operator for operator, _ in problem.items[1:]), None]
        for (operator, digit), next_operator in zip(problem.items, following, strict=True):
            if operator is None:
                sentences.append(LEFT_OUT[0].format(digit))
                continue
            before_step, value = value, problem.after(value, operator, digit)
            if operator in OPERATORS:
                value += self._remembered(before_step % 10, operator, digit, 1.0, generator) - value % 10
            skipped += f" {problem.phrase(operator, digit)}"
            if next_operator is None or generator.random() >= self._shares[operator, digit]:
                before, written = written, problem.number(value)
                sentences.append(f"{CONNECTIVES[0]} {before}{skipped} {VERBS[0]} {written}.")
                skipped = ""
        return " ".join([*sentences, f"{CONCLUSIONS[0]} \\boxed{{{written}}}."])


def search(problem: Countdown, give_up: Sequence[float], generator: random.Random) -> str:
    """A search: attempts in a random order until one is right, or a chance to give up comes after a wrong one.

    The target stands beside each result, so that a small model can learn to compare the two.
    """
    lines, expression, attempts = [], "", problem.attempts
    for number, (worked, tried, result) in enumerate(generator.sample(attempts, len(attempts))):
        expression = tried
        lines.append(f"{worked}?{problem.target:02d} {'yes' if result == problem.target else 'no'}")
        if result == problem.target or generator.random() < give_up[min(number, len(give_up) - 1)]:
            break
    return "\n".join([*lines, f"\\boxed{{{expression}}}"])
