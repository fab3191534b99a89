"""The steps of a study that people look at: tables, figures, pages, MLflow."""

from pathlib import Path
from typing import Annotated

from typer import Option

from evals.core.errors import InvalidInput
from rlvr.cli.command import Commands
from rlvr.cli.options import Paths, Results, Words

commands = Commands()
table = Commands(help="Write one table; .md, .csv.")
commands.add_typer(table, name="table")
figure = Commands(help="Draw one figure; .png, .svg.")
commands.add_typer(figure, name="figure")
page = Commands(help="Write one page beside the report, self-contained.")
commands.add_typer(page, name="page")

Sheets = Annotated[Paths, Option(help="run sheets of one study or of two; the first is the study's own")]


@table.add("main")
def main_table(results: Results, costs: Path, training: Path, note: Words, out: Path) -> None:
    """Write a row per method: scores, comparisons, cost; .md, .csv, .tex."""
    from evals.tables.main import write_main_table

    write_main_table(results.read(), costs, training, note, out)


@table.add("by_seed")
def by_seed_table(results: Results, out: Path) -> None:
    """Write a row per run and benchmark."""
    from evals.tables.main import write_by_seed_table

    write_by_seed_table(results.read(), out)


@table.add("robust")
def robust_table(results: Results, training: Path, out: Path) -> None:
    """Write the seeds that fell, and averages that one seed does not decide."""
    from evals.tables.robust import write_robust_table

    write_robust_table(results.read(), training, out)


@table.add("efficiency")
def efficiency_table(results: Results, training: Path, out: Path) -> None:
    """Write every method at equal tokens and, with validation, its compute-performance curve."""
    from evals.tables.efficiency import write_efficiency_table

    write_efficiency_table(results.read(), training, out)


@table.add("audit")
def audit_table(audits: Paths, runs: Path, out: Path) -> None:
    """Write how much was not judged, and where a second grader differs."""
    from evals.tables.audit import write_audit_table

    write_audit_table(audits, runs, out)


@table.add("paper")
def paper_table(results: Results, reference: Path, title: str, note: Words, out: Path) -> None:
    """Write a named study's own table, with what papers report beside it."""
    from evals.tables.paper import write_paper_table

    write_paper_table(results.read(), reference, title, note, out)


@table.add("paper_vs_ours")
def paper_vs_ours_table(results: Results, reference: Path, own: str, out: Path) -> None:
    """Write published numbers, ours, and whether they compare."""
    from evals.tables.published import write_paper_vs_ours_table

    write_paper_vs_ours_table(results.read(), reference, own, out)


@table.add("phenomena")
def phenomena_table(
    findings: Paths,
    figures: Annotated[str, Option(help="where the figures lie, relative to the table")],
    out: Path,
    note: Words = [],
) -> None:
    """Write the table of all claims, from their findings."""
    from rlvr.diagnostics.claims.findings import write_table

    write_table(findings, figures, note, out)


@table.add("decoding")
def decoding_table(results: Results, chosen: Path, samples: Path, note: Words, out: Path) -> None:
    """Write base, trained and both together, compared."""
    from evals.decoding.table import write_table

    write_table(results.read(), chosen, samples, note, out)


@figure.add("scores")
def scores_figure(results: Results, out: Path) -> None:
    """Draw every method's scores."""
    from evals.figures.results import write_results_figure

    write_results_figure("scores", results.read(), out)


@figure.add("differences")
def differences_figure(results: Results, out: Path) -> None:
    """Draw every method's differences to what it is compared with."""
    from evals.figures.results import write_results_figure

    write_results_figure("differences", results.read(), out)


@figure.add("profiles")
def profiles_figure(results: Results, out: Path) -> None:
    """Draw every method's performance profile: the share of its scores above each threshold."""
    from evals.figures.results import write_results_figure

    write_results_figure("profiles", results.read(), out)


@figure.add("cost_curves")
def cost_curves(results: Results, training: Path, out: Path) -> None:
    """Draw the training reward over tokens, optimizer steps and seconds."""
    from evals.figures.efficiency import write_cost_curves

    write_cost_curves(results.read(), training, out)


@figure.add("compute_performance")
def compute_performance(results: Results, training: Path, out: Path) -> None:
    """Draw scores on the validation problems over tokens, with the fitted curves."""
    from evals.figures.efficiency import write_compute_performance

    write_compute_performance(results.read(), training, out)


