# Looking inside: token tables of the runs that the study's `diagnostics` names, and the papers' claims measured on them.


rule token_table:
    input:
        run="results/runs/{run}/manifest.json",
    output:
        table="results/diagnostics/{run}/tokens.parquet",
        manifest="results/diagnostics/{run}/manifest.json",
    log:
        "results/logs/diagnostics/{run}.tokens.log",
    threads: EXECUTION.get("training_threads", 1)
    params:
        steps=DIAGNOSTICS.get("steps", []),
        version=DIAGNOSTICS_VERSION,
    shell:
        "python -m rlvr tokens replay results/runs/{wildcards.run}/run.json --steps {params.steps}"
        f" --threads {EXECUTION.get('training_threads', 1)} --device {EXECUTION['device']}"
        f" --grading-workers {EXECUTION['grading_workers']}"
        " --out results/diagnostics/{wildcards.run} > {log:q} 2>&1"


rule probes:
    input:
        table="results/diagnostics/{run}/manifest.json",
    output:
        probes="results/diagnostics/{run}/probes.parquet",
        manifest="results/diagnostics/{run}/probes.manifest.json",
    log:
        "results/logs/diagnostics/{run}.probes.log",
    params:
        version=DIAGNOSTICS_VERSION,
    shell:
        "python -m rlvr tokens probe results/diagnostics/{wildcards.run} > {log:q} 2>&1"


rule phenomenon:
    input:
        claim_inputs,
        code=modules("rlvr.diagnostics", "rlvr.diagnostics.tokens", "rlvr.diagnostics.claims"),
    output:
        multiext("results/phenomena/{claim}", ".json", ".parquet", ".manifest.json"),
        report(
            "results/figures/phenomena/{claim}.png",
            caption="../report/phenomenon.rst",
            category="Claims of the papers",
        ),
        multiext("results/figures/phenomena/{claim}", ".svg", ".manifest.json"),
    log:
        "results/logs/phenomena/{claim}.log",
    wildcard_constraints:
        claim="|".join(claim_names()),
    params:
        options=claim_options,
    shell:
        "python -m rlvr claim {wildcards.claim} {params.options:q}"
        " --results results --out results/phenomena/{wildcards.claim}"
        " --figure results/figures/phenomena/{wildcards.claim} > {log:q} 2>&1"


rule table_phenomena:
    input:
        findings=expand("results/phenomena/{claim}.json", claim=MEASURED_CLAIMS),
        code=modules(
            "rlvr.diagnostics.claims.findings",
            "rlvr.diagnostics.claims.results",
            "evals.tables.layout",
        ),
    output:
        report("results/tables/phenomena.md", caption="../report/phenomena.rst", category="Tables"),
        multiext("results/tables/phenomena", ".csv", ".manifest.json"),
    log:
        "results/logs/tables/phenomena.log",
    params:
        note=NOTE,
    shell:
        "python -m rlvr stage table phenomena --findings {input.findings:q} --figures ../figures/phenomena"
        " --note {params.note:q} --out results/tables/phenomena > {log:q} 2>&1"


# To read: the first seed's rollouts at every kept step, token by token.
rule rollouts_page:
    input:
        table="results/diagnostics/{run}/manifest.json",
        problems="results/problems/train/problems.jsonl",
        code=modules(
            "rlvr.diagnostics.tokens.table",
            "rlvr.diagnostics.tokens.view",
            "rlvr.page_template",
        ),
        template=f"{REPOSITORY}/rlvr/diagnostics/templates/coloured_text.html.jinja",
    output:
        report("results/diagnostics/{run}/step-{step}.html", category="Rollouts, token by token"),
    log:
        "results/logs/diagnostics/{run}.step-{step}.log",
    wildcard_constraints:
        step="[0-9]+",
    shell:
        "python -m rlvr tokens show results/diagnostics/{wildcards.run} --step {wildcards.step}"
        " --problem-texts {input.problems:q} --out {output:q} > {log:q} 2>&1"


rule page_phenomena:
    input:
        findings=expand("results/phenomena/{claim}.json", claim=MEASURED_CLAIMS),
        figures=expand("results/figures/phenomena/{claim}.svg", claim=MEASURED_CLAIMS),
        rollouts=rollouts_pages,
        code=modules(
            "rlvr.report.pages",
            "rlvr.report.html",
            "rlvr.page_template",
            "evals.decoding",
            "evals.results",
            "evals.statistics",
            "evals.tables",
            "rlvr.diagnostics.claims.findings",
            "rlvr.diagnostics.claims.results",
            "evals.tables.layout",
        ),
        template=PAGE_TEMPLATES,
    output:
        page=report("results/phenomena.html", caption="../report/phenomena.rst", category="Study"),
        manifest="results/phenomena.manifest.json",
    log:
        "results/logs/phenomena.log",
    params:
        note=NOTE,
    shell:
        "python -m rlvr stage page phenomena --findings {input.findings:q} --figures results/figures/phenomena"
        " --rollouts {input.rollouts:q} --note {params.note:q} --out {output.page:q} > {log:q} 2>&1"


rule track_phenomena:
    input:
        page="results/phenomena.html",
        note="results/tables/phenomena.md",
        table="results/tables/phenomena.csv",
        figures=expand("results/figures/phenomena/{claim}.png", claim=MEASURED_CLAIMS),
        rollouts=rollouts_pages,
        code=modules(
            "rlvr.report.mlflow",
            "rlvr.report.provenance",
            "rlvr.runs.progress",
            "evals.results",
            "evals.statistics",
        ),
    output:
        "results/phenomena.tracking.json",
    log:
        "results/logs/track_phenomena.log",
    params:
        study=STUDY.config.study,
    shell:
        "python -m rlvr stage track-extra --study {params.study} --name phenomena --title 'claims of the papers'"
        " --note {input.note:q} --files {input.page:q} {input.note:q} {input.table:q} {input.figures:q}"
        " {input.rollouts:q} --database results/mlflow.db --artifacts results/mlflow-artifacts --out {output:q}"
        " > {log:q} 2>&1"
