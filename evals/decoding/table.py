"""The table of decoding: the base model, the trained one, and both together in the ways that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from evals.core.record import read_rows
from evals.core.records import BASE, Comparison, Condition, Sample
from evals.decoding import SCHEMES
from evals.decoding.settings import Choice, Choices
from evals.results import Results
from evals.tables import layout, numbers
from evals.tables.layout import Column, Table, make_table
from evals.tables.main import average_text, difference_text
from evals.tables.paper import PaperRow, paper_frame, paper_rows


@dataclass(frozen=True)
class Used:
    """The way of decoding of a row of the table.

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

    @property
    def shown_gamma(self) -> str:
        """Gamma, which a replacement has not."""
        return numbers.NOTHING if self.scheme == "replacement" else f"{self.gamma:g}"


@dataclass(frozen=True)
class DecodingRow:
    """A row of the table.

    Attributes:
        paper: its averages and its comparison with the reference method.
        gain: over the base model; None for the base model itself.
        used: how both models decoded together; None for one model alone.
    """

    paper: PaperRow
    gain: Comparison | None
    used: Used | None


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
    rows: list[DecodingRow] = []
    files: list[Path] = []
    for row in paper_rows(results):
        scheme, used = scheme_in(row.condition.method), None
        if scheme is not None:
            runs = [run.run for run in row.condition.runs]
            paths = [samples / run / name / "samples.jsonl" for run in runs for name in results.benchmarks]
            used, files = _used(scheme, choices[scheme], paths), [*files, *paths]
        rows.append(DecodingRow(row, results.comparison(row.condition, BASE), used))
    return [_summary(results, rows, notes), _by_benchmark(results)], _frame(results, rows), files


def scheme_in(method: str) -> str | None:
    """The scheme that a method's name ends with, as in ``dapo_replacement``."""
    return next((scheme for scheme in SCHEMES if method.endswith(f"_{scheme}")), None)


def _used(scheme: str, choice: Choice, paths: Sequence[Path]) -> Used:
    samples = [sample for path in paths for sample in read_rows(path, Sample)]
    taus = tuple(decoding.tau for decoding in choice.by_run.values())
    replaced = sum(each.replaced or 0 for each in samples) / max(1, sum(each.tokens for each in samples))
    return Used(scheme, choice.fraction, choice.gamma, taus, choice.average, replaced)


def _frame(results: Results, rows: Sequence[DecodingRow]) -> pd.DataFrame:
    """One row per way of decoding in full precision; fractions of one, nats."""
    frame = paper_frame(results).astype(object)
    intervals = [(row.gain and row.gain.confidence_interval) or (None, None) for row in rows]
    frame["gain_over_base"] = [row.gain.difference if row.gain else None for row in rows]
    frame["gain_low"], frame["gain_high"] = zip(*intervals, strict=True)
    for name in ("fraction", "gamma", "tuned", "replaced"):
        frame[name] = [getattr(row.used, name) if row.used else None for row in rows]
    frame["taus"] = [" ".join(f"{tau:g}" for tau in row.used.taus) if row.used else "" for row in rows]
    return frame


def _columns(results: Results) -> list[Column[DecodingRow]]:
    k, reference = results.samples_per_problem, results.reference_title
    return [
        Column("Decoding", lambda row: row.paper.condition.title),
        Column(f"avg@{k} (%)", lambda row: row.paper.average, average_text),
        Column("Gain over base (pp)", lambda row: row.gain, difference_text),
        Column(f"Versus {reference} (pp)", lambda row: row.paper.against, difference_text),
        Column("p (Holm)", lambda row: row.paper.p_value_holm, numbers.p_value),
        Column(
            "MDE (pp)", lambda row: row.paper.against and row.paper.against.minimum_detectable_effect, numbers.percent
        ),
        Column(f"Verdict versus {reference}", lambda row: row.paper.verdict or numbers.NOTHING),
        Column("Replaced (%)", lambda row: row.used and row.used.replaced, numbers.percent),
        Column("τ (nats)", lambda row: _range(row.used.taus) if row.used else numbers.NOTHING),
        Column("γ", lambda row: row.used.shown_gamma if row.used else numbers.NOTHING),
    ]


def _summary(results: Results, rows: Sequence[DecodingRow], notes: Sequence[str]) -> Table:
    k, level = results.samples_per_problem, round(100 * results.confidence)
    explanation = (
        f"avg@{k}: mean over {len(results.benchmarks)} benchmarks and all seeds; its brackets are {level} % intervals "
        "over problems and seeds. Differences are between these very checkpoints, paired by problem, and say nothing "
        f"about other training seeds; p is corrected over the ways of decoding. MDE: the smallest true difference "
        "that such a comparison finds in 80 % of studies. Replaced: tokens drawn again, of those of the scored "
        "responses. τ is, for every checkpoint, the quantile of the log-prob difference along the driver's text that "
        "did best with γ on problems that are not scored; its range over the checkpoints is shown."
    )
    return make_table("decoding", "Decoding with two models", _columns(results), rows, (*notes, explanation))


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"


def _by_benchmark(results: Results) -> Table:
    def cell(condition: Condition, benchmark: str) -> str:
        average = results.average(condition, benchmark)
        return numbers.percent_with_error(average.value, average.standard_error)

    rows = tuple((each.title, *(cell(each, name) for name in results.benchmarks)) for each in results.conditions)
    title = f"avg@{results.samples_per_problem} by benchmark (%)"
    note = "Mean over seeds, ± one standard error over problems and seeds."
    return Table("decoding_by_benchmark", title, ("Decoding", *results.benchmarks), rows, (note,))
