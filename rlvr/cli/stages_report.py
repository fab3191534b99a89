"""The steps of a study that people look at: tables, figures, pages, MLflow."""

from rlvr.cli.command import Commands

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


commands.call("track", "rlvr.report.mlflow.projection:track")
