# What people look at of a study, in its folder: tables, figures, the report, MLflow. Two small files say what is asked
# for: the whole configuration, and the sheet of its runs.
rule study_file:
    output:
        "results/{folder}study.json",
    log:
        "results/logs/{folder}study.log",
    priority: 200  # by them MLflow knows the trainings that are under way
    localrule: True
    params:
        study=given(PLAN.study_json),
    shell:
        "python -m rlvr stage write-json {params.study:q} --out {output:q} > {log:q} 2>&1"


rule run_sheet:
    output:
        "results/{folder}runs.json",
    log:
        "results/logs/{folder}runs.log",
    priority: 200  # by them MLflow knows the trainings that are under way
    localrule: True
    params:
        sheet=given(PLAN.run_sheet),
    shell:
        "python -m rlvr stage write-json {params.sheet:q} --out {output:q} > {log:q} 2>&1"


rule table_main:
    input:
        unpack(given(SHOWN.results_inputs)),
        metrics=given(PLAN.metrics),
        code=code_of("evals.tables.main"),
    output:
        report("results/{folder}tables/main.md", caption="../report/main.rst", category="Tables"),
        multiext("results/{folder}tables/main", ".csv", ".tex", "_short.tex", ".manifest.json"),
    log:
        "results/logs/{folder}tables/main.log",
    params:
        notes=given(SHOWN.notes),
    shell:
        "python -m rlvr stage table main --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --costs results/costs --training results/runs --note {params.notes:q}"
        " --out results/{wildcards.folder}tables/main > {log:q} 2>&1"


rule table:
    input:
        unpack(given(SHOWN.table_inputs)),
        published=given(SHOWN.table_reference),
        code=given(SHOWN.table_code),
    output:
        report("results/{folder}tables/{table}.md", caption="../report/table.rst", category="Tables"),
        multiext("results/{folder}tables/{table}", ".csv", ".manifest.json"),
    log:
        "results/logs/{folder}tables/{table}.log",
    wildcard_constraints:
        table=pattern(TABLES),
    params:
        options=given(SHOWN.table_options),
    shell:
        "python -m rlvr stage table {wildcards.table} {params.options:q}"
        " --out results/{wildcards.folder}tables/{wildcards.table} > {log:q} 2>&1"


rule figure:
    input:
        unpack(given(SHOWN.figure_inputs)),
        code=given(SHOWN.figure_code),
    output:
        report("results/{folder}figures/{figure}.png", caption="../report/figure.rst", category="Figures"),
        multiext("results/{folder}figures/{figure}", ".svg", ".pdf", ".manifest.json"),
    log:
        "results/logs/{folder}figures/{figure}.log",
    wildcard_constraints:
        figure=pattern(FIGURES),
    params:
        options=given(SHOWN.figure_options),
    shell:
        "python -m rlvr stage figure {wildcards.figure} {params.options:q}"
        " --out results/{wildcards.folder}figures/{wildcards.figure} > {log:q} 2>&1"


# Every response to a benchmark. The texts lie in the directory beside the page, which loads them as they are looked at.
rule page_responses:
    input:
        runs="results/{folder}runs.json",
        audit="results/{folder}audits/{benchmark}.json",
        grades=given(PLAN.grade_manifests),
        samples=given(PLAN.sample_manifests),
        tokens=given(SHOWN.compared_tokens),
        code=code_of("rlvr.report.responses"),
        template=page_templates("responses.html.jinja", "responses.js"),
    output:
        page="results/{folder}responses/{benchmark}/index.html",
        manifest="results/{folder}responses/{benchmark}/manifest.json",
        texts=directory("results/{folder}responses/{benchmark}/texts"),
    log:
        "results/logs/{folder}responses/{benchmark}.log",
    params:
        options=given(SHOWN.responses_options),
    shell:
        "python -m rlvr stage page responses --benchmark {wildcards.benchmark} --runs {input.runs:q}"
        " --audit {input.audit:q} --results results {params.options:q} --out {output.page:q} > {log:q} 2>&1"


# What the policies wrote while they were trained. The tables lie beside the trainings' declared files, which stand for
# them; a training that was finished before any were kept is not repeated for them.
rule page_rollouts:
    input:
        runs="results/{folder}runs.json",
        manifests=given(PLAN.run_manifests),
        problems="results/problems/train/manifest.json",
        code=code_of("rlvr.report.rollouts"),
        template=page_templates("responses.html.jinja", "responses.js"),
    output:
        page="results/{folder}rollouts/index.html",
        manifest="results/{folder}rollouts/manifest.json",
        texts=directory("results/{folder}rollouts/texts"),
    log:
        "results/logs/{folder}rollouts.log",
    params:
        options=given(SHOWN.rollouts_options),
        replays=given(SHOWN.replays),
    shell:
        "python -m rlvr stage page rollouts --runs {input.runs:q} --results results {params.options:q}"
        " --out {output.page:q} > {log:q} 2>&1"


rule status:
    input:
        study="results/{folder}study.json",
        scores=given(PLAN.scores),
        manifests=given(PLAN.run_manifests),
        code=code_of("rlvr.study.status"),
    output:
        "results/{folder}status.json",
    log:
        "results/logs/{folder}status.log",
    shell:
        "python -m rlvr status --config {input.study:q} --out {output:q} > {log:q} 2>&1"


rule report_html:
    input:
        unpack(given(SHOWN.results_inputs)),
        study="results/{folder}study.json",
        status="results/{folder}status.json",
        audits=given(PLAN.audits),
        tables=given(SHOWN.tables),
        figures=given(SHOWN.figures),
        manifests=given(PLAN.run_manifests),
        code=code_of("rlvr.report.page"),
        template=page_templates("report.html.jinja", "report.js"),
    output:
        report=report("results/{folder}report.html", category="Study", caption="../report/report.rst"),
        manifest="results/{folder}report.manifest.json",
    log:
        "results/logs/{folder}report.log",
    params:
        notes=given(SHOWN.notes),
        named=given(SHOWN.report_options),
    shell:
        "python -m rlvr stage report --study {input.study:q} --runs {input.runs:q} --scores {input.scores:q}"
        " --comparisons {input.comparisons:q} --audits {input.audits:q} --results results"
        " --figures results/{wildcards.folder}figures --status {input.status:q} --note {params.notes:q} {params.named:q}"
        " --out {output.report:q} > {log:q} 2>&1"


# MLflow: a projection of the files, made again at any time. The database itself is not declared: it holds other things
# than ours, and Snakemake deletes what it declares.
rule track:
    input:
        unpack(given(SHOWN.results_inputs)),
        tables=given(SHOWN.tables),
        figures=given(SHOWN.figures),
        manifests=given(PLAN.run_manifests),
        choices=given(SHOWN.choices),
        code=code_of("rlvr.report.mlflow.projection"),
    output:
        "results/{folder}tracking.json",
    log:
        "results/logs/{folder}track.log",
    shell:
        "python -m rlvr stage track --results results --study results/{wildcards.folder} --out {output:q} > {log:q} 2>&1"
