"""Verdicts on a trainer's loss: equal to the paper's, equal under another convention, another one, or cut by cut."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, get_args

from rlvr_conform import expected
from rlvr_conform.cases import CASES, LONGEST, Case, Settings, batches, smaller
from rlvr_conform.expected import Objective
from rlvr_conform.loss_references import Batch, Mode, Rows
from rlvr_conform.trainer import Answering, Failed, Ranks, Unsupported, advantages, checked, gradient

TOLERANCE = 1e-5
"""The largest difference, over the largest gradient expected, that rounding in float32 may make."""
ADVANTAGES = ("grpo", "dr_grpo", "rloo")
"""The estimators of advantages that trainers are held to, by the names of :func:`rlvr_conform.expected.advantages`."""
GOOD = ("equal", "convention", "not offered")
"""The verdicts that are no complaint."""
Verdict = Literal["equal", "convention", "differs", "depends on the cut", "not offered", "fails"]


@dataclass(frozen=True)
class Finding:
    """A finding about one objective of one trainer.

    Attributes:
        convention: what the trainer means by the same numbers, and the options that make it the paper's, if any.
        difference: the largest one of a token's gradient, over the largest expected, whole mini-batches.
        degrees: the angle between the gradients of the batch where they differ most, and ``scale`` their ratio.
        stopped: tokens whose gradient is 0 and should not be; ``freed``, the other way round.
        by_cut: difference of the cut mini-batch from the whole one, over its largest gradient, by the ``cut`` that
            changes it most.
    """

    objective: str
    verdict: Verdict
    options: dict[str, str] = field(default_factory=dict)
    convention: str = ""
    remedy: dict[str, str] = field(default_factory=dict)
    difference: float = 0.0
    degrees: float = 0.0
    scale: float = 1.0
    stopped: int = 0
    freed: int = 0
    tokens: int = 0
    by_cut: float = 0.0
    cut: str = ""
    smallest: str = ""
    padding: str = ""
    note: str = ""


@dataclass(frozen=True)
class Gap:
    """How far a gradient is from the one expected."""

    computed: Rows
    wanted: Rows

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Both gradients of every position; both are 0 at padding."""
        rows = zip(self.computed, self.wanted, strict=True)
        return [pair for computed, wanted in rows for pair in zip(computed, wanted, strict=True)]

    @property
    def largest(self) -> float:
        """The largest difference, over the largest expected; over 1 where nothing is expected."""
        highest = max(abs(wanted) for _, wanted in self.pairs) or 1.0
        gaps = [abs(computed - wanted) for computed, wanted in self.pairs]
        return math.inf if any(map(math.isnan, gaps)) else max(gaps) / highest

    @property
    def equal(self) -> bool:
        """Whether rounding may have made the difference."""
        return self.largest < TOLERANCE

    @property
    def scale(self) -> float:
        """The factor that fits the gradient to the expected one best."""
        norm = sum(wanted**2 for _, wanted in self.pairs)
        return sum(computed * wanted for computed, wanted in self.pairs) / norm if norm else math.nan

    @property
    def degrees(self) -> float:
        """The angle between the two."""
        norms = math.prod(math.sqrt(sum(pair[side] ** 2 for pair in self.pairs)) for side in (0, 1))
        cosine = sum(computed * wanted for computed, wanted in self.pairs) / norms if norms else 1.0
        return math.degrees(math.acos(min(1.0, max(-1.0, cosine))))

    def count(self, side: int) -> int:
        """Count the tokens without a gradient on one side alone: 0 computed, 1 wanted."""
        return sum(pair[side] == 0 and pair[1 - side] != 0 for pair in self.pairs)


_FACTORS: Mapping[str, Callable[[Batch], float]] = {
    "it does not divide by the number of responses": lambda batch: len(batch.lengths),
    "it does not divide by the number of tokens": lambda batch: sum(batch.lengths),
}


