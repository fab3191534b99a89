# What people look at: tables, figures and the report.
rule table_main:
    input:
        scores=scope_scores,
        comparisons="results/{scope}comparisons.json",
        runs="results/{scope}runs.json",
        metrics=training_metrics,
        code=modules("evals.tables", "evals.results", "evals.statistics"),
    output:
        report("results/{scope}tables/main.md", caption="../report/main_table.rst", category="Tables"),
        multiext("results/{scope}tables/main", ".csv", ".tex", ".manifest.json"),
    log:
        "results/logs/{scope}tables/main.log",
    params:
        notes=notes,
    shell:
        "python -m rlvr stage table main --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q}"
        " --costs results/costs --training results/runs --note {params.notes:q}"
        " --out results/{wildcards.scope}tables/main > {log:q} 2>&1"


rule table_by_seed:
    input:
        scores=scope_scores,
        comparisons="results/{scope}comparisons.json",
        runs="results/{scope}runs.json",
        code=modules("evals.tables", "evals.results", "evals.statistics"),
    output:
        report("results/{scope}tables/by_seed.md", caption="../report/by_seed.rst", category="Tables"),
        multiext("results/{scope}tables/by_seed", ".csv", ".manifest.json"),
    log:
        "results/logs/{scope}tables/by_seed.log",
    shell:
        "python -m rlvr stage table by_seed --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --out results/{wildcards.scope}tables/by_seed > {log:q} 2>&1"


rule table_audit:
    input:
        audits=scope_audits,
        runs="results/{scope}runs.json",
        code=modules("evals.tables", "evals.results", "evals.statistics"),
    output:
        report("results/{scope}tables/audit.md", caption="../report/audit.rst", category="Tables"),
        multiext("results/{scope}tables/audit", ".csv", ".manifest.json"),
    log:
        "results/logs/{scope}tables/audit.log",
    shell:
        "python -m rlvr stage table audit --audits {input.audits:q} --runs {input.runs:q}"
        " --out results/{wildcards.scope}tables/audit > {log:q} 2>&1"


rule table_paper:
    input:
        scores=scope_scores,
        comparisons="results/{scope}comparisons.json",
        runs="results/{scope}runs.json",
        published=f"{REPOSITORY}/config/reference/published.csv",
        code=modules("evals.tables", "evals.results", "evals.statistics"),
    output:
        report("results/{scope}tables/paper.md", caption="../report/paper_table.rst", category="Tables"),
        multiext("results/{scope}tables/paper", ".csv", ".manifest.json"),
    log:
        "results/logs/{scope}tables/paper.log",
    params:
        title=study_title,
        notes=notes,
    shell:
        "python -m rlvr stage table paper --scores {input.scores:q} --comparisons {input.comparisons:q}"
        f" --runs {{input.runs:q}} --reference {REPOSITORY}/config/reference"
        " --title {params.title:q} --note {params.notes:q} --out results/{wildcards.scope}tables/paper > {log:q} 2>&1"


rule table_paper_vs_ours:
    input:
        scores=scope_scores,
        comparisons="results/{scope}comparisons.json",
        runs="results/{scope}runs.json",
        published=expand(f"{REPOSITORY}/config/reference/{{file}}", file=["published.csv", "settings.yaml"]),
        code=modules("evals.tables", "evals.results", "evals.statistics"),
    output:
        report("results/{scope}tables/paper_vs_ours.md", caption="../report/paper_vs_ours.rst", category="Tables"),
        multiext("results/{scope}tables/paper_vs_ours", ".csv", ".manifest.json"),
    log:
        "results/logs/{scope}tables/paper_vs_ours.log",
    params:
        own=own_settings,
    shell:
        "python -m rlvr stage table paper_vs_ours --scores {input.scores:q} --comparisons {input.comparisons:q}"
        f" --runs {{input.runs:q}} --reference {REPOSITORY}/config/reference"
        " --own {params.own:q} --out results/{wildcards.scope}tables/paper_vs_ours > {log:q} 2>&1"


