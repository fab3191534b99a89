"""What people look at: tables, figures, pages, the report and MLflow of a folder."""


rule study_file:
    """The resolved configuration of a study: what changes in it makes the report again."""
    output:
        "results/{folder}study.json",
    log:
        "results/logs/{folder}study.log",
    priority: 200  # by it MLflow knows the runs that are under way
    localrule: True
    params:
        *by_setting(lambda w: {"study": study_of(w.folder).config.to_json()}, at_most=400),
        refusing(lambda w: {f"results/{w.folder}study.json": {"study": study_of(w.folder).config}}),
        call="evals.core.files:write_json",
        value=lambda w, output: study_of(w.folder).config.to_json(),
    script:
        "../scripts/call.py"


rule run_sheet:
    """All runs that a folder compares."""
    input:
        lambda w: compared(w.folder) and [],  # the looks before it
    output:
        "results/{folder}runs.json",
    log:
        "results/logs/{folder}runs.log",
    priority: 200  # by it MLflow knows the runs that are under way
    localrule: True
    params:
        refusing(lambda w: {f"results/{w.folder}runs.json": {"runs": {row.run: row for row in compared(w.folder)}}}),
        lambda w: [row.to_json() for row in compared(w.folder)],
        call="evals.core.files:write_json",
        value=lambda w, output: [row.to_json() for row in compared(w.folder)],
    script:
        "../scripts/call.py"


rule table_of_scores:
    """A table of a folder's scores alone: of every seed, and of medians and seeds that fell. Other tables change it."""
    input:
        lambda w: code_of(f"evals.tables.{w.table}"),
        **RESULTS,
    output:
        table("{table}"),
    log:
        "results/logs/{folder}tables/{table}.log",
    wildcard_constraints:
        table="by_seed|robust|pass_at_k",
    localrule: True
    params:
        ORDER,
        refusing(lambda w: {}),  # Snakemake prints a line where a rule that changes this one has another number of them
        call=lambda w: f"evals.tables.{w.table}:write_{w.table}_table",
    script:
        "../scripts/call.py"


use rule table_of_scores as table_of_training with:  # of what the runs recorded, too: methods at equal tokens
    input:
        lambda w: code_of(f"evals.tables.{w.table}"),
        BEHIND_RESULTS,
        **RESULTS,
    wildcard_constraints:
        table="efficiency",
    localrule: True
    params:
        training=RUNS,


use rule table_of_scores as table_main with:  # costs are written with a job but are no outputs of it
    input:
        code_of("evals.tables.main"),
        BEHIND_RESULTS,
        **RESULTS,
        decoded=DECODED,
    output:
        table("main", "_short.tex"),
    log:
        "results/logs/{folder}tables/main.log",
    resources:
        **size(16000, minutes=120),
    params:
        ORDER,
        refusing(lambda w: {f"results/{w.folder}tables/main.md": {"notes": notes(STUDY, study_of(w.folder))}}),
        call="evals.tables.main:write_main_table",
        costs=Path("results/costs"),
        training=RUNS,
        decodings=list(CONFIG.evaluation.decodings),
        notes=lambda w: notes(STUDY, study_of(w.folder)),


use rule table_of_scores as table_phenomena with:  # known effects of RLVR, and which of them the study shows
    input:
        code_of("evals.tables.phenomena"),
        BEHIND_RESULTS,
        lambda w: [f"{at}/{name}.json" for at in further_effects(w) for name in ("runs", "comparisons")],
        **RESULTS,
        phenomena=as_input(CONFIG_FILES / "phenomena.yaml"),
        decoded=DECODED,
    output:
        table("phenomena"),
    log:
        "results/logs/{folder}tables/phenomena.log",
    resources:
        **size(16000, minutes=120),
    params:
        call="evals.tables.phenomena:write_phenomena_table",
        training=RUNS,
        further=further_effects,


use rule table_of_scores as table_audit with:  # how much was not judged, and where a second grader differs
    input:
        code_of("evals.tables.audit"),
        SCORED,
        runs=RESULTS["runs"],
    output:
        table("audit"),
    log:
        "results/logs/{folder}tables/audit.log",
    localrule: True
    params:
        call="evals.tables.audit:write_audit_table",
        benchmarks=BENCHMARKS,
        directory=Path("results"),


use rule table_of_scores as table_sizes with:  # the verdicts on models of several sizes
    input:
        code_of("evals.scores.factors"),
        **RESULTS,
        bases=FIRST_BASES,
    output:
        table("sizes"),
    log:
        "results/logs/{folder}tables/sizes.log",
    localrule: True
    params:
        call="evals.scores.factors:write_sizes_table",


use rule table_of_scores as table_checkpoints with:  # the best checkpoints of the runs beside the last ones
    input:
        code_of("evals.tables.checkpoints"),
        **RESULTS,
        **{f"best_{key}": files for key, files in results_of("{folder}best/").items()},
        choices=chosen,
    output:
        table("checkpoints"),
    log:
        "results/logs/{folder}tables/checkpoints.log",
    localrule: True
    params:
        call="evals.tables.checkpoints:write_checkpoints_table",