class Trial:
    """One objective, tried on one trainer."""

    def __init__(self, trainer: Answering, case: Case) -> None:
        self.trainer, self.case = trainer, case
        self.batches = list(batches(case))

    def finding(self) -> Finding:
        """Try the batches, whole and cut; see what a difference may be called, and its smallest input."""
        try:
            answers = [gradient(self.trainer, self.case.asked, batch) for _, batch in self.batches]
            gaps = [
                Gap(computed, self.case.objective.gradient(batch))
                for (computed, _), (_, batch) in zip(answers, self.batches, strict=True)
            ]
            by_cut, cut = max(
                (Gap(gradient(self.trainer, self.case.asked, batch, ranks, mini_batches=count)[0], whole).largest, name)
                for (_, batch), (whole, _) in zip(self.batches, answers, strict=True)
                for name, ranks, count in cuts(len(batch.lengths))
            )
        except Unsupported as why:
            return Finding(objective=self.case.name, verdict="not offered", note=str(why))
        except Failed as error:
            return Finding(objective=self.case.name, verdict="fails", note=str(error))
        worst = max(gaps, key=lambda gap: gap.largest)
        finding = Finding(
            objective=self.case.name,
            verdict="equal",
            options=answers[0][1],
            difference=_finite(worst.largest),
            degrees=worst.degrees if worst.largest < math.inf else 0.0,
            scale=worst.scale if math.isfinite(worst.scale) else 0.0,
            stopped=sum(gap.count(0) for gap in gaps),
            freed=sum(gap.count(1) for gap in gaps),
            tokens=sum(sum(batch.lengths) for _, batch in self.batches),
            by_cut=_finite(by_cut),
            padding=self.padding(),
        )
        if not worst.equal:
            words, remedy = self.convention()
            smallest = self.smallest()
            verdict: Verdict = "convention" if words else "differs"
            finding = replace(finding, verdict=verdict, convention=words, remedy=remedy, smallest=smallest)
        if by_cut >= TOLERANCE:
            words, remedy = self.other_choice(cut=True)
            remedied = replace(finding, verdict="convention", convention=words, remedy=remedy, cut=cut)
            finding = remedied if words else replace(finding, verdict="depends on the cut", cut=cut)
        return finding

    def equals(
        self,
        asked: Settings,
        objective: Objective,
        factor: Callable[[Batch], float] = lambda _: 1.0,
        set_to: Settings | None = None,
        cut: bool = False,
    ) -> bool:
        """Tell whether the trainer's gradient, so asked, is that of an objective times a factor, on every batch."""
        try:
            return all(
                Gap(
                    gradient(self.trainer, asked, batch, ranks, mini_batches=count, set_to=set_to)[0],
                    [[factor(batch) * slope for slope in row] for row in objective.gradient(batch)],
                ).equal
                for _, batch in self.batches
                for _, ranks, count in (("", None, 1), *(cuts(len(batch.lengths)) if cut else ()))
            )
        except (Failed, Unsupported):
            return False

    def convention(self) -> tuple[str, dict[str, str]]:
        """Find what the trainer means by the same numbers, and the options that make it the paper's."""
        asked, objective = self.case.asked, self.case.objective
        remedies = self.case.remedies
        for count in (1, 2):
            for names in combinations(remedies, count):
                changed = {**asked, **{key: value for name in names for key, value in remedies[name].items()}}
                if self.equals(changed, objective):
                    options = gradient(self.trainer, changed, self.batches[0][1])[1]
                    return "; ".join(names), options
        if (chosen := self.other_choice())[0]:
            return chosen
        for words, other in self.readings():
            if self.equals(asked, other):
                return words, self.other_options(other)
            for name, settings in remedies.items():
                if self.equals({**asked, **settings}, other):
                    return f"{name}; {words}", {}
        for words, factor in _FACTORS.items():
            if self.equals(asked, objective, factor):
                return words, {}
        return "", {}

    def other_choice(self, cut: bool = False) -> tuple[str, dict[str, str]]:
        """Find a value of another option that gives the paper's gradient, however the mini-batch is cut if asked."""
        fault = "depends on the cut" if cut else "is not the paper's"
        for name, value in self.choices:
            if self.equals(self.case.asked, self.case.objective, set_to={name: value}, cut=cut):
                options = gradient(self.trainer, self.case.asked, self.batches[0][1], set_to={name: value})[1]
                return f"its default of another option {fault}", options
        return "", {}

    @cached_property
    def choices(self) -> list[tuple[str, Any]]:
        """Each value of each option of its own that the trainer documents, and that is not asked for."""
        options = gradient(self.trainer, self.case.asked, self.batches[0][1])[1]
        documented = checked(self.trainer.answer({"ask": "choices"}))["choices"]
        return [(name, value) for name, values in documented.items() if name not in options for value in values]

    def readings(self) -> Iterator[tuple[str, Objective]]:
        """List what the trainer may compute instead."""
        modes: tuple[Mode, ...] = get_args(Mode)
        for name, changes in {"": {}, **self.case.readings}.items():
            for mode in modes:
                constant = float(LONGEST) if mode == "seq-mean-token-sum-norm" else None
                words = [name] if name else []
                if mode != self.case.objective.mode:
                    words.append(f"it aggregates by {mode}, not by {self.case.objective.mode}")
                if words:
                    yield "; ".join(words), replace(self.case.objective, mode=mode, constant=constant, **changes)

    def other_options(self, read: Objective) -> dict[str, str]:
        """Look for an aggregation that makes the trainer the paper's where it was read as another one."""
        for mode in get_args(Mode):
            changed = {**self.case.asked, "aggregation": mode}
            if read.mode != self.case.objective.mode and self.equals(changed, self.case.objective):
                return gradient(self.trainer, changed, self.batches[0][1])[1]
        return {}

    def smallest(self) -> str:
        """Describe the smallest part of a batch on which the trainer's gradient is not the paper's."""
        for _, batch in self.batches:
            if Gap(gradient(self.trainer, self.case.asked, batch)[0], self.case.objective.gradient(batch)).equal:
                continue
            for part in (*smaller(batch), batch):
                computed, _ = gradient(self.trainer, self.case.asked, part)
                wanted = self.case.objective.gradient(part)
                if not Gap(computed, wanted).equal:
                    return described(part, computed, wanted)
        return ""

    def padding(self) -> str:
        """Tell what NaN at padded positions does."""
        batch = self.batches[1][1]
        try:
            computed, _ = gradient(self.trainer, self.case.asked, batch, padding=math.nan)
            clean, _ = gradient(self.trainer, self.case.asked, batch)
        except Failed:
            return "fails"
        return "ignored" if Gap(computed, clean).equal else "spreads"


