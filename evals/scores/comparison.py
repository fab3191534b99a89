"""Every method against the reference method and the base model: scores in, ``results/comparisons.json`` out."""

import hashlib
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from evals.core.comparisons import FALL, Claim, Comparison, Comparisons, Contrast, Controls, Fall, Look, Looks, Verdict
from evals.core.config.sections import Statistics
from evals.core.errors import InvalidInput, UserError, check_option
from evals.core.files import write_json
from evals.core.manifest import verify_outputs, write_output_manifest
from evals.core.records import ALL_BENCHMARKS, BASE, BenchmarkScores, Weighting
from evals.scores.contrast import MeasuredRun, estimate_contrast
from evals.statistics.accuracy import FloatArray, IntArray
from evals.statistics.difference import Arm, Bases, estimate_difference
from evals.statistics.power import minimum_detectable_effect
from evals.statistics.resampling import bootstrap_differences, draw_problems, holm_of_known, sign_flip_p_values
from evals.statistics.robust import falls_p_value, percentile_interval
from evals.statistics.sequential import Repetitions, StoppingRule
from evals.statistics.suite import ALIKE, Clusters, Suite, cluster_sums, label, weights_of


class Pair(NamedTuple):
    """A model, its method, and the method that it is compared against, of another model if that is named."""

    model: str
    method: str
    against: str
    against_model: str | None = None


MINIMUM_DIFFERING_PROBLEMS = 6
"""With fewer problems that differ no sign flip can reach 5 % (2 / 2^5 is more), and no interval is given either."""


@dataclass(frozen=True)
class Settings:
    """The way in which methods are compared.

    With ``resample_samples`` the samples within each problem are drawn anew as well. Their noise is inside the spread
    of the problems already, so intervals then err on the long side.
    """

    reference_method: str
    claim: Claim = Claim.METHODS
    confidence: float = 0.95  # level of the intervals; 1 less it is the level of the tests
    seed: int = 0  # of the resampling
    bootstrap_resamples: int = 10_000
    permutations: int = 100_000
    resample_samples: bool = False
    weighting: Weighting = "benchmarks"  # of the mean over benchmarks
    controls: Controls | None = None  # of the study, for whoever reads the comparisons
    given: tuple[str, ...] = (BASE,)  # methods that are one given policy each: their seeds add no variance
    looks: tuple[Look, ...] = ()  # of a study that stops when it is certain
    stopping: StoppingRule | None = None  # of such a study
    is_first_look: bool = False  # at which seeds have the degrees of freedom of the method that has fewer
    choices: Mapping[str, float] = field(default_factory=dict)  # method -> variance of its mean by the choice of a way
    fall: Fall = FALL  # the rule by which a training run fell

    @classmethod
    def of(
        cls, reference_method: str, statistics: Statistics, stopping: Mapping[str, Any] | None = None, **others: Any
    ) -> Self:
        """Compare with the reference method by a study's ``statistics``; ``others`` are further fields."""
        return cls(
            reference_method,
            seed=statistics.seed,
            bootstrap_resamples=statistics.resamples,
            permutations=statistics.permutations,
            weighting=statistics.weighting or "benchmarks",
            fall=statistics.fall,
            stopping=StoppingRule(**stopping) if stopping else None,
            **others,
        )

    def __post_init__(self) -> None:
        """Refuse numbers out of range; the options of the command line have these names."""
        check_option("resamples", self.bootstrap_resamples, self.bootstrap_resamples >= 100, "100 or more")
        check_option("permutations", self.permutations, self.permutations >= 100, "100 or more")
        check_option("seed", self.seed, self.seed >= 0, "0 or more")
        check_option("confidence", self.confidence, 0.5 <= self.confidence < 1.0, "0.5 up to 1, 1 excluded")

    def last_look(self, pair: Pair) -> Look | None:
        """The look that a comparison with the reference method ended with, if it was looked at."""
        rows = [look for look in self.looks if pair[:3] == (look.model, look.method, self.reference_method)]
        return rows[-1] if rows else None