rule table_paper_vs_ours:
    """The numbers of a study beside published ones."""
    input:
        code_of("evals.tables.published"),
        expand("{directory}/{file}", directory=REFERENCE, file=("published.csv", "settings.yaml")),
        **results_of("{folder}best/" if BEST_CHOICE else "{folder}"),  # papers that choose a checkpoint report the best
    output:
        table("paper_vs_ours"),
    log:
        "results/logs/{folder}tables/paper_vs_ours.log",
    localrule: True
    params:
        ORDER,
        *by_setting(lambda w: own_settings(STUDY), at_most=80),
        refusing(lambda w: {f"results/{w.folder}tables/paper_vs_ours.md": {"own": own_settings(STUDY)}}),
        call="evals.tables.published:write_paper_vs_ours_table",
        reference=Path(REFERENCE),
        own=lambda w, output: own_settings(STUDY),
    script:
        "../scripts/call.py"


rule table_design:
    """The best of three learning rates, doses of difference, factors."""
    input:
        lambda w: code_of(f"evals.scores.{DESIGNS[w.table]}"),
        TRAINED,
        scores=RESULTS["scores"],
    output:
        table("{table}"),
    log:
        "results/logs/{folder}tables/{table}.log",
    wildcard_constraints:
        table=one_of(DESIGNS),
    resources:
        **size(16000, minutes=120),
    params:
        ORDER,
        *made_by(settings_of_design, 400, lambda w: {f"results/{w.folder}tables/{w.table}.md": settings_of_design(w)}),
        call=lambda w: f"evals.scores.{DESIGNS[w.table]}:write_{w.table}_table",
        arguments=lambda w, output: settings_of_design(w) | ({} if w.table == "factorial" else {"training": RUNS}),
    script:
        "../scripts/call.py"


rule figure_of_scores:
    """The scores of the methods; their differences to the reference method. Each also fits a column of a paper."""
    input:
        code_of("evals.figures.results"),
        **RESULTS,
    output:
        figure("{figure}", "_column.pdf"),
    log:
        "results/logs/{folder}figures/{figure}.log",
    wildcard_constraints:
        figure="scores|differences",
    localrule: True
    params:
        ORDER,
        call=lambda w: f"evals.figures.results:write_{w.figure}_figure",
    script:
        "../scripts/call.py"


use rule figure_of_scores as figure_of_methods with:  # a panel for each method
    output:
        figure("{figure}"),
    wildcard_constraints:
        figure="profiles|pass_at_k",
    resources:
        **size(16000, minutes=120),


use rule figure_of_scores as figure_of_training with:  # rewards by tokens; validation by compute, with fitted ceilings
    input:
        code_of("evals.figures.efficiency"),
        BEHIND_RESULTS,
        **RESULTS,
    output:
        figure("{figure}"),
    wildcard_constraints:
        figure="cost_curves|compute_performance",
    localrule: True
    params:
        call=lambda w: f"evals.figures.efficiency:write_{w.figure}",
        training=RUNS,


use rule figure_of_scores as figure_design with:  # drawn from the CSV file of the table of a design, or of several sizes
    input:
        code_of("evals.figures.designs"),
        table="results/{folder}tables/{figure}.csv",
    output:
        figure("{figure}"),
    wildcard_constraints:
        figure="doses|factorial|sizes",
    localrule: True
    params:
        call="evals.figures.designs:write_design_figure",
        name=lambda w: w.figure,
        reference=reference_of,
        margin=lambda w: getattr(study_of(w.folder).config.seeds, "margin", None),


use rule figure_of_scores as figure_training_curves with:  # the metrics of the runs, step by step
    input:
        code_of("rlvr.report.curves"),
        of_runs("results/runs/{run}/metrics.parquet"),
        runs=RESULTS["runs"],
    output:
        figure("training_curves"),
    log:
        "results/logs/{folder}figures/training_curves.log",
    localrule: True
    params:
        call="rlvr.report.curves:write_training_curves",
        training=RUNS,


use rule figure_of_scores as figure_reward_curves with:  # of studies that are made together, side by side
    input:
        code_of("rlvr.report.curves"),
        lambda w: [f"results/runs/{run}/metrics.parquet" for folder in together(w.folder) for run in trained(folder)],
        lambda w: [f"results/{folder}study.json" for folder in together(w.folder)],  # their titles
        runs=lambda w: [f"results/{folder}runs.json" for folder in together(w.folder)],
    output:
        figure("reward_curves"),
    log:
        "results/logs/{folder}figures/reward_curves.log",
    localrule: True
    params:
        call="rlvr.report.curves:write_reward_curves",
        training=RUNS,
        titles=lambda w: [config.title or config.study for config in (study_of(f).config for f in together(w.folder))],
        reference_method=lambda w: study_of(w.folder).config.reference_method,


