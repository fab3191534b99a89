"""Measures how often verdicts of studies are false: ``python benchmarks/stopping.py OUT.json [STUDIES] [CASE ...]``.

Simulated are whole studies in the shape of the default one: the curves of every run, some of which fall, and its
correct samples of every problem. They go through the project's own code: the rule of falls, the estimates, the looks,
the verdicts on both parts. Intervals are Student's: the bootstrap, which can only lengthen them, is left out.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy.stats import binomtest

from evals.core.comparisons import Comparison, Falls, Look, Verdict
from evals.core.records import ALL_BENCHMARKS, Way
from evals.scores import comparison
from evals.scores.designs import best_rates
from evals.scores.looks import judge
from evals.statistics.difference import Arm, Difference, estimate_difference
from evals.statistics.resampling import choice_variance
from evals.statistics.robust import falls_p_value, fell_in_training
from evals.statistics.sequential import Repetitions, StoppingRule, nominal_levels
from evals.statistics.suite import Suite

LOOKS, AT_MOST, MARGIN, STEPS, VALIDATED = (4, 6, 8, 11, 16), 16, 0.02, 24, 3
AT_ONCE = 50  # studies in memory
DEFAULT = (-0.6, 0.1, -4.2, -0.2, -8.0, 0.0, -0.3, -6.7, -67.0)
"""Differences in the shape of the default study, in points."""
Array = np.ndarray[Any, Any]
Row = dict[str, Any]
p_value_of_falls = cache(falls_p_value)
setattr(comparison, "falls_p_value", p_value_of_falls)  # noqa: B010  tens of milliseconds each


@dataclass(frozen=True)
class Case:
    """Studies of one truth; points are per cent of the score."""

    effects: tuple[float, ...]  # of each method, in points, where no run falls
    falls: tuple[float, ...] = ()  # the shares of runs that fall, of the first methods; of the others none do
    reference_falls: float = 0.0
    points: float = 30.0  # that a run loses by falling
    validated: bool = True  # whether held-out scores tell falls, too
    seed_sds: tuple[float, ...] = (0.95,)  # points, the reference first, the last for all others; 1.14 with noise
    way_sd: float = 0.019  # of a method's ways with single problems
    problems: int = 480
    samples: int = 8
    rates: tuple[float, float] = (0.72, 0.92)  # of the problems
    topics: int = 0  # whose problems share a method's ways; 0: none do
    topic_sd: float = 0.0
    declared: bool = False  # whether the topics are clusters
    looks: tuple[int, ...] = LOOKS
    bases: int = 1  # base models, from which seeds start in turn
    base_sd: float = 0.0  # points, of the difference of two methods over base models
    judgements: str = ""  # each: every method is one of three comparisons of its own study; nth: the nth as the nth
    repeated: bool = False  # whether MDE and the like are computed, which takes long


def nulls(number: int, **others: Any) -> Case:
    """Methods that are their reference in all but falls."""
    return Case((0.0,) * number, **others)


ONE_IN_12, HALF = (1 / 12,) * 7, (0.5,) * 8
CASES = {
    "null, 9 methods": nulls(9),
    "2.0 either side": Case((-2.0, 2.0) * 4, repeated=True),
    "2.5 either side": Case((-2.5, 2.5) * 4),
    "3.0 either side": Case((-3.0, 3.0) * 4),
    "1.5 below": Case((-1.5,) * 8, repeated=True),
    "the default study": Case(DEFAULT, repeated=True),
    "1 of 9 methods falls in 1 of 12 runs": nulls(9, falls=ONE_IN_12[:1]),
    "7 of 8 methods fall in 1 of 12 runs": nulls(8, falls=ONE_IN_12),
    "the same, without validation": nulls(8, falls=ONE_IN_12, validated=False),
    "8 methods fall in half of their runs": nulls(8, falls=HALF),
    "the reference falls in 1 of 12 runs, equal where none falls": nulls(8, reference_falls=1 / 12),
    "the reference falls in 1 of 12 runs, equal in the mean": Case((-2.5,) * 8, reference_falls=1 / 12),
    "the reference falls in half of its runs": nulls(8, reference_falls=0.5),
    "all fall in 1 of 12 runs": nulls(8, falls=(1 / 12,) * 8, reference_falls=1 / 12),
    "all fall in half of their runs": nulls(8, falls=HALF, reference_falls=0.5),
    "7 of 8 methods lose 15 points in 1 of 6 runs, no fall by the rule": nulls(8, falls=(1 / 6,) * 7, points=15.0),
    "judge, null": nulls(1, judgements="each"),
    "judge, the method falls in 1 of 12 runs": nulls(1, falls=ONE_IN_12[:1], judgements="each"),
    "judge, 20 files, each as the first": nulls(20, judgements="each"),
    "judge, 20 files, the nth as the nth": nulls(20, judgements="nth"),
    "30 problems, null": nulls(8, problems=30, rates=(0.1, 0.6), way_sd=0.07, samples=32),
    "30 problems, -5": Case((-5.0,) * 8, problems=30, rates=(0.2, 0.7), way_sd=0.07, samples=32),
    "30 problems, -10": Case((-10.0,) * 8, problems=30, rates=(0.3, 0.7), way_sd=0.07, samples=32),
    "scores of 2 %, null": nulls(8, rates=(0.01, 0.03), way_sd=0.002, seed_sds=(0.2,)),
    "scores of 98 %, null": nulls(8, rates=(0.97, 0.99), way_sd=0.002, seed_sds=(0.2,)),
    "one sample a problem, null": nulls(8, samples=1),
    "seeds of the methods vary by 2.5 points, of the reference by 1, null": nulls(8, seed_sds=(1.0, 2.5)),
    "seeds that vary by 3 to 20 points, null": nulls(
        6, rates=(0.4, 0.6), seed_sds=(3.0, 3.0, 5.0, 8.0, 12.0, 16.0, 20.0)
    ),
    "12 topics of 10 problems, null": nulls(8, problems=120, rates=(0.4, 0.6), topics=12, topic_sd=0.12),
    "12 topics of 10 problems, declared, null": nulls(
        8, problems=120, rates=(0.4, 0.6), topics=12, topic_sd=0.12, declared=True
    ),
    **{
        f"3 base models, interaction {sd:g}, {words}": Case(effects, looks=(6, 9, 12, 15), bases=3, base_sd=sd)
        for sd in (0.0, 0.5, 1.0, 2.0)
        for words, effects in {"null": (0.0,) * 9, "2.0 either side": (-2.0, 2.0) * 4}.items()
    },
    "16 seeds at once, null": nulls(9, looks=(16,)),
    "16 seeds at once, 7 of 8 methods fall in 1 of 12 runs": nulls(8, falls=ONE_IN_12, looks=(16,)),
}


def share(hits: int, of: int) -> Row | None:
    """A share in per cent with its exact 95 % interval; None of nothing."""
    if not of:
        return None
    low, high = binomtest(hits, of).proportion_ci()
    return {"percent": round(100 * hits / of, 2), "low": round(100 * low, 2), "high": round(100 * high, 2), "of": of}


def drawn_falls(generator: np.random.Generator, case: Case, shape: tuple[int, ...], rate: float) -> tuple[Array, Array]:
    """Draw what runs [...] lose by falling, in fractions of one, and say which of them fell by the rule.

    A fall begins at any step of the second half and takes three steps.
    """
    step, falls = np.arange(STEPS), (generator.random(shape) < rate) * case.points / 100
    begins = generator.integers(STEPS // 2, STEPS, shape)
    lost = falls[..., None] * np.clip((step - begins[..., None] + 1) / 3.0, 0.0, 1.0)
    curves = 0.45 + 0.4 * (1 - np.exp(-step / 6.0)) - lost
    rewards = curves + 0.05 * generator.standard_normal(curves.shape)
    held_out = curves[..., VALIDATED - 1 :: VALIDATED]
    held_out = held_out + 0.035 * generator.standard_normal(held_out.shape)
    fell = fell_in_training(rewards)
    return lost[..., -1], fell | fell_in_training(held_out, window=1) if case.validated else fell


@cache
def lost_by_held(case: Case, rate: float) -> float:
    """The mean loss of the runs that did not fall by the rule, though some may have begun to."""
    lost, fell = drawn_falls(np.random.default_rng(5), case, (20_000,), rate)
    return float(lost[~fell].mean())


def draw_method(generator: np.random.Generator, case: Case, base: Array, effect: float, sd: float, rate: float) -> Any:
    """The accuracies [R, S, N], which runs fell by the rule [R, S], and what these base models add [R]."""
    studies = len(base)
    lost, fell = drawn_falls(generator, case, (studies, AT_MOST), rate)
    ways = case.way_sd * generator.standard_normal((studies, 1, case.problems))
    if case.topics:
        of_topic = case.topic_sd * generator.standard_normal((studies, 1, case.topics))
        ways = ways + np.repeat(of_topic, case.problems // case.topics, axis=2)
    score = (effect + sd * generator.standard_normal((studies, AT_MOST))) / 100 - lost
    of_bases = np.zeros((studies, case.bases))
    if case.base_sd:
        of_bases = case.base_sd / 100 / np.sqrt(2) * generator.standard_normal(of_bases.shape)
        score = score + of_bases[:, np.arange(AT_MOST) % case.bases]
    rates = np.clip(base + ways + score[..., None], 0, 1)
    return generator.binomial(case.samples, rates) / case.samples, fell, of_bases.mean(axis=1)


def compared(
    case: Case, one: Any, other: Any, look: int, against: int, studies: list[int]
) -> dict[int, Difference | None]:
    """The differences of the runs that did not fall, of a method's first seeds and the reference's, by study."""
    sides = [(*(part[studies] for part in side[:2]), seeds) for side, seeds in ((one, look), (other, against))]
    held = np.stack([(~fell[:, :seeds]).sum(axis=1) for _, fell, seeds in sides], axis=1)
    patterns = np.concatenate([fell[:, :seeds] for _, fell, seeds in sides], axis=1) if case.bases > 1 else held
    rows: dict[int, Difference | None] = dict.fromkeys(studies)
    labels = np.repeat(np.arange(case.topics), case.problems // case.topics) if case.declared else None
    samples = [case.samples], [case.samples]
    for pattern in {tuple(row) for row in patterns[held.min(axis=1) > 1].tolist()}:
        (members,) = np.nonzero((patterns == pattern).all(axis=1))
        arms, bases = [], list[list[int] | None]()
        for (values, fell, seeds), count in zip(sides, held[members[0]], strict=True):
            order = np.argsort(fell[members, :seeds], axis=1, kind="stable")[:, :count]
            arms.append([values[members[:, None], order]])
            bases.append((order[0] % case.bases).tolist() if case.bases > 1 else None)
        one, other = map(Arm, arms, samples, bases)
        every = estimate_difference(one, other, Suite(clusters=[labels]))
        names = ("estimate", "problem_variance", "problem_freedom", "seed_variance", "seed_freedom")
        parts = [np.broadcast_to(getattr(every, name), len(members)) for name in names]
        variances = [(np.broadcast_to(variance, len(members)), freedom) for variance, freedom in every.arms]
        for place, member in enumerate(members):
            of_arms = tuple((np.asarray(variance[place]), freedom) for variance, freedom in variances)
            of_bases = None if every.base_variance is None else every.base_variance[place]
            more: Row = {"arms": of_arms, "bases": every.bases, "base_variance": of_bases}
            rows[studies[member]] = Difference(*(np.asarray(part[place]) for part in parts), **more)
    return rows


def interval(difference: Difference, level: float) -> tuple[float, float]:
    """Both ends of an interval."""
    low, high = difference.interval(1 - level)
    return float(low), float(high)


def look_at(difference: Difference | None, fell: int, against_fell: int, seeds: int, level: float) -> Look:
    """Judge a comparison at a look, after so many seeds of both."""
    row = Comparison.model_construct(
        model="m", method="m", against="r", benchmark=ALL_BENCHMARKS, difference=0.0, seeds=seeds, against_seeds=seeds,
        confidence_interval=difference and interval(difference, level), fell=fell, against_fell=against_fell,
        falls_p_value=p_value_of_falls(fell, seeds, against_fell, seeds),
    )  # fmt: skip
    return judge(row, MARGIN, level, level)


def judge_falls(rows: list[Row], level: float) -> None:
    """Judge the falls of a study's methods at its end."""
    for row, tested in zip(rows, comparison.tested_falls(rows), strict=True):
        if tested["falls_p_value_holm"] <= level:
            more = row["fell"] * row["against_seeds"] > row["against_fell"] * row["seeds"]
            row["falls"] = Falls.MORE if more else Falls.LESS