@dataclass(frozen=True)
class BenchmarkCounts:
    """The correct samples of all runs on one benchmark, of the file ``path``."""

    path: Path
    benchmark: str
    samples: Mapping[str, int]  # run -> samples of each problem
    methods: Mapping[str, tuple[str, str]]  # run -> its model and method, in file order
    counts: Mapping[str, Sequence[int]]  # run -> correct samples of each problem
    clusters: Clusters = None  # of problems that are near copies of one another
    by_last_statement: bool = False  # whether the last statement of a response without a mark was its answer
    fallen: frozenset[str] | None = None  # runs that fell; None where no training was read
    bases: Mapping[str, int] = field(default_factory=dict)  # run -> its base model, where a model has several

    @property
    def problems(self) -> int:
        return len(next(iter(self.counts.values())))

    @property
    def k(self) -> int:
        """The samples of a problem; of files side by side that differ in it, of the first."""
        return next(iter(self.samples.values()))

    def of(self, methods: Mapping[str, tuple[str, str]]) -> Self:
        """Take some runs alone, each as one of the model and method that it is given."""
        return replace(self, methods=methods, counts={run: self.counts[run] for run in methods})

    def runs(self, model: str, method: str, seeds: int | None = None) -> tuple[list[str], int | None]:
        """A method's first ``seeds``, and how many of them fell, where that is known."""
        runs = [run for run, known in self.methods.items() if known == (model, method)][:seeds]
        return runs, None if self.fallen is None or method == BASE else len(self.fallen.intersection(runs))

    def held(self, model: str, method: str, seeds: int | None = None) -> list[str]:
        """A method's first ``seeds`` without those that fell; where all fell, all."""
        runs, _ = self.runs(model, method, seeds)
        return [run for run in runs if run not in (self.fallen or ())] or runs


def write_comparisons(scores: Sequence[Path], settings: Settings, out: Path, training: Path | None = None) -> None:
    """Write the comparisons of ``scores``, results/scores/*.json without the manifests, and a manifest beside them.

    ``training`` has the directories of the runs, whose metrics give the methods' contrast with the reference method.
    """
    counts, measured = with_falls(read_counts(scores), training, settings.fall)
    content = compare(counts, settings, _contrasts(counts[0], measured, settings)).to_json()
    write_json(out, content)
    rows = {key: len(content.pop(key)) for key in ("comparisons", "contrasts")}
    read = [*(source.path for source in counts), *(file for of_run in measured.values() for file in of_run.files)]
    write_output_manifest("comparisons", out.with_suffix(""), [out.suffix], read, content, rows)


def compare_study(
    scores: Sequence[Path], decisions: Sequence[Path], settings: Mapping[str, Any], training: Path | None, out: Path
) -> None:
    """Write the comparisons of a study, after the looks at it.

    Args:
        decisions: of the last look, where the study stops when it is certain.
        settings: the fields of :class:`Settings` that the study says: ``reference_method``, ``statistics`` and others.
    """
    looks = tuple(look for path in decisions for look in Looks.read(path).looks)
    write_comparisons(scores, Settings.of(**settings, looks=looks), out, training)


def with_falls(
    benchmarks: list[BenchmarkCounts], training: Path | None, rule: Fall
) -> tuple[list[BenchmarkCounts], dict[str, MeasuredRun]]:
    """The same counts, which know the runs that fell, and the trained runs, whose directories are in ``training``."""
    if training is None:
        return benchmarks, {}
    trained = [run for run, (_, method) in benchmarks[0].methods.items() if method != BASE]
    measured = {run: MeasuredRun.read(training / run) for run in trained}
    fallen = frozenset(run for run, of_run in measured.items() if of_run.fell(rule))
    return [replace(counts, fallen=fallen) for counts in benchmarks], measured


def _contrasts(scores: BenchmarkCounts, measured: Mapping[str, MeasuredRun], settings: Settings) -> list[Contrast]:
    """The contrasts of the methods whose runs were ``measured``, in file order; the reference method has none."""
    by_method: dict[tuple[str, str], list[MeasuredRun]] = {}
    for run, measurements in measured.items():
        by_method.setdefault(scores.methods[run], []).append(measurements)
    reference, level = settings.reference_method, settings.confidence
    contrasts = [
        estimate_contrast(model, method, runs, reference, by_method.get((model, reference), []), level)
        for (model, method), runs in by_method.items()
        if method != reference
    ]
    return [contrast for contrast in contrasts if contrast is not None]


