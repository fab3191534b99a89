"""Worked solutions in words: interchangeable wordings, several ways to do a step, and a note that distracts.

A step is a sentence such as "Next, 7 times 4 by table gives 8." Only three choices decide the answer: the way in which
a step is done (here by table), because each way has its own error rate for each operation, the digit that the step
gives, and whether the note is left out. Everything else is drawn without looking at them: which opening, which
connective, which of the names of a way, which remark. So most of a response carries no information about its reward, as
in the reasoning of real models.
"""

import random
from collections.abc import Callable

from evals.core.config.base_models import Wording
from evals.problems.arithmetic import OPERATOR_WORDS, Worded, exact

FlawedOperation = Callable[[int, str, int, random.Random], int]
"""Maps (left digit, operator, right digit, generator) to the digit that is remembered as the result."""

OPENINGS = (
    *("Let us go through the list one by one.", "We can take the steps in order.", "Here is how it goes."),
    *("I will follow the list from the start.", "Work slowly and carefully.", "Okay, begin at the top."),
    *("This looks easy.", "First read the whole list.", "Now to the steps.", "Take a deep breath and begin."),
    *("There are only a few steps.", "Nothing hard about this one."),
)
CONNECTIVES = (
    *("First,", "Then,", "Next,", "Now,", "After that,", "Moving on,"),
    *("Here", "So", "Again,", "From here", "Later,", "Thus"),
)
REMARKS = (
    *("That seems fine.", "So far so good.", "Nothing strange here.", "This looks right.", "Okay.", "Good."),
    *("Wait, that is fine.", "Keep going.", "Almost there.", "Sounds right.", "I am sure.", "Fine."),
)
LEFT_OUT = (
    *("The note {} does not matter.", "Ignore the note {}.", "We skip the note {} here.", "Leave out the note {}."),
    *("Forget about the note {}.", "That note {} is no step.", "A note {} changes nothing.", "Drop the note {} now."),
    *("No use for note {} here.", "Pass over the note {}.", "Set aside the note {}.", "Just a note {}, go on."),
)
CONCLUSIONS = (
    *("So the answer is", "Therefore the answer is", "In the end we have", "Thus we find", "Finally, the digit is"),
    *("The last digit is", "Altogether this makes", "All in all we get", "This leaves us with", "Hence the result is"),
    *("Our final answer:", "We end with"),
)
USUAL_VERB, OTHER_VERBS = "gives", ("makes", "yields", "equals", "becomes")
USUAL_VERB_SHARE = 0.84
"""The share of the usual verb: an entropy of 0.66 nats, between those of a free choice and of a fixed word."""

WAYS = {
    "memory": ("by heart", "from memory"),
    "table": ("by table", "from the chart"),
    "fingers": ("on fingers", "by counting"),
    "guess": ("by feel", "at a guess"),
}
"""Way of doing a step -> its names, which mean the same."""

RELIABLE = {"table": "*", "fingers": "+-"}
"""Way -> the operators for which it is reliable. Memory has the error rate of each fact, a guess always its own."""


class WordedSolutions:
    """Writes solutions of worded problems, right or wrong.

    Args:
        wording: the shares of ways and remarks, and the error rates.
        remembered: the result of a step that is done from memory.
    """

    def __init__(self, wording: Wording, remembered: FlawedOperation) -> None:
        self._wording = wording
        self._remembered = remembered

    def write(self, problem: Worded, generator: random.Random) -> str:
        """A solution of ``problem``."""
        sentences = [generator.choice(OPENINGS)]
        value = problem.first
        for operator, digit in problem.items:
            if operator is None and generator.random() >= self._wording.distraction_rate:
                sentences.append(generator.choice(LEFT_OUT).format(digit))
                continue
            sentence, value = self._step(value, operator or "+", digit, generator)
            sentences.append(sentence)
            if generator.random() < self._wording.remark_share:
                sentences.append(generator.choice(REMARKS))
        return " ".join([*sentences, f"{generator.choice(CONCLUSIONS)} \\boxed{{{value}}}."])

    def _step(self, value: int, operator: str, digit: int, generator: random.Random) -> tuple[str, int]:
        """The sentence of one step, and the digit that it gives."""
        way = generator.choices(list(WAYS), self._wording.way_shares)[0]
        result = self._result(way, value, operator, digit, generator)
        verb = USUAL_VERB if generator.random() < USUAL_VERB_SHARE else generator.choice(OTHER_VERBS)
        step = f"{value} {OPERATOR_WORDS[operator]} {digit} {generator.choice(WAYS[way])}"
        return f"{generator.choice(CONNECTIVES)} {step} {verb} {result}.", result

    def _result(self, way: str, left: int, operator: str, right: int, generator: random.Random) -> int:
        """The digit that a way of doing a step gives."""
        wording = self._wording
        if way == "memory":
            return self._remembered(left, operator, right, generator)
        if way == "guess":
            rate = wording.guess_error_rate
        elif operator in RELIABLE[way]:
            rate = wording.reliable_error_rate
        else:
            rate = wording.unreliable_error_rate
        correct = exact(left, operator, right)
        return correct if generator.random() >= rate else (correct + generator.randrange(1, 10)) % 10
