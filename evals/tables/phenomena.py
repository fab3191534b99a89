"""Known effects of RLVR, each with its source and published size, and whether this study shows it: ``phenomena``.

A row of ``config/phenomena.yaml`` names a statistic of runs that exist and the ends between which its interval has to
lie. Ends come from the publication; a row that is not reproduced is a result.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, create_model
from scipy.special import stdtrit

from evals.core.errors import InvalidInput
from evals.core.files import located, read_parquet
from evals.core.record import Settings, setting
from evals.core.records import BASE, Interval
from evals.core.yaml_file import read_yaml
from evals.results import Results, read_directory, read_results
from evals.statistics.accuracy import FloatArray
from evals.tables import numbers
from evals.tables.layout import Cells, Texts, estimate_columns, table_of_texts, write_table
from evals.tables.pass_at_k import curves

Estimate = tuple[float, Interval]
Ends = Annotated[tuple[float | None, float | None], Field(description="least and largest; null: none")]


class Phenomenon(Settings):
    """A known effect, a row of the table."""

    effect: str = setting("the effect, in one sentence")
    source: str = setting("where it was published")
    published: str = setting("its size there")
    statistic: str = setting("the function below that measures it")
    arguments: dict[str, Any] = setting("of that function", {})
    unit: str = setting("of what is measured, after the number", "")
    reproduced: Ends | None = setting("ends between which the whole interval lies", None)
    in_part: Ends | None = setting("ends between which the estimate itself lies", None)
    study: str | None = setting("the study whose runs it needs, a file of config/; none: the one at hand", None)


@dataclass(frozen=True)
class Evidence:
    """A study's results, those by a further decoding, and its runs, on which phenomena are measured."""

    results: Results
    decoded: Results | None
    training: Path
    study: str = "this study"
    read: set[Path] = field(default_factory=set)  # the files of runs that were read, of statistics so far

    def recorded(self, method: str, metric: str) -> dict[int, FloatArray]:
        """Seed -> a metric at each step of a run [steps]; empty for a method or a metric that the study has not."""
        row = self.results.condition(method)
        seeds = {run.seed: run.run for run in (row.runs if row else ()) if run.seed is not None}
        paths = {seed: self.training / run / "metrics.parquet" for seed, run in seeds.items()}
        self.read.update(paths.values())
        frames = {seed: _metrics(path) for seed, path in paths.items()}
        return {seed: frame[metric].to_numpy() for seed, frame in frames.items() if metric in frame}


@cache
def _metrics(path: Path) -> pd.DataFrame:
    return read_parquet(path)