def read_counts(scores: Sequence[Path]) -> list[BenchmarkCounts]:
    """Read scores files of the same runs; manifests among the paths, as a shell's * gives them, are passed over."""
    paths = [path for path in scores if not path.name.endswith(".manifest.json")]
    if not paths:
        raise UserError("scores: names no file of scores")
    benchmarks = [_read_counts(path) for path in paths]
    first = benchmarks[0]
    for number, counts in enumerate(benchmarks):
        if differing := sorted(set(first.counts) ^ set(counts.counts)):
            raise UserError(f"{counts.path}: run {differing[0]} is in only one of it and {first.path}")
        if counts.benchmark in [other.benchmark for other in benchmarks[:number]]:
            raise UserError(f"{counts.path}: benchmark {counts.benchmark} is given twice")
    return benchmarks


def _read_counts(path: Path) -> BenchmarkCounts:
    """Read a scores file after checking it against its manifest."""
    verify_outputs(path.with_suffix(".manifest.json"), "scores")
    content = BenchmarkScores.read(path)
    if len(content.problem_ids) < 2:
        raise InvalidInput(str(path), "problem_ids", "has 1", "at least 2 problems, for a comparison")
    methods = {row.run: (row.model, row.method) for row in content.scores}
    counts = {row.run: row.correct_counts for row in content.scores}
    samples = dict.fromkeys(counts, content.samples_per_problem)
    clusters = label(content.problem_ids, content.clusters)
    stated = content.extraction is not None
    bases = {row.run: row.base for row in content.scores if row.base is not None}
    return BenchmarkCounts(path, content.benchmark, samples, methods, counts, clusters, stated, bases=bases)


def compare(
    benchmarks: Sequence[BenchmarkCounts], settings: Settings, contrasts: Sequence[Contrast] = ()
) -> Comparisons:
    """Compare every method with the reference method and the base model, on each benchmark and on all.

    Where nothing but base models was scored, every model is compared with those before it.
    """
    pairs, resamples = _pairs(benchmarks, settings.reference_method), settings.bootstrap_resamples
    draws = {
        (name := counts.benchmark): draw_problems(
            counts.problems, _generator(settings.seed, "problems", name), resamples, counts.clusters
        )
        for counts in benchmarks
    }
    of_all = weights_of(settings.weighting, {counts.benchmark: counts.problems for counts in benchmarks})
    suites = [(counts.benchmark, [counts], [1.0]) for counts in benchmarks] + [(ALL_BENCHMARKS, [*benchmarks], of_all)]
    rows: dict[Pair, list[dict[str, Any]]] = {pair: [] for pair in pairs}
    for name, members, weights in suites if pairs else ():  # a study of one base model compares nothing
        suite = Suite(weights, [benchmark.clusters for benchmark in members])
        arms = [_arms(pair, members, settings) for pair in pairs]
        contributions = np.array([problem_shares(*sides, suite) for sides in arms])
        generator = _generator(settings.seed, "sign flips", name)
        p_values = sign_flip_p_values(contributions, generator, settings.permutations).tolist()
        drawn = [draws[benchmark.benchmark] for benchmark in members]
        for pair, sides, p_value in zip(pairs, arms, p_values, strict=True):
            row = {"benchmark": name, **_compare(pair, members, sides, suite, drawn, settings, name)}
            if row["p_value"] is not None:  # sign flips need no normality, and t knows of the seeds
                row["p_value"] = max(p_value, row["p_value"])
            rows[pair].append(row)
    asked = {name: getattr(settings, name) for name in Comparisons.model_fields if hasattr(settings, name)}
    alike = {Pair(row.model, row.method, row.against) for row in contrasts if row.is_absent}
    undecided: dict[str, list[npt.NDArray[np.bool_]]] = {}
    for pair, of_pair in rows.items():
        if (last := of_pair[-1].pop("repeated", None)) is not None:
            undecided.setdefault(pair.model, []).append(last)
    judged = tuple(_judged(rows, settings, alike))
    if undecided:  # the models' studies are independent, the methods of one share its reference
        chances = (float(np.any(of_model, axis=0).mean()) for of_model in undecided.values())
        asked["all_decided"] = math.prod(1.0 - chance for chance in chances)
    if (fallen := benchmarks[0].fallen) is not None:
        asked["fallen"] = tuple(run for run in benchmarks[0].methods if run in fallen)
    if settings.stopping:
        asked |= {"margin": settings.stopping.margin, "level": settings.stopping.level}
    return Comparisons(**asked, comparisons=judged, contrasts=tuple(contrasts))


