"""The table of every run on every benchmark: ``tables/by_seed.*``."""

from functools import partial
from operator import attrgetter
from pathlib import Path

import pandas as pd

from evals.core.records import Score
from evals.results import Results
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, responses_page, write_table

_BY_SEED = (
    "average_at_k", "standard_error", "majority_at_k", "truncation_rate", "no_answer_rate", "timeout_rate",
    "unparsable_rate", "mean_tokens", "total_tokens",
)  # fmt: skip


def write_by_seed_table(results: Results, out: Path) -> None:
    """Write a row per run and benchmark."""
    k, rows = results.samples_per_problem, []
    for benchmark in results.benchmarks:
        for run in results.runs:
            score = results.scores[run.run, benchmark]
            row = {**dict(run), "benchmark": benchmark, "samples_per_problem": k}
            row |= {name: getattr(score, name) for name in _BY_SEED} | interval_columns(score.confidence_interval)
            row |= {f"pass_at_{n}": value for n, value in score.pass_at_k.items()}
            row["sampling_standard_error"] = score.sampling_standard_error
            rows.append(row | {f"g_pass_at_{k}_{share}": value for share, value in score.g_pass_at_k.items()})
    frame = pd.DataFrame(rows).astype({"seed": "Int64"})  # nullable: the base model has no seed
    write_table(out, by_seed_tables(results), frame, results.sources)


def by_seed_tables(results: Results) -> list[Table]:
    """Lay out one table per benchmark, one row per run."""
    k, level = results.samples_per_problem, round(100 * results.confidence)
    note = (
        f"Per cent but for tokens. Brackets: {level} % intervals over problems, the clusters of their samples; they "
        "say how well this checkpoint is measured and hold no variance between training seeds. Not judged: "
        "unparsable, or grading timed out. "
        f"{numbers.NO_INTERVAL}: a handful of problems decides, and no interval is to be trusted."
    )
    notes = [note, results.clusters_note, results.extraction_note]
    caption = f"Per cent. Brackets: {level} % intervals over problems, of one run."

    def pass_column(n: str) -> Column[Score]:
        return Column(f"pass@{n}", lambda score: score.pass_at_k.get(n), numbers.percent)

    def average(score: Score) -> str:
        return numbers.percent_with_interval(score.average_at_k, score.confidence_interval)

    def page(benchmark: str, score: Score) -> str:
        return responses_page(benchmark, run=score.run)

    tables = []
    for benchmark in results.benchmarks:
        scores = [results.scores[run.run, benchmark] for run in results.runs]
        levels = sorted({key for score in scores for key in score.pass_at_k} - {"1"}, key=int)  # pass@1 is avg@k
        columns: list[Column[Score]] = [
            Column("Run", attrgetter("run")),
            Column(f"avg@{k}", average, link=partial(page, benchmark)),
            *map(pass_column, levels),
            Column(f"maj@{k}", attrgetter("majority_at_k"), numbers.percent),
            Column("Truncated", attrgetter("truncation_rate"), numbers.percent),
            Column("No answer", attrgetter("no_answer_rate"), numbers.percent),
            Column("Not judged", lambda score: score.unparsable_rate + score.timeout_rate, numbers.percent),
            Column("Tokens a sample", attrgetter("mean_tokens"), numbers.decimal),
        ]
        tables.append(make_table(f"by_seed_{benchmark}", f"{benchmark}: every run", columns, scores, notes, caption))
    return tables