def studies_of(case: Case, generator: np.random.Generator, studies: int) -> Iterator[list[Row]]:
    """Yield studies: a row for each method, as it ended."""
    looks, methods = case.looks, len(case.effects)
    nth = [number if case.judgements == "nth" else 1 for number in range(1, methods + 1)]
    family = 3 if case.judgements else methods
    levels = [nominal_levels(looks, looks[-1], 0.05 / family / number) for number in nth]
    alone = nominal_levels(looks, looks[-1], 0.05)
    sds = [*case.seed_sds, *[case.seed_sds[-1]] * methods]
    for start in range(0, studies, AT_ONCE):
        number = min(AT_ONCE, studies - start)
        base = generator.uniform(*case.rates, (number, 1, case.problems))
        reference = draw_method(generator, case, base, 0.0, sds[0], case.reference_falls)
        chunk: list[list[Row]] = [[] for _ in range(number)]
        for method, effect in enumerate(case.effects):
            rate = [*case.falls, *[0.0] * methods][method]
            one = draw_method(generator, case, base, effect, sds[method + 1], rate)
            ended: dict[int, Row] = {}
            for look, level in zip(looks, levels[method], strict=True):
                rows = compared(case, one, reference, look, look, sorted(set(range(number)) - set(ended)))
                if look == looks[0]:
                    rows = {study: row and row.with_least_freedom() for study, row in rows.items()}
                fell, against_fell = (side[1][:, :look].sum(axis=1).tolist() for side in (one, reference))
                looked = {
                    study: look_at(row, fell[study], against_fell[study], look, level) for study, row in rows.items()
                }
                ends = [study for study, of_look in looked.items() if of_look.is_decided or look == looks[-1]]
                at_end = compared(case, one, reference, look, looks[-1], ends)
                for study in ends:
                    of_look = looked[study]
                    ended[study] = row = {"method": method, "look": look, "verdict": of_look.verdict}
                    row |= {"seeds": look, "against_seeds": looks[-1], "fell": fell[study], "falls": of_look.falls}
                    row["against_fell"] = int(reference[1][study, : looks[-1]].sum())
                    row["of these bases"] = float(one[2][study] - reference[2][study])
                    if (naive := rows[study]) is not None and (final := at_end[study]) is not None:
                        row |= {"same seeds": float(naive.estimate), "all seeds": float(final.estimate)}
                        row["interval"] = interval(final, alone[looks.index(look)])
                        if (over := final.over_base_models()) is not None:
                            low, high = interval(over, alone[looks.index(look)])
                            row["over bases"] = min(low, row["interval"][0]), max(high, row["interval"][1])
                        if case.repeated and start == 0:
                            streams = (np.random.default_rng([2, study, stream]) for stream in (method, 99))
                            rule = StoppingRule(looks, levels[method], MARGIN)
                            again = Repetitions.draw(final, (look, looks[-1]), rule, *streams)
                            row["median-unbiased"] = again.median_unbiased(row["all seeds"])
                            row |= {"mde": again.detectable(), "open": again.end(row["median-unbiased"])[1]}
            for study, row in ended.items():
                chunk[study].append(row)
        level_at_end = 0.05 if len(looks) == 1 else 0.025
        for study_rows in chunk:
            if not case.judgements:
                judge_falls(study_rows, level_at_end)
            for row, count in zip(study_rows, nth, strict=True) if case.judgements else ():
                control = {**row, "fell": 0, "seeds": looks[-1]}
                judge_falls([row, {**control}, {**control}], level_at_end / count)
            yield study_rows