def _arms(pair: Pair, benchmarks: Sequence[BenchmarkCounts], settings: Settings) -> tuple[Arm, Arm]:
    """Look up a pair's method and what it meets.

    The reference method has all of its seeds, also those that were trained after the method's last look. Of several
    base models those count that both have runs of, where there are any; runs of different models have none in common.
    """
    look, first, known = settings.last_look(pair), benchmarks[0], benchmarks[0].bases
    one = first.held(pair.model, pair.method, look.seeds if look else None)
    other = first.held(pair.against_model or pair.model, pair.against)
    has_bases = pair.against_model is None and all(run in known for run in (*one, *other))
    if has_bases and (shared := {known[run] for run in one} & {known[run] for run in other}):
        one, other = ([run for run in runs if known[run] in shared] for runs in (one, other))
    arms = []
    for method, runs in ((pair.method, one), (pair.against, other)):
        arm = arm_of(benchmarks, runs, [known[run] for run in runs] if has_bases else None)
        # Seeds of one given policy for each base model are no sample of seeds.
        is_given = method in settings.given and len(runs) // len(arm.masks) == 1
        arms.append(replace(arm, is_fixed=settings.claim is Claim.CHECKPOINTS or is_given))
    return arms[0], arms[1]


def arm_of(benchmarks: Sequence[BenchmarkCounts], runs: Sequence[str], bases: Bases = None) -> Arm:
    """The runs of a method on all benchmarks, with the base model of each if there are several."""
    samples = [np.array([counts.samples[run] for run in runs]) for counts in benchmarks]
    right = ([counts.counts[run] for run in runs] for counts in benchmarks)
    return Arm([np.array(of) / number[:, None] for of, number in zip(right, samples, strict=True)], samples, bases)


def problem_shares(treatment: Arm, control: Arm, suite: Suite = ALIKE) -> FloatArray:
    """Each problem's share [..., sum of N] in the difference of the means over benchmarks; of clusters each one's."""
    relative = suite.relative(len(treatment.strata))
    known = suite.clusters or [None] * len(relative)
    shares = [
        cluster_sums(weight * (one - other) / one.shape[-1], labels)
        for weight, one, other, labels in zip(relative, treatment.means, control.means, known, strict=True)
    ]
    return np.concatenate(shares, axis=-1) / sum(relative)


def _pairs(benchmarks: Sequence[BenchmarkCounts], reference: str) -> list[Pair]:
    """All pairs to compare: models and methods in file order, seeds in the same order on every benchmark."""
    by_model: dict[str, list[str]] = {}
    for model, method in dict.fromkeys(benchmarks[0].methods.values()):
        by_model.setdefault(model, []).append(method)
    pairs = []
    for model, methods in by_model.items():
        if reference not in methods:
            has = f"it has {', '.join(methods)}"
            raise UserError(f"reference_method: {reference} has no scores for {model}; {has}")
        for method in methods:
            for against in dict.fromkeys((reference, BASE)):
                if method not in (against, BASE) and against in methods:
                    pairs.append(Pair(model, method, against))
    if all(methods == [BASE] for methods in by_model.values()):
        pairs = [Pair(model, BASE, BASE, other) for other, model in combinations(by_model, 2)]
    if not pairs and reference != BASE:
        raise UserError(f"scores: hold no method but {reference}; nothing to compare")
    return pairs