rule figure_of_scores:
    input:
        scores=scope_scores,
        comparisons="results/{scope}comparisons.json",
        runs="results/{scope}runs.json",
        code=modules("evals.figures", "evals.tables", "evals.results", "evals.statistics"),
    output:
        report("results/{scope}figures/{figure}.png", caption="../report/{figure}.rst", category="Figures"),
        multiext("results/{scope}figures/{figure}", ".svg", ".manifest.json"),
    log:
        "results/logs/{scope}figures/{figure}.log",
    wildcard_constraints:
        figure="scores|differences",
    shell:
        "python -m rlvr stage figure {wildcards.figure} --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --out results/{wildcards.scope}figures/{wildcards.figure} > {log:q} 2>&1"


rule figure_training_curves:
    input:
        metrics=training_metrics,
        runs="results/{scope}runs.json",
        code=modules("evals.figures.style", "rlvr.report.curves"),
    output:
        report(
            "results/{scope}figures/training_curves.png", caption="../report/training_curves.rst", category="Figures"
        ),
        multiext("results/{scope}figures/training_curves", ".svg", ".manifest.json"),
    log:
        "results/logs/{scope}figures/training_curves.log",
    shell:
        "python -m rlvr stage figure training_curves --training results/runs --runs {input.runs:q}"
        " --out results/{wildcards.scope}figures/training_curves > {log:q} 2>&1"


# Of named studies, which can have too many methods for one line of panels each.
rule figure_reward_curves:
    input:
        metrics=metrics_of_curves,
        runs=sheets_of_curves,
        code=modules("evals.figures.style", "rlvr.report.curves"),
    output:
        report("results/{scope}figures/reward_curves.png", caption="../report/reward_curves.rst", category="Figures"),
        multiext("results/{scope}figures/reward_curves", ".svg", ".manifest.json"),
    log:
        "results/logs/{scope}figures/reward_curves.log",
    params:
        titles=titles_of_curves,
        reference=reference_method,
    shell:
        "python -m rlvr stage figure reward_curves --training results/runs --runs {input.runs:q} --titles {params.titles:q}"
        " --reference-method {params.reference} --out results/{wildcards.scope}figures/reward_curves > {log:q} 2>&1"


rule figure_score_curves:
    input:
        scores=scores_of_score_curves,
        runs=sheets_of_score_curves,
        code=modules("rlvr.report.curves", "evals.figures.style"),
    output:
        report("results/{scope}figures/score_curves.png", caption="../report/score_curves.rst", category="Figures"),
        multiext("results/{scope}figures/score_curves", ".svg", ".manifest.json"),
    log:
        "results/logs/{scope}figures/score_curves.log",
    params:
        points=points_of_score_curves,
    shell:
        "python -m rlvr stage figure score_curves --runs {input.runs:q} --scores {input.scores:q}"
        " --points {params.points:q} --out results/{wildcards.scope}figures/score_curves > {log:q} 2>&1"


rule report_html:
    input:
        study="results/{scope}study.json",
        runs="results/{scope}runs.json",
        scores=scope_scores,
        comparisons="results/{scope}comparisons.json",
        audits=scope_audits,
        tables=scope_tables,
        figures=scope_figures,
        manifests=run_manifests,
        code=modules(
            "rlvr.report", "rlvr.page_template", "evals.figures", "evals.tables", "evals.results", "evals.statistics"
        ),
        published=f"{REPOSITORY}/config/reference/published.csv",
        template=expand(
            f"{REPOSITORY}/rlvr/report/templates/{{file}}",
            file=["report.html.jinja", "base.html.jinja", "macros.html.jinja", "report.css"],
        ),
    output:
        report=report("results/{scope}report.html", category="Study", caption="../report/report.rst"),
        manifest="results/{scope}report.manifest.json",
        status="results/{scope}status.json",
    log:
        "results/logs/{scope}report.log",
    params:
        notes=notes,
        named=report_of_named_study,
    shell:
        "(python -m rlvr status --config {input.study:q} --out {output.status:q} &&"
        " python -m rlvr stage report --study {input.study:q} --runs {input.runs:q} --scores {input.scores:q}"
        " --comparisons {input.comparisons:q} --audits {input.audits:q} --results results"
        " --figures results/{wildcards.scope}figures --status {output.status:q} --note {params.notes:q} {params.named:q}"
        " --out {output.report:q}) > {log:q} 2>&1"
