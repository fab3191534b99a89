# What people look at: tables, figures and the report.
rule table_main:
    input:
        scores=SCORES,
        comparisons="results/comparisons.json",
        runs="results/runs.json",
        metrics=METRICS,
        code=modules("evals.tables", "evals.statistics"),
    output:
        report("results/tables/main.md", caption="../report/main_table.rst", category="Tables"),
        multiext("results/tables/main", ".csv", ".tex", ".manifest.json"),
    log:
        "results/logs/tables/main.log",
    params:
        note=NOTE,
    shell:
        "python -m evals.tables main --scores {input.scores:q} --comparisons {input.comparisons:q} --runs {input.runs:q}"
        " --costs results/costs --training results/runs --note {params.note:q} --out results/tables/main > {log:q} 2>&1"


rule table_by_seed:
    input:
        scores=SCORES,
        comparisons="results/comparisons.json",
        runs="results/runs.json",
        code=modules("evals.tables", "evals.statistics"),
    output:
        report("results/tables/by_seed.md", caption="../report/by_seed.rst", category="Tables"),
        multiext("results/tables/by_seed", ".csv", ".manifest.json"),
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
        code=modules("evals.figures", "evals.tables", "evals.statistics"),
    output:
        report("results/figures/{figure}.png", caption="../report/{figure}.rst", category="Figures"),
        multiext("results/figures/{figure}", ".svg", ".manifest.json"),
    log:
        "results/logs/figures/{figure}.log",
    wildcard_constraints:
        figure="scores|differences",
    shell:
        "python -m evals.figures {wildcards.figure} --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --out results/figures/{wildcards.figure} > {log:q} 2>&1"


rule figure_training_curves:
    input:
        metrics=METRICS,
        runs="results/runs.json",
        code=modules("evals.figures.style", "rlvr.report.curves", "evals.tables.records", "evals.tables.manifests"),
    output:
        report("results/figures/training_curves.png", caption="../report/training_curves.rst", category="Figures"),
        multiext("results/figures/training_curves", ".svg", ".manifest.json"),
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
        code=modules("rlvr.report", "evals.figures", "evals.tables", "evals.statistics"),
        template=expand(f"{REPOSITORY}/rlvr/report/templates/{{file}}", file=["report.html.jinja", "report.css"]),
    output:
        report=report("results/report.html", category="Study", caption="../report/report.rst"),
        status="results/status.json",
    log:
        "results/logs/report.log",
    params:
        note=NOTE,
    shell:
        "(python -m rlvr status --config {input.study:q} --out {output.status:q} &&"
        " python -m rlvr.report html --study {input.study:q} --runs {input.runs:q} --scores {input.scores:q}"
        " --comparisons {input.comparisons:q} --results results --status {output.status:q} --note {params.note:q}"
        " --out {output.report:q}) > {log:q} 2>&1"