def _compare(
    pair: Pair,
    benchmarks: Sequence[BenchmarkCounts],
    arms: tuple[Arm, Arm],
    suite: Suite,
    draws: Sequence[IntArray],
    settings: Settings,
    name: str,
) -> dict[str, Any]:
    """One comparison but for its p-values and verdict, which take the other methods or benchmarks to know.

    The interval is the hull of the t interval, which knows of the seeds, and the percentile bootstrap, which knows of
    skewness. There is none unless enough problems differ, and differ among themselves, for it to mean anything.

    Over all benchmarks of a study that stops, MDE and what a repetition would decide are by its own rule.
    """
    treatment, control = arms
    seeds = len(treatment.strata[0]), len(control.strata[0])
    look, first = settings.last_look(pair), benchmarks[0]
    confidence = settings.confidence if look is None else 1.0 - look.level_alone  # which holds at every look
    difference = estimate_difference(treatment, control, suite)
    if settings.is_first_look:
        difference = difference.with_least_freedom()
    if settings.choices:
        of_choice = settings.choices[pair.method] + settings.choices[pair.against]
        difference = difference.with_choices(of_choice, 2.0 * (seeds[0] - 1))
    differing = np.count_nonzero(problem_shares(treatment, control, replace(suite, weights=None)))
    runs, fell = first.runs(pair.model, pair.method, look.seeds if look else None)
    against_runs, against_fell = first.runs(pair.against_model or pair.model, pair.against)
    held = fell != len(runs) and against_fell != len(against_runs)  # of what fell as a whole nothing is compared
    is_known = bool(np.isfinite(difference.standard_error)) and held
    is_spread = bool(difference.problem_variance + difference.noise > 0.0)
    interval, more = None, dict[str, Any]()
    if is_known and is_spread and differing >= MINIMUM_DIFFERING_PROBLEMS:
        generator = _generator(settings.seed, "seeds", *filter(None, pair))
        drawn = [benchmark.k for benchmark in benchmarks] if settings.resample_samples else None
        replicates = bootstrap_differences(treatment, control, draws, generator, suite, drawn)
        if drawn is None and difference.seed_variance > 0.0:  # seeds drawn within problems have their noise thrice
            narrower = min(1.0, float(difference.standard_error / replicates.std()))
            replicates = difference.estimate + narrower * (replicates - difference.estimate)
        interval = _hull(percentile_interval(replicates, confidence), difference.interval(confidence))
        more["variance_shares"] = {level: float(share) for level, share in difference.variance_shares().items()}
        if (over_bases := difference.over_base_models()) is not None:
            more |= {"bases": difference.bases, "interval_over_bases": _hull(interval, over_bases.interval(confidence))}
    effect = None
    if is_known and is_spread and look and settings.stopping and name == ALL_BENCHMARKS:
        streams = (_generator(settings.seed, "repeated", *names) for names in (pair[:3], (pair.model, pair.against)))
        repeated = Repetitions.draw(difference, seeds, settings.stopping, *streams)
        more["median_unbiased"] = repeated.median_unbiased(float(difference.estimate))
        more["repeated"] = repeated.end(more["median_unbiased"])[1]
        more["undecided"], effect = float(more["repeated"].mean()), repeated.detectable()
    elif is_known and is_spread:
        effect = float(minimum_detectable_effect(difference, 1.0 - confidence))
    return {
        **pair._asdict(),
        "method_average": _average(treatment, suite),
        "against_average": _average(control, suite),
        "difference": float(difference.estimate),
        "standard_error": float(difference.standard_error) if is_known else None,
        "confidence_interval": interval,
        "p_value": float(difference.p_values()) if is_known else None,
        "minimum_detectable_effect": effect,
        "seeds": len(runs),
        "against_seeds": len(against_runs),
        "fell": fell,
        "against_fell": against_fell,
        **more,
        "problems": sum(values.shape[1] for values in treatment.strata),
    }


