"""The table of decoding: the base model, the trained one, and both together in the ways that were chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.comparisons import Comparison
from evals.core.record import read_rows
from evals.core.records import BASE, Condition, Sample, rows_in
from evals.results import Results
from evals.statistics.difference import Average
from evals.tables import numbers
from evals.tables.differences import average_text, compared_columns, difference_text
from evals.tables.layout import Column, Table, interval_columns, make_table, table_frame
from evals.tables.main import by_benchmark_table
from rlvr_claims.decoding import SCHEMES
from rlvr_claims.decoding.settings import Choice, Choices


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


def decoding_tables(
    results: Results, chosen: Path, samples: Path, notes: Sequence[str]
) -> tuple[list[Table], pd.DataFrame, list[Path]]:
    """Lay out the tables; with the first one's numbers in full precision and the sample files that were read.

    ``results`` are decoding's own, ``samples`` has a directory ``{run}/{benchmark}`` of samples for each.
    """
    choices = Choices.read(chosen).chosen
    rows: list[DecodingRow] = []
    files: list[Path] = []
    for condition in results.conditions:
        choice, replaced = None, None
        if (scheme := scheme_in(condition.method)) is not None:
            runs = [run.run for run in condition.runs]
            paths = [rows_in(samples / run / name, "samples") for run in runs for name in results.benchmarks]
            read = [sample for path in paths for sample in read_rows(path, Sample)]
            replaced = sum(response.replaced or 0 for response in read) / max(
                1, sum(response.tokens or 0 for response in read)
            )
            choice, files = choices[scheme], [*files, *paths]
        rows.append(DecodingRow(condition, results.comparison(condition, BASE), choice, replaced))
    columns = _columns(results)
    tables = [_summary(results, columns, rows, notes), replace(by_benchmark_table(results), links=())]
    return tables, table_frame(columns, rows), files


def scheme_in(method: str) -> str | None:
    """The scheme that a method's name ends with, as in ``dapo_replacement``."""
    return next((scheme for scheme in SCHEMES if method.endswith(f"_{scheme}")), None)


def _columns(results: Results) -> list[Column[DecodingRow]]:
    def of_condition(column: Column[Condition]) -> Column[DecodingRow]:
        return Column(column.header, lambda row: column.value(row.condition), column.text)

    def compared_cells(row: DecodingRow) -> dict[str, Any]:
        compared = results.comparison(row.condition, results.reference_method)
        cells = {name: getattr(compared, name, None) for name in ("difference", "p_value", "p_value_holm")}
        cells |= interval_columns(compared.confidence_interval if compared else None, "difference_")
        effect = compared and compared.minimum_detectable_effect
        return {**cells, "minimum_detectable_effect": effect, "verdict": results.verdict(row.condition)}

    def average_cells(average: Average) -> dict[str, Any]:
        return {"average": average.value, **interval_columns(average.confidence_interval)}

    def gain_cells(gain: Comparison | None) -> dict[str, Any]:
        low, high = (gain and gain.confidence_interval) or (None, None)
        return {"gain_over_base": gain and gain.difference, "gain_low": low, "gain_high": high}

    return [
        Column("", lambda row: row.condition.model, csv="model"),
        Column("", lambda row: row.condition.method, csv="method"),
        Column("Decoding", lambda row: row.condition.title, csv="title"),
        Column("", lambda row: len(row.condition.seeds), csv="seeds"),
        Column(f"avg@{results.k} (%)", lambda row: results.average(row.condition), average_text, average_cells),
        Column("Gain over base (pp)", lambda row: row.gain, difference_text, gain_cells),
        *(of_condition(column) for column in compared_columns(results) if column.header != "p"),
        Column("", lambda row: row, csv=compared_cells),
        Column("", lambda row: row.choice and row.choice.fraction, csv="fraction"),
        Column("", lambda row: row.choice and row.choice.average, csv="tuned"),
        Column("Replaced (%)", lambda row: row.replaced, numbers.percent, "replaced"),
        Column("τ (nats)", lambda row: row.tau_text),
        Column("", lambda row: " ".join(f"{tau:g}" for tau in row.taus), csv="taus"),
        Column("γ", lambda row: row.gamma_text),
        Column("", lambda row: row.choice and row.choice.gamma, csv="gamma"),
    ]


def _summary(
    results: Results, columns: Sequence[Column[DecodingRow]], rows: Sequence[DecodingRow], notes: Sequence[str]
) -> Table:
    level = round(100 * results.confidence)
    explanation = (
        f"avg@{results.k}: {results.mean_text}, and over all seeds; its brackets are {level} % intervals "
        "over problems and seeds. Differences are between these very checkpoints, paired by problem, and say nothing "
        "about other training seeds; p is corrected over the ways of decoding, and verdicts follow it. MDE: the "
        "smallest true difference that such a comparison finds in 80 % of studies, before Holm. Replaced: tokens drawn "
        "again, of those of the scored responses. τ is, for every checkpoint, the quantile of the log-prob difference "
        "along the driver's text that did best with γ on problems that are not scored; its range over the checkpoints "
        "is shown."
    )
    return make_table(
        "decoding", "Decoding with two models", columns, rows, (*notes, results.extraction_note, explanation)
    )
