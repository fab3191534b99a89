"""The steps of a study that people look at: tables, figures, pages, MLflow."""

from pathlib import Path
from typing import Annotated

from typer import Option

from rlvr.cli.command import Commands
from rlvr.cli.options import Paths, Words

commands = Commands()
table = Commands(help="Write one table; .md, .csv.")
commands.add_typer(table, name="table")
figure = Commands(help="Draw one figure; .png, .svg.")
commands.add_typer(figure, name="figure")
page = Commands(help="Write one page beside the report.")
commands.add_typer(page, name="page")

NOTE = {"notes": "note"}
table.call("main", "evals.tables.main:write_main_table", options=NOTE)
table.call("by_seed", "evals.tables.by_seed:write_by_seed_table")
table.call("robust", "evals.tables.robust:write_robust_table")
table.call("efficiency", "evals.tables.efficiency:write_efficiency_table")
table.call("checkpoints", "evals.tables.checkpoints:write_checkpoints_table")
table.call("audit", "evals.tables.audit:write_audit_table", options={"paths": "audits"})
table.call("paper_vs_ours", "evals.tables.published:write_paper_vs_ours_table")
table.call("phenomena", "rlvr.diagnostics.claims.findings:write_table", options=NOTE)
table.call("decoding", "evals.decoding.table:write_table", options=NOTE)
figure.call("scores", "evals.figures.results:write_scores_figure")
figure.call("differences", "evals.figures.results:write_differences_figure")
figure.call("profiles", "evals.figures.results:write_profiles_figure")
figure.call("cost_curves", "evals.figures.efficiency:write_cost_curves")
figure.call("compute_performance", "evals.figures.efficiency:write_compute_performance")
figure.call("training_curves", "rlvr.report.curves:write_training_curves", options={"sheet": "runs"})
figure.call("reward_curves", "rlvr.report.curves:write_reward_curves", options={"sheets": "runs"})
figure.call("score_curves", "rlvr.report.curves:write_score_curves", options={"sheets": "runs"})
figure.call("validation_curves", "rlvr.report.curves:write_validation_curves", options={"sheet": "runs"})
figure.call("replaced_tokens", "evals.decoding.figure:write_figure", options={"paths": "sweeps"})
page.call("phenomena", "rlvr.report.pages:write_phenomena_page", options=NOTE)
page.call("responses", "rlvr.report.responses:write_responses_page")
page.call("rollouts", "rlvr.report.rollouts:write_rollouts_page")
page.call("decoding", "rlvr.report.pages:write_decoding_page", options=NOTE)


commands.call(
    "report",
    "rlvr.report.page:write_report",
    options={**NOTE, "study_file": "study", "status_file": "status", "directory": "results"},
)


@commands.add("track")
def track(
    results: Path,
    runs: Path,
    benchmarks: Annotated[Words, Option(help="whose scores/*.json beside --out are shown")],
    study: str,
    database: Path,
    artifacts: Path,
    out: Path,
    choices: Annotated[Paths, Option(help="runs/{run}/chosen.json of every best policy; default: none")] = [],
) -> None:
    """Bring the MLflow database into line with the result files, and write what was projected."""
    from evals.core.records import read_runs
    from rlvr.report.mlflow.database import Store
    from rlvr.report.mlflow.projected import TrackedStudy, project
    from rlvr.report.mlflow.server import describe

    chosen = tuple(path.parent.name for path in choices)
    tracked = TrackedStudy(study=study, benchmarks=tuple(benchmarks), runs=tuple(read_runs(runs)), best=chosen)
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