def simulate(name: str, case: Case, studies: int) -> Row:
    """Simulate the studies of a case, and count what they say: a verdict is false by the truth of its own part."""
    generator = np.random.default_rng([1, *name.encode()])
    ended, methods = list(studies_of(case, generator, studies)), len(case.effects)
    rates = [*case.falls, *[0.0] * methods][:methods]
    losses = [lost_by_held(case, rate) - lost_by_held(case, case.reference_falls) for rate in rates]
    truth = [effect / 100 - loss for effect, loss in zip(case.effects, losses, strict=True)]

    def is_false(row: Row) -> bool:
        true, verdict = truth[row["method"]] + row["of these bases"], row["verdict"]
        if verdict is Verdict.EQUIVALENT:
            return abs(true) >= MARGIN
        return bool((verdict is Verdict.BETTER and true <= 0) or (verdict is Verdict.WORSE and true >= 0))

    def is_false_of_falls(row: Row) -> bool:
        more = rates[row["method"]] - case.reference_falls
        return bool((row["falls"] is Falls.MORE and more <= 0) or (row["falls"] is Falls.LESS and more >= 0))

    rows = [row for study in ended for row in study]
    known = [row for row in rows if "interval" in row]
    covered = sum(
        row["interval"][0] <= truth[row["method"]] + row["of these bases"] <= row["interval"][1] for row in known
    )
    over = [row for row in known if "over bases" in row]
    covered_over = sum(row["over bases"][0] <= truth[row["method"]] <= row["over bases"][1] for row in over)
    result: Row = {
        "true score, points": sorted({round(100 * value, 2) for value in truth}),
        "studies with a false verdict on a score": share(sum(any(map(is_false, study)) for study in ended), studies),
        "studies with a false verdict on falls": share(
            sum(any(map(is_false_of_falls, study)) for study in ended), studies
        ),
        "covered": share(covered, len(known)),
        "covered over base models": share(covered_over, len(over)),
        "fell": share(sum(row["fell"] for row in rows), sum(row["seeds"] for row in rows)),
        "falls shown": share(sum(row["falls"] is not None for row in rows), len(rows)),
        "seeds": round(fmean(row["look"] for row in rows), 2),
        "all decided": share(sum(all(row["verdict"] for row in study) for study in ended), studies),
    }
    for verdict in (Verdict.BETTER, Verdict.WORSE, Verdict.EQUIVALENT, None):
        result[verdict or "not decided"] = share(sum(row["verdict"] is verdict for row in rows), len(rows))
    for method in sorted({row["method"] for row in known if truth[row["method"]]}) if case.repeated else ():
        mine = [row for row in known if row["method"] == method]
        result[f"method {method}, true {100 * truth[method]:.1f}"] = {
            look: errors(truth[method], [row for row in mine if row["look"] == look]) for look in LOOKS
        } | {"early": errors(truth[method], [row for row in mine if row["look"] < LOOKS[-1]])}
    if case.repeated:
        said = [study for study in ended if all("open" in row for row in study)]
        result["MDE"] = [round(100 * median(study[method]["mde"] for study in said), 2) for method in range(methods)]
        chances = [1 - np.any([row["open"] for row in study], axis=0).mean() for study in said]
        result["all decided, as the studies say"] = round(100 * float(np.mean(chances)), 1)
    return result


