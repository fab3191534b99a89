"""The seed paper's table: the base model, the trained one, and both together in the ways that were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.record import read_rows
from evals.core.records import ALL_BENCHMARKS, BASE, Condition, Sample
from evals.decoding import SCHEMES
from evals.decoding.settings import Choice, Choices
from evals.results import Results
from evals.tables import layout, numbers
from evals.tables.layout import Table
from evals.tables.paper import paper_frame


@dataclass(frozen=True)
class Used:
    """How a row of the table was decoded.

    Attributes:
        scheme: one of :data:`evals.decoding.SCHEMES`.
        fraction: of the driver's tokens that tau was set at.
        gamma: of extrapolation.
        taus: threshold of every run.
        tuned: average on the problems that it was chosen on.
        replaced: fraction of the scored responses' tokens that were drawn again.
    """

    scheme: str
    fraction: float
    gamma: float
    taus: tuple[float, ...]
    tuned: float
    replaced: float


def write_table(results: Results, chosen: Path, samples: Path, notes: Sequence[str], out: Path) -> None:
    """Write ``{out}.md`` and ``{out}.csv`` with their manifest; arguments as for :func:`decoding_tables`.

    Raises:
        UserError: an input is missing or malformed.
    """
    tables, frame, files = decoding_tables(results, chosen, samples, notes)
    layout.write_table(out, tables, frame, [*results.sources, chosen, *files], {"notes": list(notes)})


def decoding_tables(
    results: Results, chosen: Path, samples: Path, notes: Sequence[str]
) -> tuple[list[Table], pd.DataFrame, list[Path]]:
    """Lay out the tables; with the first one's numbers in full precision and the sample files that were read.

    Args:
        results: decoding's own runs, scores and comparisons.
        chosen: the thresholds that were chosen.
        samples: directory with ``{run}/{benchmark}/samples.jsonl``.
        notes: sentences on what the numbers are evidence of.

    Raises:
        UserError: an input is missing or malformed.
    """
    choices = Choices.read(chosen).chosen
    used, files = {}, []
    for condition in results.conditions:
        scheme = scheme_in(condition.method)
        if scheme is None:
            continue
        paths = [samples / run.run / name / "samples.jsonl" for run in condition.runs for name in results.benchmarks]
        used[condition.method] = _used(scheme, choices[scheme], paths)
        files += paths
    frame = _frame(results, used)
    return [_summary(results, frame, used, notes), _by_benchmark(results)], frame, files


def scheme_in(method: str) -> str | None:
    """The scheme that a method's name ends with, as in ``dapo_replacement``."""
    return next((scheme for scheme in SCHEMES if method.endswith(f"_{scheme}")), None)


def _used(scheme: str, choice: Choice, paths: Sequence[Path]) -> Used:
    samples = [sample for path in paths for sample in read_rows(path, Sample)]
    taus = tuple(decoding.tau for decoding in choice.by_run.values())
    replaced = sum(each.replaced or 0 for each in samples) / max(1, sum(each.tokens for each in samples))
    return Used(scheme, choice.fraction, choice.gamma, taus, choice.average, replaced)


def _frame(results: Results, used: Mapping[str, Used]) -> pd.DataFrame:
    """One row per way of decoding in full precision; fractions of one, nats."""
    frame = paper_frame(results).astype(object)
    gains = [results.comparison(condition, BASE, ALL_BENCHMARKS) for condition in results.conditions]
    frame["gain_over_base"] = [gain.difference if gain else None for gain in gains]
    for index, bound in enumerate(("low", "high")):
        frame[f"gain_{bound}"] = [
            gain.confidence_interval[index] if gain and gain.confidence_interval else None for gain in gains
        ]
    methods = list(frame["method"])
    for name in ("fraction", "gamma", "tuned", "replaced"):
        frame[name] = [getattr(used[method], name) if method in used else None for method in methods]
    frame["taus"] = [" ".join(f"{tau:g}" for tau in used[method].taus) if method in used else "" for method in methods]
    return frame


def _summary(results: Results, frame: pd.DataFrame, used: Mapping[str, Used], notes: Sequence[str]) -> Table:
    k, level, reference = results.samples_per_problem, round(100 * results.confidence), results.reference_title
    header = (
        "Decoding",
        f"avg@{k} (%)",
        "Gain over base (pp)",
        f"Versus {reference} (pp)",
        "p (Holm)",
        "MDE (pp)",
        f"Verdict versus {reference}",
        "Replaced (%)",
        "τ (nats)",
        "γ",
    )
    rows = tuple(_cells(row, used.get(row["method"])) for row in frame.to_dict("records"))
    explanation = (
        f"avg@{k}: mean over {len(results.benchmarks)} benchmarks and all seeds; its brackets are {level} % intervals "
        "over problems and seeds. Differences are between these very checkpoints, paired by problem, and say nothing "
        f"about other training seeds; p is corrected over the ways of decoding. MDE: the smallest true difference "
        "that such a comparison finds in 80 % of studies. Replaced: tokens drawn again, of those of the scored "
        "responses. τ is, for every checkpoint, the quantile of the log-prob difference along the driver's text that "
        "did best with γ on problems that are not scored; its range over the checkpoints is shown."
    )
    return Table("decoding", "Decoding with two models", header, rows, (*notes, explanation))


def _cells(row: Mapping[Any, Any], used: Used | None) -> tuple[str, ...]:
    gain, difference = _number(row["gain_over_base"]), _number(row["difference"])
    return (
        str(row["title"]),
        numbers.percent_with_interval(row["average"], _pair(row, "confidence")),
        numbers.NOTHING if gain is None else numbers.points_with_interval(gain, _pair(row, "gain")),
        numbers.NOTHING if difference is None else numbers.points_with_interval(difference, _pair(row, "difference")),
        numbers.p_value(_number(row["p_value_holm_over_methods"])),
        numbers.percent(_number(row["minimum_detectable_effect"])),
        row["verdict"] if isinstance(row["verdict"], str) else numbers.NOTHING,
        numbers.percent(used.replaced if used else None),
        _range(used.taus) if used else numbers.NOTHING,
        f"{used.gamma:g}" if used and used.scheme != "replacement" else numbers.NOTHING,
    )


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _pair(row: Mapping[Any, Any], name: str) -> tuple[float, float] | None:
    low, high = _number(row[f"{name}_low"]), _number(row[f"{name}_high"])
    return None if low is None or high is None else (low, high)


def _by_benchmark(results: Results) -> Table:
    rows = []
    for condition in results.conditions:
        rows.append((condition.title, *(_average_cell(results, condition, name) for name in results.benchmarks)))
    title = f"avg@{results.samples_per_problem} by benchmark (%)"
    note = "Mean over seeds, ± one standard error over problems and seeds."
    return Table("decoding_by_benchmark", title, ("Decoding", *results.benchmarks), tuple(rows), (note,))


def _average_cell(results: Results, condition: Condition, benchmark: str) -> str:
    average = results.average(condition, benchmark)
    return numbers.percent_with_error(average.value, average.standard_error)
