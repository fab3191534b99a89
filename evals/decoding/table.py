"""The table of decoding: the base model, the trained one, and both together in the ways that were chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from evals.core.comparisons import Comparison
from evals.core.record import read_rows
from evals.core.records import BASE, Condition, Sample
from evals.decoding import SCHEMES
from evals.decoding.settings import Choice, Choices
from evals.results import Results
from evals.tables import layout, numbers
from evals.tables.layout import Column, Table, make_table
from evals.tables.main import average_text, compared_columns, difference_text
from evals.tables.paper import paper_frame


@dataclass(frozen=True)
class DecodingRow:
    """A row of the table."""

    condition: Condition
    gain: Comparison | None  # over the base model; None for the base model itself
    choice: Choice | None  # how both models decoded together; None for one model alone
    replaced: float | None  # fraction of the scored responses' tokens that were drawn again; None for one model alone

    @property
    def taus(self) -> list[float]:
        return [decoding.tau for decoding in self.choice.by_run.values()] if self.choice else []

    @property
    def tau_text(self) -> str:
        if not self.taus:
            return numbers.NOTHING
        low, high = f"{min(self.taus):.2g}", f"{max(self.taus):.2g}"
        return low if low == high else f"{low} to {high}"

    @property
    def gamma_text(self) -> str:
        """Gamma, which a replacement has not."""
        if self.choice is None or scheme_in(self.condition.method) == "replacement":
            return numbers.NOTHING
        return f"{self.choice.gamma:g}"


def write_table(results: Results, chosen: Path, samples: Path, notes: Sequence[str], out: Path) -> None:
    """Write base, trained and both together, compared."""
    tables, frame, files = decoding_tables(results, chosen, samples, notes)
    layout.write_table(out, tables, frame, [*results.sources, chosen, *files], {"notes": list(notes)})


def decoding_tables(
    results: Results, chosen: Path, samples: Path, notes: Sequence[str]
) -> tuple[list[Table], pd.DataFrame, list[Path]]:
    """Lay out the tables; with the first one's numbers in full precision and the sample files that were read.

    ``results`` are decoding's own, ``samples`` has ``{run}/{benchmark}/samples.jsonl``.
    """
    choices = Choices.read(chosen).chosen
    rows: list[DecodingRow] = []
    files: list[Path] = []
    for condition in results.conditions:
        choice, replaced = None, None
        if (scheme := scheme_in(condition.method)) is not None:
            runs = [run.run for run in condition.runs]
            paths = [samples / run / name / "samples.jsonl" for run in runs for name in results.benchmarks]
            read = [sample for path in paths for sample in read_rows(path, Sample)]
            replaced = sum(each.replaced or 0 for each in read) / max(1, sum(each.tokens or 0 for each in read))
            choice, files = choices[scheme], [*files, *paths]
        rows.append(DecodingRow(condition, results.comparison(condition, BASE), choice, replaced))
    return [_summary(results, rows, notes), _by_benchmark(results)], _frame(results, rows), files


def scheme_in(method: str) -> str | None:
    """The scheme that a method's name ends with, as in ``dapo_replacement``."""
    return next((scheme for scheme in SCHEMES if method.endswith(f"_{scheme}")), None)


def _frame(results: Results, rows: Sequence[DecodingRow]) -> pd.DataFrame:
    """One row per way of decoding in full precision; fractions of one, nats."""
    frame = paper_frame(results).astype(object)
    intervals = [(row.gain and row.gain.confidence_interval) or (None, None) for row in rows]
    frame["gain_over_base"] = [row.gain.difference if row.gain else None for row in rows]
    frame["gain_low"], frame["gain_high"] = zip(*intervals, strict=True)
    for column, name in (("fraction", "fraction"), ("gamma", "gamma"), ("tuned", "average")):
        frame[column] = [getattr(row.choice, name, None) for row in rows]
    frame["replaced"] = [row.replaced for row in rows]
    frame["taus"] = [" ".join(f"{tau:g}" for tau in row.taus) for row in rows]
    return frame


def _summary(results: Results, rows: Sequence[DecodingRow], notes: Sequence[str]) -> Table:
    k, level = results.samples_per_problem, round(100 * results.confidence)

    def of_condition(column: Column[Condition]) -> Column[DecodingRow]:
        return Column(column.header, lambda row: column.value(row.condition), column.text)

    columns: list[Column[DecodingRow]] = [
        Column("Decoding", lambda row: row.condition.title),
        Column(f"avg@{k} (%)", lambda row: results.average(row.condition), average_text),
        Column("Gain over base (pp)", lambda row: row.gain, difference_text),
        *(of_condition(column) for column in compared_columns(results) if column.header != "p"),
        Column("Replaced (%)", lambda row: row.replaced, numbers.percent),
        Column("τ (nats)", lambda row: row.tau_text),
        Column("γ", lambda row: row.gamma_text),
    ]
    explanation = (
        f"avg@{k}: {results.mean_text}, and over all seeds; its brackets are {level} % intervals "
        "over problems and seeds. Differences are between these very checkpoints, paired by problem, and say nothing "
        "about other training seeds; p is corrected over the ways of decoding, and verdicts follow it. MDE: the "
        "smallest true difference that such a comparison finds in 80 % of studies, before Holm. Replaced: tokens drawn "
        "again, of those of the scored responses. τ is, for every checkpoint, the quantile of the log-prob difference "
        "along the driver's text that did best with γ on problems that are not scored; its range over the checkpoints "
        "is shown."
    )
    return make_table("decoding", "Decoding with two models", columns, rows, (*notes, explanation))


def _by_benchmark(results: Results) -> Table:
    def cell(condition: Condition, benchmark: str) -> str:
        average = results.average(condition, benchmark)
        return numbers.percent_with_error(average.value, average.standard_error)

    rows = tuple((each.title, *(cell(each, name) for name in results.benchmarks)) for each in results.conditions)
    title = f"avg@{results.samples_per_problem} by benchmark (%)"
    note = "Mean over seeds, ± one standard error over problems and seeds."
    return Table("decoding_by_benchmark", title, ("Decoding", *results.benchmarks), rows, (note,))