def errors(truth: float, rows: list[Row]) -> Row:
    """The bias and the error of each estimate, in points."""
    result: Row = {"of": len(rows)}
    for kind in ("same seeds", "all seeds", "median-unbiased"):
        if off := [100 * (row[kind] - truth) for row in rows if kind in row]:
            result[kind] = {"bias": round(fmean(off), 2), "rmse": round(float(np.sqrt(np.mean(np.square(off)))), 2)}
    return result


def found_at_mde(studies: int) -> Row:
    """Measure how often a difference of the size that other studies say is found."""
    said = simulate("MDE said", nulls(8, repeated=True), AT_ONCE)["MDE"]
    return {"MDE": median(said), **simulate("found at the MDE", Case((median(said),) * 8), studies)}


def pairing(correlation: float, effect: float, paired: bool, studies: int) -> Row:
    """Measure what pairing seeds would save: one comparison of nine, seeds that vary by 1.14 points."""
    generator = np.random.default_rng([3, round(100 * correlation), round(100 * effect)])
    levels, problems = nominal_levels(LOOKS, AT_MOST, 0.05 / 9), 0.0147e-4
    decided, missed, seeds = 0, 0, 0
    for _ in range(studies):
        shared, own = generator.standard_normal(AT_MOST), generator.standard_normal((2, AT_MOST))
        runs = 0.0114 * (np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own)
        runs[0] += effect / 100 + np.sqrt(problems) * generator.standard_normal()
        for look, level in zip(LOOKS, levels, strict=True):
            one, other = runs[:, :look]
            variance, freedom = np.var(one - other, ddof=1) / look, look - 1.0
            if not paired:
                parts = np.var(runs[:, :look], axis=1, ddof=1) / look
                variance, freedom = parts.sum(), parts.sum() ** 2 / (parts**2 / (look - 1)).sum()
            values = (one.mean() - other.mean(), problems, 476.0, variance, freedom)
            difference = Difference(*map(np.asarray, values))
            if (verdict := look_at(difference, 0, 0, look, level).verdict) or look == LOOKS[-1]:
                low, high = interval(difference, level)
                missed, decided, seeds = (
                    missed + (not low <= effect / 100 <= high),
                    decided + bool(verdict),
                    seeds + look,
                )
                break
    known = {"decided": share(decided, studies), "interval misses": share(missed, studies)}
    return {**known, "seeds": round(seeds / studies, 2)}


