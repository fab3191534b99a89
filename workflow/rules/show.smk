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
        lambda w: [row.to_json() for row in compared(w.folder)],
        call="evals.core.files:write_json",
        value=lambda w, output: [row.to_json() for row in compared(w.folder)],
    script:
        "../scripts/call.py"


rule table_main:
    """The main table, a row a method. Costs are written with a job but are no outputs of it."""
    input:
        code_of("evals.tables.main"),
        of_runs("results/runs/{run}/metrics.parquet", trained=True),
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
        call="evals.tables.main:write_main_table",
        costs=COSTS,
        training=RUNS,
        decodings=list(CONFIG.evaluation.decodings),
        notes=lambda w: notes(STUDY, study_of(w.folder)),
    script:
        "../scripts/call.py"


rule table_of_scores:
    """A table of a folder's scores alone: of every seed, and of medians and seeds that fell."""
    input:
        code_of_call(TABLES, "table"),
        **RESULTS,
    output:
        table("{table}"),
    log:
        "results/logs/{folder}tables/{table}.log",
    wildcard_constraints:
        table=one_of(TABLES),
    localrule: True
    params:
        ORDER,
        call=lambda w: TABLES[w.table],
    script:
        "../scripts/call.py"


rule table_of_training:
    """A table of what the runs recorded, too: methods at equal tokens."""
    input:
        code_of_call(TABLES_OF_TRAINING, "table"),
        *OF_TRAINING,
        **RESULTS,
    output:
        table("{table}"),
    log:
        "results/logs/{folder}tables/{table}.log",
    wildcard_constraints:
        table=one_of(TABLES_OF_TRAINING),
    localrule: True
    params:
        ORDER,
        call=lambda w: TABLES_OF_TRAINING[w.table],
        training=RUNS,
    script:
        "../scripts/call.py"


# Finished studies of further effects, in the directories that their files name.
FURTHER_EFFECTS = [
    directory
    for directory in (Path(f"results/{name}/results") for name in ("effects", "forgetting"))
    if (directory / "comparisons.json").exists()
]


rule table_phenomena:
    """Known effects of RLVR, and which of them the study shows."""
    input:
        code_of("evals.tables.phenomena"),
        *OF_TRAINING,
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
        ORDER,
        call="evals.tables.phenomena:write_phenomena_table",
        training=RUNS,
        further=FURTHER_EFFECTS,
    script:
        "../scripts/call.py"


rule table_audit:
    """How much was not judged, and where a second grader differs."""
    input:
        code_of("evals.tables.audit"),
        audits=of_runs("results/grades/{run}/{b}/audit.json"),
        runs="results/{folder}runs.json",
    output:
        table("audit"),
    log:
        "results/logs/{folder}tables/audit.log",
    localrule: True
    params:
        ORDER,
        call="evals.tables.audit:write_audit_table",
    script:
        "../scripts/call.py"


rule table_sizes:
    """The verdicts on models of several sizes."""
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
        ORDER,
        call="evals.scores.factors:write_sizes_table",
    script:
        "../scripts/call.py"


rule table_checkpoints:
    """The best checkpoints of the runs beside the last ones."""
    input:
        code_of("evals.tables.checkpoints"),
        **RESULTS,
        best_runs="results/{folder}best/runs.json",
        best_scores=expand("results/{{folder}}best/scores/{b}.json", b=BENCHMARKS),
        best_comparisons="results/{folder}best/comparisons.json",
        choices=lambda w: expand("results/runs/{run}/chosen.json", run=best_runs(w)),
    output:
        table("checkpoints"),
    log:
        "results/logs/{folder}tables/checkpoints.log",
    localrule: True
    params:
        ORDER,
        call="evals.tables.checkpoints:write_checkpoints_table",
    script:
        "../scripts/call.py"


rule table_paper_vs_ours:
    """The numbers of a study beside published ones."""
    input:
        code_of("evals.tables.published"),
        expand("{directory}/{file}", directory=REFERENCE, file=("published.csv", "settings.yaml")),
        runs=lambda w: published_results("runs")(w)[0],
        scores=published_results("scores"),
        comparisons=lambda w: published_results("comparisons")(w)[0],
    output:
        table("paper_vs_ours"),
    log:
        "results/logs/{folder}tables/paper_vs_ours.log",
    localrule: True
    params:
        ORDER,
        *by_setting(lambda w: own_settings(STUDY), at_most=80),
        call="evals.tables.published:write_paper_vs_ours_table",
        reference=Path(REFERENCE),
        own=lambda w, output: own_settings(STUDY),
    script:
        "../scripts/call.py"


rule table_design:
    """The table of a design: the best of three learning rates, doses of difference between sampler and trainer, factors."""
    input:
        code_of_call(DESIGNS, "design"),
        of_runs("results/runs/{run}/manifest.json", trained=True),
        scores=RESULTS["scores"],
    output:
        table("{design}"),
    log:
        "results/logs/{folder}tables/{design}.log",
    wildcard_constraints:
        design=one_of(DESIGNS),
    resources:
        **size(16000, minutes=120),
    params:
        ORDER,
        *by_setting(lambda w: {"factorial": study_of(w.folder).config.factorial, "statistics": CONFIG.statistics}, 400),
        call=lambda w: DESIGNS[w.design],
        statistics=lambda w, output: CONFIG.statistics,
        arguments=lambda w, output: design_arguments(w),
    script:
        "../scripts/call.py"