def _finite(number: float) -> float:
    return min(number, 1e9)


def cuts(rows: int) -> Iterator[tuple[str, Ranks, int]]:
    """Cut a mini-batch: into micro-batches, over two ranks with two of them each, and as one of two of its rollouts."""
    half = rows // 2
    quarters = [list(range(start, min(start + half // 2, rows))) for start in range(0, rows, half // 2)]
    yield "micro-batches", [quarters], 1
    yield "ranks", [quarters[: len(quarters) // 2], quarters[len(quarters) // 2 :]], 1
    yield "a rollout batch of two mini-batches", [quarters], 2


def described(batch: Batch, computed: Rows, wanted: Rows) -> str:
    """Describe a small batch with both gradients, for people, with as many digits as show where they differ."""
    highest = max(abs(x) for row in wanted for x in row) or 1.0
    apart = [(x, y) for x, y in Gap(computed, wanted).pairs if not abs(x - y) < TOLERANCE * highest]
    digits = next(n for n in range(4, 18) if n == 17 or all(f"{x:.{n}g}" != f"{y:.{n}g}" for x, y in apart))
    lines = []
    for i, length in enumerate(batch.lengths[:4]):
        ratios = ", ".join(f"{math.exp(batch.delta(i, t)):.4g}" for t in range(length))
        values = ", ".join(f"{x:.{digits}g}" for x in computed[i][:length])
        right = ", ".join(f"{x:.{digits}g}" for x in wanted[i][:length])
        advantage = f"{batch.advantage[i][0]:.3g}"
        lines.append(f"ratios [{ratios}] with A = {advantage}: gradient [{values}], the paper's [{right}]")
    more = len(batch.lengths) - len(lines)
    return "; ".join(lines) + (f"; and {more} more responses" if more else "")


def try_losses(trainer: Answering, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Try the objectives of these names, or all, and the advantages."""
    for case in CASES:
        if not names or case.name in names:
            yield Trial(trainer, case).finding()
    if not names or "advantages" in names:
        for name in ADVANTAGES:
            yield try_advantages(trainer, name)


_DEVIATIONS: Mapping[str, tuple[float, int]] = {
    f"{epsilon:g} is added to the standard deviation{', whose denominator is n' if not less else ''}": (epsilon, less)
    for less in (1, 0)
    for epsilon in (0.0, 1e-9, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)
}


def try_advantages(trainer: Answering, name: str) -> Finding:
    """Compare a trainer's advantages with (R - mean) / std and its kin; std has n - 1 in its denominator."""
    objective = f"advantages {name}"
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.25, 1.0, 1.0, 1.0, 1.0]
    groups = [i // 4 for i in range(len(rewards))]
    try:
        computed = advantages(trainer, name, rewards, groups)
    except Unsupported as why:
        return Finding(objective=objective, verdict="not offered", note=str(why))
    except Failed as error:
        return Finding(objective=objective, verdict="fails", note=str(error))
    for words, (epsilon, less) in {"": (1e-6, 1), **_DEVIATIONS}.items():
        gap = Gap([computed], [expected.advantages(name, rewards, groups, epsilon, less)])
        if not words:
            first = gap
        if gap.largest < 1e-6:
            # An epsilon of any common size is the paper's, which has none; n in the denominator is not.
            verdict: Verdict = "convention" if "denominator" in words else "equal"
            return Finding(
                objective=objective, verdict=verdict, convention=words, difference=first.largest, tokens=len(rewards)
            )
    return Finding(
        objective=objective,
        verdict="differs",
        difference=_finite(first.largest),
        tokens=len(rewards),
        smallest=f"rewards {rewards[:8]}: {[round(x, 4) for x in computed[:8]]}",
    )
