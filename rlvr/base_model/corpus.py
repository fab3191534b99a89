"""The base model's worked solutions, of which a part is wrong in a way that reinforcement learning can correct.

Every arithmetic fact (left, operator, right) has its own error rate, drawn once: most facts are nearly always right,
some are wrong now and then, a few are wrong more often than right. A wrong result is mostly the same wrong digit (a
misconception), otherwise any other. So the model learns the format and the procedure, but unreliable facts.
Solutions of worded problems have further mistakes (:mod:`rlvr.base_model.worded_solutions`).
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from evals.core.config.base_models import Corpus, Searching, Skipping, Wording
from evals.core.files import fingerprint, write_jsonl
from evals.core.manifest import Manifest, hash_files
from evals.core.records import ProblemKind
from evals.problems.arithmetic import OPERATORS, Countdown, Worded, draw_stream, exact, worked_solution
from rlvr.base_model import VERSION
from rlvr.base_model.worded_solutions import SkippingSolutions, WordedSolutions, search


@dataclass(frozen=True)
class FlawedArithmetic:
    """Arithmetic modulo 10 with mistakes."""

    error_rates: tuple[float, ...]  # possible error rates of a fact
    shares: tuple[float, ...]  # the share of the facts that has each rate; same length, sums to one
    misconception_share: float  # how often a mistake is the fact's usual wrong digit rather than any other
    seed: int  # of the facts' rates and misconceptions
    _facts: dict[tuple[int, str, int], tuple[float, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        generator = random.Random(f"facts/{self.seed}")
        facts = {}
        for fact in product(range(10), OPERATORS, range(10)):
            rate = generator.choices(self.error_rates, self.shares)[0]
            facts[fact] = (rate, (exact(*fact) + generator.randrange(1, 10)) % 10)
        object.__setattr__(self, "_facts", facts)

    def result(self, left: int, operator: str, right: int, factor: float, generator: random.Random) -> int:
        """The digit written for one operation, right or wrong; ``factor`` multiplies the fact's error rate."""
        (rate, misconception), correct = self._facts[left, operator, right], exact(left, operator, right)
        if generator.random() >= rate * factor:
            return correct
        if generator.random() < self.misconception_share:
            return misconception
        return (correct + generator.randrange(1, 10)) % 10


def draw_corpus(
    kinds: Sequence[ProblemKind],
    count: int,
    seed: int,
    flaws: FlawedArithmetic,
    wording: Wording | None = None,
    skipping: Skipping | None = None,
    searching: Searching | None = None,
) -> Iterator[dict[str, str]]:
    """``count`` rows of problem and worked solution, from the training side of the split.

    ``wording`` or ``skipping`` is how solutions of worded problems are written, ``searching`` how those of Countdown;
    others are formulas.
    """
    generator = random.Random(f"corpus/{seed}")
    in_words: WordedSolutions | SkippingSolutions | None = None
    if skipping is not None:
        in_words = SkippingSolutions(skipping, seed, flaws.result)
    elif wording is not None:
        in_words = WordedSolutions(wording, flaws.result)

    def operation(left: int, operator: str, right: int) -> int:
        return flaws.result(left, operator, right, 1.0, generator)

    for _, problem in zip(range(count), draw_stream(kinds, "train", seed), strict=False):
        if in_words is not None and isinstance(problem, Worded):
            solution = in_words.write(problem, generator)
        elif searching is not None and isinstance(problem, Countdown):
            solution = search(problem, searching.give_up, generator)
        else:
            solution = worked_solution(problem, operation)
        yield {"problem": problem.statement, "solution": solution}


def write_corpus(settings: Corpus, count: int, out: Path) -> None:
    """Write the base model's worked solutions, of which a part is wrong."""
    flaws = FlawedArithmetic(settings.error_rates, settings.shares, settings.misconception_share, settings.seed)
    rows = draw_corpus(
        settings.kinds, count, settings.seed, flaws, settings.wording, settings.skipping, settings.searching
    )
    write_jsonl(out, rows)
    parameters = {"version": VERSION, "count": count, **dict(sorted(settings.to_json().items()))}
    manifest = Manifest("corpus", {}, hash_files(out.parent, out), parameters, fingerprint(parameters))
    manifest.write(out.with_name("corpus.manifest.json"))