rule figure_design:
    """The figure of a design, or of several sizes of models, drawn from the CSV file of its table."""
    input:
        code_of("evals.figures.designs"),
        table="results/{folder}tables/{design}.csv",
    output:
        figure("{design}"),
    log:
        "results/logs/{folder}figures/{design}.log",
    wildcard_constraints:
        design="doses|factorial|sizes",
    localrule: True
    params:
        call="evals.figures.designs:write_design_figure",
        name=lambda w: w.design,
        reference=lambda w: reference_of(w),
        margin=lambda w: getattr(study_of(w.folder).config.seeds, "margin", None),
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
        figure=one_of(FIGURES),
    localrule: True
    params:
        ORDER,
        call=lambda w: FIGURES[w.figure],
    script:
        "../scripts/call.py"


rule figure_of_methods:
    """A panel for each method: the share of its scores above each threshold; pass@k beside its base model's."""
    input:
        code_of("evals.figures.results"),
        **RESULTS,
    output:
        figure("{figure}"),
    log:
        "results/logs/{folder}figures/{figure}.log",
    wildcard_constraints:
        figure=one_of(FIGURES_OF_METHODS),
    resources:
        **size(16000, minutes=120),
    params:
        ORDER,
        call=lambda w: FIGURES_OF_METHODS[w.figure],
    script:
        "../scripts/call.py"


rule figure_of_training:
    """Rewards against tokens; validation scores against compute, with fitted ceilings."""
    input:
        code_of("evals.figures.efficiency"),
        *OF_TRAINING,
        **RESULTS,
    output:
        figure("{figure}"),
    log:
        "results/logs/{folder}figures/{figure}.log",
    wildcard_constraints:
        figure=one_of(FIGURES_OF_TRAINING),
    localrule: True
    params:
        ORDER,
        call=lambda w: FIGURES_OF_TRAINING[w.figure],
        training=RUNS,
    script:
        "../scripts/call.py"


rule figure_training_curves:
    """The metrics of the runs, step by step."""
    input:
        code_of("rlvr.report.curves"),
        of_runs("results/runs/{run}/metrics.parquet", trained=True),
        runs="results/{folder}runs.json",
    output:
        figure("training_curves"),
    log:
        "results/logs/{folder}figures/training_curves.log",
    localrule: True
    params:
        call="rlvr.report.curves:write_training_curves",
        training=RUNS,
    script:
        "../scripts/call.py"


rule figure_reward_curves:
    """The rewards of studies that are made together, side by side."""
    input:
        code_of("rlvr.report.curves"),
        lambda w: [
            f"results/runs/{row.run}/metrics.parquet"
            for folder in together(w)
            for row in compared(folder)
            if row.seed is not None
        ],
        runs=lambda w: [f"results/{folder}runs.json" for folder in together(w)],
    output:
        figure("reward_curves"),
    log:
        "results/logs/{folder}figures/reward_curves.log",
    localrule: True
    params:
        call="rlvr.report.curves:write_reward_curves",
        training=RUNS,
        titles=lambda w: [config.title or config.study for config in (study_of(f).config for f in together(w))],
        reference_method=lambda w: study_of(w.folder).config.reference_method,
    script:
        "../scripts/call.py"


rule figure_score_curves:
    """The scores of the checkpoints along the runs."""
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
        ORDER,
        call="rlvr.report.curves:write_score_curves",
        points=lambda w: {
            method: [list(point) for point in along] for method, along in score_points(study_of(w.folder)).items()
        },
    script:
        "../scripts/call.py"


rule figure_validation_curves:
    """The scores by which best checkpoints were chosen."""
    input:
        code_of("rlvr.report.curves"),
        choices=lambda w: expand("results/runs/{run}/chosen.json", run=best_runs(w)),
        runs="results/{folder}runs.json",
    output:
        figure("validation_curves"),
    log:
        "results/logs/{folder}figures/validation_curves.log",
    localrule: True
    params:
        call="rlvr.report.curves:write_validation_curves",
    script:
        "../scripts/call.py"


rule page_responses:
    """Every response to a benchmark. The texts lie in the directory beside the page, which loads them when needed."""
    input:
        code_of("rlvr.report.responses"),
        template_files("responses"),
        of_runs("results/samples/{run}/{b}/manifest.json"),
        of_runs("results/grades/{run}/{b}/manifest.json"),
        lambda w: [f"{directory}/tokens.parquet" for directory in token_tables(w)],
        audits=of_runs("results/grades/{run}/{b}/audit.json"),
        runs="results/{folder}runs.json",
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
        of_runs("results/runs/{run}/manifest.json", trained=True),
        "results/problems/train/manifest.json",
        runs="results/{folder}runs.json",
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
        of_runs("results/runs/{run}/manifest.json", trained=True),
        lambda w: [file for files in drawn_files(w.folder) for file in files],
        **RESULTS,
        audits=of_runs("results/grades/{run}/{b}/audit.json"),
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
        of_runs("results/runs/{run}/manifest.json", trained=True),
        lambda w: [file for files in drawn_files(w.folder) for file in files],
        lambda w: expand("results/runs/{run}/chosen.json", run=best_runs(w) if BEST_CHOICE else []),
        list(RESULTS.values()),
    output:
        "results/{folder}tracking.json",
    log:
        "results/logs/{folder}tracking.log",
    localrule: True
    params:
        ORDER,
        lambda w: f"experiment: {study_of(w.folder).config.study}",
        call="rlvr.report.mlflow.projection:track",
        results=Path("results"),
        study=lambda w: Path(f"results/{w.folder}"),
    script:
        "../scripts/call.py"