def _hull(*intervals: tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[float, float]:
    """The interval from the lowest to the highest end, as far as differences of scores go."""
    low, high = zip(*intervals, strict=True)
    return float(max(-1.0, np.min(low))), float(min(1.0, np.max(high)))


def _average(arm: Arm, suite: Suite) -> float:
    """A method's mean over benchmarks, in which every base model has the same weight."""
    means = [fmean(float(values[mask].mean()) for mask in arm.masks) for values in arm.strata]
    return float(suite.mean(means))


def _judged(
    compared: Mapping[Pair, Sequence[Mapping[str, Any]]], settings: Settings, alike: Set[Pair]
) -> list[Comparison]:
    """Each pair's comparisons, the last of them over all benchmarks, with Holm p-values and verdicts.

    Over all benchmarks Holm runs over the study: every method, on every model, that is compared against the same one.
    On single benchmarks it runs over the benchmarks of the pair. The pairs ``alike`` have no contrast: that explains
    why no difference was found, but it takes nothing from one that was.
    """
    alpha = 1.0 - settings.confidence
    of_study = settings.stopping.level / 2 if settings.stopping else alpha  # the looks spend the other half
    over_methods: dict[Pair, float | None] = {}
    of_falls: dict[Pair, dict[str, Any]] = {}
    for reference in dict.fromkeys(pair.against for pair in compared):
        family = [pair for pair in compared if pair.against == reference]
        adjusted = holm_of_known([compared[pair][-1]["p_value"] for pair in family])
        over_methods |= zip(family, adjusted, strict=True)
        of_falls |= zip(family, tested_falls([compared[pair][-1] for pair in family]), strict=True)
    judged = []
    for pair, rows in compared.items():
        p_values = [*holm_of_known([row["p_value"] for row in rows[:-1]]), over_methods[pair]]
        for row, p_value in zip(rows, p_values, strict=True):
            words = verdict(row["difference"], row["confidence_interval"], p_value, alpha)
            is_mean = row["benchmark"] == ALL_BENCHMARKS
            look = settings.last_look(pair) if is_mean else None
            if look:
                words, p_value = look.verdict or Verdict.UNDECIDED, None  # a p-value knows of one look alone
            if pair in alike and words in (Verdict.NOT_DISTINGUISHABLE, Verdict.UNDECIDED):
                words = Verdict.NO_CONTRAST
            more = of_falls[pair] if is_mean else {}
            of_row = Comparison(**row, p_value_holm=p_value, verdict=words, **more)
            p_value = of_row.falls_p_value_holm
            is_certain = p_value is not None and p_value <= of_study + 1e-12
            falls = of_row.falls_differ if is_certain else look.falls if look else None
            judged.append(of_row.model_copy(update={"falls": falls}) if falls else of_row)
    return judged


def tested_falls(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Test the shares that fell, of methods beside the same one, with all seeds; Holm runs over the methods."""
    known = [[row[key] for key in ("fell", "seeds", "against_fell", "against_seeds")] for row in rows]
    p_values = [None if None in counts else falls_p_value(*counts) for counts in known]
    both = zip(p_values, holm_of_known(p_values), strict=True)
    return [{"falls_p_value": alone, "falls_p_value_holm": adjusted} for alone, adjusted in both]


def verdict(
    difference: float, interval: tuple[float, float] | None, p_value_holm: float | None, alpha: float
) -> Verdict:
    """Better or worse only where the Holm p-value and the interval both say so."""
    reaches_zero = interval is not None and interval[0] <= 0.0 <= interval[1]
    # 1 - 0.95 is 0.05000000000000004 in floating point, in either direction for other levels.
    if p_value_holm is None or p_value_holm > alpha + 1e-12 or reaches_zero:
        return Verdict.NOT_DISTINGUISHABLE
    return Verdict.BETTER if difference > 0.0 else Verdict.WORSE


def _generator(seed: int, *names: str) -> np.random.Generator:
    """A stream of its own for every use, so that a method or a benchmark more leaves the other rows' numbers alone.

    Only the Holm p-values, and with them the verdicts, know of the other rows.
    """
    digest = hashlib.sha256("\x00".join(names).encode("utf-8")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
