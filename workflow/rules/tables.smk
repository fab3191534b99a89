# What people look at: tables, figures and the report.
FIGURES = expand(
    "results/figures/{figure}.{ending}", figure=["scores", "differences", "training_curves"], ending=["png", "svg"]
)
NOTE = (
    "Generated problems and a model of half a million parameters: this shows how the methods behave on this task, and"
    " that the machinery works. It is no evidence about models of billions of parameters."
)
METRICS = expand("results/runs/{run}/metrics.parquet", run=TRAINED_IDS)
# Benchmark files are written with a job but are no outputs of it: the tables read them, and follow the job through
# its manifest.
RUN_MANIFESTS = expand("results/runs/{run}/manifest.json", run=TRAINED_IDS)


def study_json(wildcards):
    """The whole configuration (a function, because Snakemake reads wildcards into the braces of a plain string)."""
    return canonical_json(config)


rule study_file:
    output:
        "results/study.json",
    params:
        study=study_json,
    localrule: True
    shell:
        "printf '%s' {params.study:q} > {output:q}"


rule table_main:
    input:
        scores=SCORES,
        comparisons="results/comparisons.json",
        runs="results/runs.json",
        metrics=METRICS,
        code=modules("evals.tables"),
    output:
        multiext("results/tables/main", ".md", ".csv", ".tex", ".manifest.json"),
    params:
        note=NOTE,
    log:
        "results/logs/tables/main.log",
    shell:
        "python -m evals.tables main --scores {input.scores:q} --comparisons {input.comparisons:q} --runs {input.runs:q}"
        " --costs results/costs --training results/runs --note {params.note:q} --out results/tables/main > {log:q} 2>&1"


rule table_by_seed:
    input:
        scores=SCORES,
        comparisons="results/comparisons.json",
        runs="results/runs.json",
        code=modules("evals.tables"),
    output:
        multiext("results/tables/by_seed", ".md", ".csv", ".manifest.json"),
    log:
        "results/logs/tables/by_seed.log",
    shell:
        "python -m evals.tables by_seed --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --out results/tables/by_seed > {log:q} 2>&1"


rule figure_of_scores:
    input:
        scores=SCORES,
        comparisons="results/comparisons.json",
        runs="results/runs.json",
        code=modules("evals.figures"),
    output:
        multiext("results/figures/{figure}", ".png", ".svg", ".manifest.json"),
    wildcard_constraints:
        figure="scores|differences",
    log:
        "results/logs/figures/{figure}.log",
    shell:
        "python -m evals.figures {wildcards.figure} --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --out results/figures/{wildcards.figure} > {log:q} 2>&1"


rule figure_training_curves:
    input:
        metrics=METRICS,
        runs="results/runs.json",
        code=modules("evals.figures.style", "rlvr.report.curves"),
    output:
        multiext("results/figures/training_curves", ".png", ".svg", ".manifest.json"),
    log:
        "results/logs/figures/training_curves.log",
    shell:
        "python -m rlvr.report curves --training results/runs --runs {input.runs:q}"
        " --out results/figures/training_curves > {log:q} 2>&1"


rule report_html:
    input:
        study="results/study.json",
        runs="results/runs.json",
        scores=SCORES,
        comparisons="results/comparisons.json",
        tables=[rules.table_main.output, rules.table_by_seed.output],
        figures=FIGURES,
        manifests=RUN_MANIFESTS,
        code=modules("rlvr.report"),
        template=f"{REPOSITORY}/rlvr/report/templates",
    output:
        report=report("results/report.html", category="Study", caption="../report/report.rst"),
        status="results/status.json",
    params:
        note=NOTE,
    log:
        "results/logs/report.log",
    shell:
        "(python -m rlvr status --config {input.study:q} --out {output.status:q} &&"
        " python -m rlvr.report html --study {input.study:q} --runs {input.runs:q} --scores {input.scores:q}"
        " --comparisons {input.comparisons:q} --results results --status {output.status:q} --note {params.note:q}"
        " --out {output.report:q}) > {log:q} 2>&1"