@figure.add("power")
def power_figure(results: Results, costs: Path, training: Path, out: Path) -> None:
    """Draw the smallest difference that a study can detect, against what it costs."""
    from evals.figures.power import write_power_figure

    write_power_figure(results.read(), costs, training, out)


@figure.add("training_curves")
def training_curves(runs: Path, training: Path, out: Path) -> None:
    """Draw the training curves."""
    from rlvr.report.curves import write_training_curves

    write_training_curves(runs, training, out)


@figure.add("reward_curves")
def reward_curves(runs: Sheets, titles: Words, reference_method: str, training: Path, out: Path) -> None:
    """Draw the reward curves of many methods, or of two studies side by side."""
    from rlvr.report.curves import write_reward_curves

    write_reward_curves(runs, titles, reference_method, training, out)


@figure.add("score_curves")
def score_curves(runs: Sheets, scores: Paths, points: str, out: Path) -> None:
    """Draw scores along the training."""
    from rlvr.report.curves import write_score_curves

    write_score_curves(runs, scores, points, out)


@figure.add("replaced_tokens")
def replaced_tokens(sweeps: Paths, out: Path) -> None:
    """Draw accuracy against the fraction of tokens replaced."""
    from evals.decoding.figure import write_figure

    write_figure(sweeps, out)


@commands.add("report")
def report(
    study: Annotated[Path, Option(help="the resolved study, an object with study, its name")],
    files: Results,
    audits: Paths,
    results: Path,
    figures: Path,
    status: Annotated[Path, Option(help="list of result, current, reasons, code_edited_since")],
    note: Words,
    out: Path,
    title: Annotated[
        str | None,
        Option(help="of a named study; its table in the shape of the papers' is shown, with --reference"),
    ] = None,
    own_figures: Annotated[Words, Option(help="of a named study: names of its figures")] = [],
    reference: Path | None = None,
) -> None:
    """Write the report, one self-contained HTML file."""
    from rlvr.report.page import write_report

    if title is not None and reference is None:
        raise InvalidInput("", "--reference", "is missing", "config/reference, since there is a --title")
    published = reference / "published.csv" if title is not None and reference is not None else None
    write_report(study, files.read(), audits, results, figures, status, note, out, title, published, own_figures)


@page.add("phenomena")
def phenomena_page(
    findings: Paths,
    figures: Path,
    note: Words,
    out: Path,
    rollouts: Annotated[Paths, Option(help="pages of rollouts that are linked to")] = [],
) -> None:
    """Write the papers' claims."""
    from rlvr.report.pages import write_phenomena_page

    write_phenomena_page(findings, figures, rollouts, note, out)


@page.add("decoding")
def decoding_page(results: Results, chosen: Path, samples: Path, figure: Path, note: Words, out: Path) -> None:
    """Write decoding with two models."""
    from rlvr.report.pages import write_decoding_page

    write_decoding_page(results.read(), chosen, samples, figure, note, out)


@commands.add("track")
def track(
    results: Path,
    runs: Path,
    benchmarks: Annotated[Words, Option(help="whose scores/*.json beside --out are shown")],
    study: str,
    database: Path,
    artifacts: Path,
    out: Path,
) -> None:
    """Bring the MLflow database into line with the result files, and write what was projected."""
    from evals.core.records import read_runs
    from rlvr.report.mlflow.database import Store
    from rlvr.report.mlflow.projected import TrackedStudy, project
    from rlvr.report.mlflow.server import describe

    tracked = TrackedStudy(study=study, benchmarks=tuple(benchmarks), runs=tuple(read_runs(runs)))
    print(describe(project(tracked, out, results, Store(database, artifacts))))


@commands.add("track-extra")
def track_extra(
    study: str,
    name: Annotated[str, Option(help="such as phenomena; what has another name is left alone")],
    title: Annotated[str, Option(help="name of its run")],
    note: Annotated[Path, Option(help="Markdown file whose beginning describes the run")],
    files: Annotated[Paths, Option(help="pages, tables and figures to show")],
    database: Path,
    artifacts: Path,
    out: Path,
) -> None:
    """Show in MLflow what was made beside a study, as one run of its experiment, and write what was projected."""
    from rlvr.report.mlflow.database import Store
    from rlvr.report.mlflow.projected import TrackedExtra, project
    from rlvr.report.mlflow.server import describe

    tracked = TrackedExtra.of(out, study, name, title, note, files)
    print(describe(project(tracked, out, database.parent, Store(database, artifacts))))