use rule figure_of_scores as figure_score_curves with:  # the scores of the checkpoints along the runs
    input:
        code_of("rlvr.report.curves"),
        scores=expand("results/{{folder}}{part}scores/{b}.json", part=("", "steps/"), b=BENCHMARKS),
        runs=expand("results/{{folder}}{part}runs.json", part=("", "steps/")),
    output:
        figure("score_curves"),
    log:
        "results/logs/{folder}figures/score_curves.log",
    localrule: True
    params:
        call="rlvr.report.curves:write_score_curves",
        points=lambda w: {name: list(map(list, along)) for name, along in score_points(study_of(w.folder)).items()},


use rule figure_of_scores as figure_validation_curves with:  # the scores by which best checkpoints were chosen
    input:
        code_of("rlvr.report.curves"),
        choices=chosen,
        runs=RESULTS["runs"],
    output:
        figure("validation_curves"),
    log:
        "results/logs/{folder}figures/validation_curves.log",
    localrule: True
    params:
        call="rlvr.report.curves:write_validation_curves",


rule page_responses:
    """Every response to a benchmark. The texts lie in the directory beside the page, which loads them when needed."""
    input:
        code_of("rlvr.report.responses"),
        template_files("responses"),
        "results/{folder}scores/{benchmark}.manifest.json",  # which comes after samples and grades
        lambda w: [f"{directory}/tokens.parquet" for directory in token_tables(w)],
        runs=RESULTS["runs"],
    output:
        "results/{folder}responses/{benchmark}/index.html",
        "results/{folder}responses/{benchmark}/manifest.json",
        directory("results/{folder}responses/{benchmark}/texts"),
    log:
        "results/logs/{folder}responses/{benchmark}.log",
    resources:
        **size(16000, minutes=120),
    params:
        call="rlvr.report.responses:write_responses_page",
        results=Path("results"),
        benchmark=lambda w: w.benchmark,
        benchmarks=BENCHMARKS,
        tokens=lambda w: list(map(Path, token_tables(w))),
        report="../../report.html" if TRAINS else "",
        rollouts="../../rollouts/index.html" if KEEPS_ROLLOUTS else "",
    script:
        "../scripts/call.py"


rule page_rollouts:
    """What the policies wrote while they were trained. A run that kept no rollouts is not repeated for them."""
    input:
        code_of("rlvr.report.rollouts"),
        template_files("responses"),
        TRAINED,
        "results/problems/train/manifest.json",
        runs=RESULTS["runs"],
    output:
        "results/{folder}rollouts/index.html",
        "results/{folder}rollouts/manifest.json",
        directory("results/{folder}rollouts/texts"),
    log:
        "results/logs/{folder}rollouts.log",
    resources:
        **size(16000, minutes=120),
    params:
        lambda w: [sha256_file(directory / "manifest.json") for directory in replays(w)],
        call="rlvr.report.rollouts:write_rollouts_page",
        results=Path("results"),
        benchmarks=BENCHMARKS,
        replayed=lambda w, output: replays(w),
    script:
        "../scripts/call.py"


rule report_html:
    """The report, one self-contained HTML file."""
    input:
        code_of("rlvr.report.page"),
        template_files("report"),
        BEHIND_RESULTS,
        lambda w: [*table_files(w.folder), *figure_files(w.folder)],
        **RESULTS,
        study="results/{folder}study.json",
    output:
        report("results/{folder}report.html", caption="../report/report.rst", category="Study"),
        "results/{folder}report.manifest.json",
    log:
        "results/logs/{folder}report.log",
    resources:
        **size(16000, minutes=120),
    params:
        ORDER,
        call="rlvr.report.page:write_report",
        directory=Path("results"),
        figures=lambda w: Path(f"results/{w.folder}figures"),
        notes=lambda w: notes(STUDY, study_of(w.folder)),
        title=lambda w: study_of(w.folder).config.title,
        own_figures=lambda w: own_figures(w.folder),
        rollouts="rollouts/index.html" if KEEPS_ROLLOUTS else "",
    script:
        "../scripts/call.py"


rule track:
    """MLflow, made again from the files. The database is not declared: it holds other things than ours."""
    input:
        code_of("rlvr.report.mlflow.projection"),
        BEHIND_RESULTS,
        lambda w: [*table_files(w.folder), *figure_files(w.folder)],
        chosen,
        list(RESULTS.values()),
        "results/{folder}study.json",
    output:
        "results/{folder}tracking.json",
    log:
        "results/logs/{folder}tracking.log",
    localrule: True
    params:
        ORDER,
        call="rlvr.report.mlflow.projection:track",
        results=Path("results"),
        study=lambda w: Path(f"results/{w.folder}"),
    script:
        "../scripts/call.py"
