"""The chance that one of k responses is right, of every method and of its base model: ``tables/pass_at_k.{md,csv}``.

A method that is better at k = 1 may be worse at a larger k, where its base model, whose responses vary more, overtakes
it (arXiv 2504.13837).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.random import stream_seed
from evals.core.records import BASE, Condition, Interval
from evals.results import Results
from evals.statistics.accuracy import FloatArray, pass_at_k
from evals.statistics.resampling import draw_problems
from evals.statistics.robust import percentile_interval
from evals.tables import numbers
from evals.tables.layout import Cells, Texts, estimate_columns, table_of_texts, write_table

RESAMPLES = 2_000


@dataclass(frozen=True)
class Curve:
    """pass@k of a method, a mean over benchmarks and seeds, in fractions of one; k is 1 to the number of samples."""

    values: FloatArray  # at each k [K]
    replicates: FloatArray  # the same of other problems, the same for all methods, and other seeds [R, K]
    base: "Curve | None" = None  # of the base model; None of itself, and where it was not scored

    def band(self, confidence: float) -> tuple[FloatArray, FloatArray]:
        """The interval at each k [K], [K]."""
        low, high = percentile_interval(self.replicates, confidence)
        return np.asarray(low), np.asarray(high)

    def overtaken(self, confidence: float) -> tuple[float, Interval] | None:
        """The first k at which the base model is ahead, infinite if there is none, and its interval."""
        if self.base is None:
            return None
        replicates = _first_ahead(self.base.replicates - self.replicates)
        ends = np.quantile(replicates, [0.5 - confidence / 2, 0.5 + confidence / 2], method="nearest")
        return float(_first_ahead(self.base.values - self.values)), (float(ends[0]), float(ends[1]))


def _first_ahead(lead: FloatArray) -> FloatArray:
    """The first k [...] at which a lead [..., K] is above 0; infinite where it never is."""
    ahead = lead > 0.0
    return np.where(ahead.any(axis=-1), ahead.argmax(axis=-1) + 1.0, np.inf)


def curves(results: Results) -> dict[Condition, Curve]:
    """Estimate pass@k of every method for every k up to the number of samples."""
    samples = results.samples_per_problem
    streams = {name: np.random.default_rng(stream_seed("pass@k", name)) for name in results.benchmarks}
    draws = {
        name: draw_problems(problems, streams[name], RESAMPLES, results.clusters.get(name))
        for name, problems in results.problems.items()
    }
    shares = np.array(results.weights) / sum(results.weights)

    def curve(condition: Condition, base: Curve | None = None) -> Curve:
        runs = results.held(condition)
        stream = np.random.default_rng(stream_seed("pass@k", condition.model, condition.method))
        seeds = stream.multinomial(len(runs), np.full(len(runs), 1.0 / len(runs)), size=RESAMPLES) / len(runs)  # [R, S]
        values, replicates = np.zeros(samples), np.zeros((RESAMPLES, samples))
        for share, name in zip(shares, results.benchmarks, strict=True):
            counts = np.array([results.scores[run.run, name].correct_counts for run in runs])[..., None]  # [S, N, 1]
            rates = np.stack([pass_at_k(counts, samples, k) for k in range(1, samples + 1)])  # [K, S, N]
            values += share * rates.mean(axis=(1, 2))
            by_seed = np.einsum("ksn,rn->rks", rates, draws[name] / draws[name].sum(axis=1, keepdims=True))
            replicates += share * np.einsum("rks,rs->rk", by_seed, seeds)
        return Curve(values, replicates, base)

    bases = {row.model: curve(row) for row in results.conditions if row.method == BASE}
    trained = {row: curve(row, bases.get(row.model)) for row in results.conditions if row.method != BASE}
    return {row: trained.get(row) or bases[row.model] for row in results.conditions}


def write_pass_at_k_table(results: Results, out: Path) -> None:
    """Write a row for each method: pass@k, the difference to the base model at the largest k, and who is ahead."""
    samples, confidence = results.samples_per_problem, results.confidence
    levels = sorted({2**power for power in range(samples.bit_length())} | {samples})
    shown, written = Texts(), Cells()
    for row, curve in curves(results).items():
        gain, overtaken, base, first = numbers.NOTHING, numbers.NOTHING, curve.base, curve.overtaken(confidence)
        if base is not None and first is not None:
            low, high = percentile_interval(curve.replicates[:, -1] - base.replicates[:, -1], confidence)
            gain = numbers.points_with_interval(float(curve.values[-1] - base.values[-1]), (float(low), float(high)))
            ahead, *ends = ("none" if np.isinf(k) else f"{k:.0f}" for k in (first[0], *first[1]))
            overtaken = ahead if {ahead} == {*ends} else f"{ahead} [{', '.join(ends)}]"  # 4 [2, none]
        at = {f"k = {k}": numbers.percent(curve.values[k - 1]) for k in levels}
        of_base = {f"Over base at k = {samples} (pp)": gain, "Base ahead from k": overtaken}
        shown[row] = {"Method": row.title, **at, **of_base}
        lows, highs = (end.tolist() for end in curve.band(confidence))
        cells: dict[str, Any] = {"title": row.title}
        for k in levels:
            cells |= estimate_columns(f"pass_at_{k}", (float(curve.values[k - 1]), (lows[k - 1], highs[k - 1])))
        cells |= {"model": row.model, "method": row.method}
        written[row] = cells | estimate_columns("base_ahead_from", first)
    level = round(100 * confidence)
    note = (
        f"pass@k: the chance that one of k responses is right, without bias from {samples} responses to each problem; "
        f"{results.mean_text}, and over the seeds that did not fall. Brackets: {level} % bootstrap over problems and "
        "seeds; differences are paired by problem. Base ahead from k: the first k at which the base model's pass@k is "
        f"higher; none: at no k up to {samples}."
    )
    table = table_of_texts("pass_at_k", "pass@k (%)", shown, [note, results.extraction_note])
    write_table(out, [table], written, results.sources, {"resamples": RESAMPLES})