def _over_seeds(values: Sequence[float]) -> Estimate | None:
    """Mean and Student's 95 % interval over seeds; None of fewer than two."""
    if len(values) < 2:
        return None
    mean = float(np.mean(values))
    reach = -float(stdtrit(len(values) - 1, 0.025)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, (mean - reach, mean + reach)


def _ratio(pairs: Iterable[tuple[float, float]]) -> Estimate | None:
    """The geometric mean over seeds of the one number over the other."""
    estimate = _over_seeds([math.log(one / other) for one, other in pairs if one > 0 and other > 0])
    return None if estimate is None else (math.exp(estimate[0]), (math.exp(estimate[1][0]), math.exp(estimate[1][1])))


def metric_ratio(of: Evidence, metric: str, method: str, against: str) -> Estimate | None:
    """A metric's mean over a run, over that of another method's run of the same seed; a geometric mean over seeds."""
    ours, theirs = of.recorded(method, metric), of.recorded(against, metric)
    return _ratio((ours[seed].mean(), theirs[seed].mean()) for seed in sorted(ours.keys() & theirs.keys()))


def metric_change(of: Evidence, metric: str, method: str, against: str | None = None) -> Estimate | None:
    """A metric at the last step over that at the first; or over the last one of another method's run of the seed."""
    ours = of.recorded(method, metric)
    if against is None:
        return _ratio((steps[-1], steps[0]) for steps in ours.values())
    theirs = of.recorded(against, metric)
    return _ratio((ours[seed][-1], theirs[seed][-1]) for seed in sorted(ours.keys() & theirs.keys()))


def entropy_law(of: Evidence, method: str) -> Estimate | None:
    """The R^2 of the fit R = -a exp(H) + b of a run's rewards R by its entropies H (arXiv 2505.22617, equation 1)."""
    entropies, rewards = of.recorded(method, "entropy"), of.recorded(method, "reward_mean")
    fits = [np.corrcoef(np.exp(entropies[seed]), rewards[seed])[0, 1] for seed in entropies]
    return _over_seeds([float(fit) ** 2 for fit in fits])


def gain(of: Evidence, method: str, against: str = BASE, benchmarks: Sequence[str] = ()) -> Estimate | None:
    """The difference of a method to another one, in points: the mean over some benchmarks, or over all.

    Over some benchmarks it is the mean of their differences, with an interval as if their errors were the same.
    """
    if (row := of.results.condition(method)) is None:
        return None
    names = benchmarks or ("all",)
    known = [compared for name in names if (compared := of.results.comparison(row, against, name)) is not None]
    if len(known) < len(names) or any(compared.confidence_interval is None for compared in known):
        return None
    middle = float(np.mean([100 * compared.difference for compared in known]))
    ends = np.mean([100 * np.array(compared.confidence_interval) for compared in known], axis=0)
    return middle, (float(ends[0]), float(ends[1]))


def lead_of_greedy_base(of: Evidence, method: str) -> Estimate | None:
    """The base model's greedy score less a method's score by the study's own sampling, in points, over its seeds."""
    row, base = of.results.condition(method), of.results.condition(BASE)
    greedy_base = of.decoded.condition(BASE) if of.decoded else None
    if of.decoded is None or greedy_base is None or row is None or base is None:
        return None
    greedy = of.decoded.average(greedy_base).by_seed
    ours = of.results.average(row).by_seed
    bases = {run.base_model: score for run, score in zip(base.runs, greedy, strict=True)}
    return _over_seeds([100 * (bases[run.base_model] - score) for run, score in zip(row.runs, ours, strict=True)])


def base_ahead_from(of: Evidence, method: str, samples: int) -> Estimate | None:
    """The first k at which the base model's pass@k is the higher one, of so many samples; infinite where none is."""
    row = of.results.condition(method)
    if row is None or of.results.samples_per_problem < samples:
        return None
    return curves(of.results)[row].overtaken(of.results.confidence)


def spread_of_seeds(of: Evidence, method: str) -> Estimate | None:
    """The standard deviation of a method's score over seeds, in points, with its chi-squared interval."""
    from scipy.stats import chi2

    row = of.results.condition(method)
    scores = [] if row is None else [100 * score for score in of.results.average(row).by_seed]
    if len(scores) < 2:
        return None
    deviation, freedom = float(np.std(scores, ddof=1)), len(scores) - 1
    low, high = (deviation * math.sqrt(freedom / chi2.ppf(tail, freedom)) for tail in (0.975, 0.025))
    return deviation, (float(low), float(high))


def pass_at_k_difference(of: Evidence, method: str, against: str, k: int | None = None) -> Estimate | None:
    """Pass@k less that of another method with the same seeds, in points; without a k, of all samples of a problem.

    The interval is over seeds; runs that fell are left out.
    """
    results, rows = of.results, [of.results.condition(name) for name in (method, against)]
    value = results.by_problem(f"pass@{k or results.k}")
    if (value is None and k != 1) or None in rows:
        return None
    held = [replace(row, runs=results.held(row)) for row in rows if row is not None]
    scores = [
        dict(zip(row.seeds, results.average_over(row, results.benchmarks, of_problem=value).by_seed, strict=True))
        for row in held
    ]  # without a value, of the shares of right samples
    shared = sorted(scores[0].keys() & scores[1].keys())
    return _over_seeds([100 * (scores[0][seed] - scores[1][seed]) for seed in shared])


def weights_unchanged(of: Evidence, method: str) -> Estimate | None:
    """The share of a policy's weights that are those of its base model, both rounded to bfloat16, over its seeds."""
    from safetensors.numpy import load_file

    def rounded(path: Path) -> dict[str, npt.NDArray[np.uint32]]:
        bits = {name: tensor.astype(np.float32).view(np.uint32) for name, tensor in load_file(path).items()}
        return {name: ((of + 0x7FFF + ((of >> 16) & 1)) >> 16).astype(np.uint32) for name, of in bits.items()}

    row = of.results.condition(method)
    roots = [(of.training / run.run, of.training.parent / "base" / run.base_model) for run in row.runs] if row else []
    pairs = [[root / "checkpoint" / "model.safetensors" for root in pair] for pair in roots]
    if not all(path.is_file() for pair in pairs for path in pair):
        return None
    of.read.update(path for pair in pairs for path in pair)
    shares = []
    for ours, base in (map(rounded, pair) for pair in pairs):
        same = [int((ours[name] == base[name]).sum()) for name in ours]
        shares.append(sum(same) / sum(tensor.size for tensor in ours.values()))
    return _over_seeds(shares)


_FUNCTIONS = (
    *(metric_ratio, metric_change, entropy_law, gain, lead_of_greedy_base, base_ahead_from, spread_of_seeds),
    *(pass_at_k_difference, weights_unchanged),
)
STATISTICS: dict[str, Callable[..., Estimate | None]] = {function.__name__: function for function in _FUNCTIONS}


def read_phenomena(path: Path) -> list[Phenomenon]:
    """Read the rows of the table."""
    rows = []
    for number, content in enumerate(read_yaml(path)["rows"], 1):
        rows.append(row := Phenomenon.parse(content, where := f"{path.name}: row {number}"))
        if row.statistic not in STATISTICS:
            raise InvalidInput(where, "statistic", f"is {row.statistic!r}", ", ".join(STATISTICS))
        _arguments(row.statistic).parse(row.arguments, where, "arguments")
    return rows


def _arguments(statistic: str) -> type[Settings]:
    """The arguments of a statistic as settings, so that a row's are checked as those of any other file."""
    _, *taken = signature(STATISTICS[statistic], eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        each.name: (each.annotation, ... if each.default is each.empty else each.default) for each in taken
    }
    return create_model(statistic, __base__=Settings, **fields)


def answer(row: Phenomenon, estimate: Estimate | None) -> str:
    """Reproduced, in part, not; or why that is not known."""
    if estimate is None:
        needed = f"the runs of config/{row.study}.yaml" if row.study else "runs, metric, decoding or checkpoints for it"
        return f"not measured for want of {needed}"
    value, (low, high) = estimate
    if row.reproduced is not None and _within(low, row.reproduced) and _within(high, row.reproduced):
        return "reproduced"
    return "in part" if row.in_part is not None and _within(value, row.in_part) else "not"


def _within(value: float, ends: tuple[float | None, float | None]) -> bool:
    low, high = ends
    return (low is None or value >= low) and (high is None or value <= high)


def write_phenomena_table(
    results: Results,
    phenomena: Path,
    training: Path,
    out: Path,
    decoded: Sequence[Path] = (),
    further: Sequence[Path] = (),
) -> None:
    """Write a row for each known effect; ``decoded`` are scores and comparisons by the first further decoding.

    What the study has no runs for is measured on the study of ``further``, ``results/`` each, that the row names.
    """
    count = len(results.benchmarks)
    others = read_results(results.runs, decoded[:count], decoded[count]) if decoded else None
    effects, studies = read_phenomena(phenomena), [Evidence(results, others, training)]
    shown, written = Texts(), Cells()
    for directory in further:
        name = located(directory).parent.name
        if any(row.study == name for row in effects):
            studies.append(Evidence(read_directory(directory), None, directory / "runs", name))
    for number, row in enumerate(effects):
        its_own = (of for of in studies if of is studies[0] or of.study == row.study)
        measured = ((STATISTICS[row.statistic](of, **row.arguments), of) for of in its_own)
        known = ((estimate, of.study) for estimate, of in measured if estimate is not None)
        estimate, study = next(known, (None, None))
        here, said = numbers.NOTHING, answer(row, estimate)
        if estimate is not None:
            parts = estimate[0], *estimate[1]
            value, low, high = (f"{part:.3g}" if math.isfinite(part) else "none" for part in parts)
            here = value if value == low == high else f"{value} [{low}, {high}]{row.unit}"
        of_row = {"effect": row.effect, "source": row.source, "published": row.published}
        shown[number] = {**{key.capitalize(): text for key, text in of_row.items()}, "Here": here, "Answer": said}
        written[number] = {**of_row, **estimate_columns("measured", estimate, ""), "study": study, "answer": said}
    answers, found = ([row[key] for row in written.values()] for key in ("answer", "study"))
    counted = {word: answers.count(word) for word in ("reproduced", "in part", "not")}
    rest = len(answers) - sum(counted.values())
    further_ones = [of.study for of in studies[1:] if of.study in found]
    whose = f"This study and those of {', '.join(further_ones)} show" if further_ones else "This study shows"
    note = (
        f"{whose} {counted['reproduced']} of {len(answers)} known effects, {counted['in part']} in part and "
        f"{counted['not']} not; not measured: {rest}. Reproduced: the whole 95 % interval lies where the "
        "publication has the effect; in part: the estimate alone does, or a part of the effect was measured."
    )
    table = table_of_texts("phenomena", "Known effects of RLVR", shown, [note])
    sources = [*(path for of in studies for path in (*of.results.sources, *sorted(of.read))), phenomena]
    sources += others.sources if others else ()
    write_table(out, [table], written, sources, {})