def rates(seeds: int, better: float, studies: int) -> Row:
    """Measure how often intervals at the best of three rates cover the 0 that two methods of one truth differ by.

    They know how the choice varies, or do not.
    """
    generator = np.random.default_rng([4, seeds, round(better)])
    ways = [Way.model_construct(name=str(number)) for number in range(3)]
    truth, covered, covers_without, covers_chosen = np.array([0.0, better, 0.0]) / 100, 0, 0, 0
    reach, reach_without = list[float](), list[float]()
    for _ in range(studies):
        base, held_out = generator.uniform(0.72, 0.92, 480), generator.uniform(0.72, 0.92, 64)
        arms, chosen_truths, of_choices = [], [], 0.0
        for _ in range(2):
            ways_with, ways_held_out = (0.019 * generator.standard_normal(number) for number in (480, 64))
            score = truth[:, None] + 0.0095 * generator.standard_normal((3, seeds))
            validated = generator.binomial(2, np.clip(held_out + ways_held_out + score[..., None], 0, 1)) / 2
            scored = {str(number): row.tolist() for number, row in enumerate(validated.mean(axis=2))}
            chosen = [int(name) for name in best_rates(ways, scored)]
            answers = generator.binomial(8, np.clip(base + ways_with + score[..., None], 0, 1)) / 8
            of_choices += choice_variance(validated, answers.mean(axis=(1, 2)), generator)
            arms.append([answers[chosen, np.arange(seeds)]])
            chosen_truths.append(float(truth[chosen].mean()))
        plain = estimate_difference(*(Arm(values, [8]) for values in arms))
        low, high = interval(plain, 0.05)
        covers_without += low <= 0.0 <= high
        covers_chosen += low <= chosen_truths[0] - chosen_truths[1] <= high
        reach_without.append(50 * (high - low))
        low, high = interval(plain.with_choices(of_choices, 2.0 * (seeds - 1)), 0.05)
        covered += low <= 0.0 <= high
        reach.append(50 * (high - low))
    return {
        "covers 0": share(covered, studies),
        "covers 0 without the choice": share(covers_without, studies),
        "covers the chosen rates without the choice": share(covers_chosen, studies),
        "reach in points": round(fmean(reach), 2),
        "reach without the choice": round(fmean(reach_without), 2),
    }


def main() -> None:
    """Simulate every case, or those that are named, and write the file."""
    out, studies = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 600
    calls: dict[str, Callable[[int], Row]] = {name: partial(simulate, name, case) for name, case in CASES.items()}
    calls["found at the MDE"] = found_at_mde
    for seeds, better in ((4, 0.0), (8, 0.0), (4, 1.0), (8, 1.0), (4, 2.0), (8, 2.0), (16, 1.0)):
        calls[f"best of three rates, {seeds} seeds, one better by {better:g}"] = partial(rates, seeds, better)
    for paired in (False, True):
        for correlation in (0.0, 0.2, 0.4, 0.8):
            for effect in (0.0, 4.0):
                words = f"{'paired' if paired else 'not paired'}, correlation {correlation:g}, true {effect:g}"
                calls[words] = partial(pairing, correlation, effect, paired)
    rows = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for name in sys.argv[3:] or calls:
        rows[name] = calls[name](studies)
        print(name, json.dumps(rows[name]), flush=True)
        out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
