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
        "python -m rlvr.diagnostics tokens results/runs/{wildcards.run}/run.json --steps {params.steps}"
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
        "python -m rlvr.diagnostics probe results/diagnostics/{wildcards.run} > {log:q} 2>&1"


rule phenomenon:
    input:
        tables=token_tables,
        probes=probed_tables,
        contrast=contrast_tables,
        compared=compared_manifests,
        benchmark=compared_benchmark,
        code=modules("rlvr.diagnostics", "rlvr.diagnostics.phenomena"),
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
        claim="|".join(CLAIMS),
    params:
        tables=lambda wildcards, input: directories(input.tables),
        contrast=lambda wildcards, input: directories(input.contrast),
        compared=compared_runs,
        benchmark=DIAGNOSTICS.get("benchmark", []),
    shell:
        "python -m rlvr.diagnostics phenomenon {wildcards.claim} --tables {params.tables:q}"
        " --contrast-tables {params.contrast:q} --runs {params.compared:q} --benchmarks {params.benchmark:q}"
        " --results results --out results/phenomena/{wildcards.claim}"
        " --figure results/figures/phenomena/{wildcards.claim} > {log:q} 2>&1"


rule table_phenomena:
    input:
        findings=expand("results/phenomena/{claim}.json", claim=measured_claims()),
        code=modules(
            "rlvr.diagnostics.interval",
            "rlvr.diagnostics.phenomena.findings",
            "rlvr.diagnostics.phenomena.table",
            "evals.tables.manifests",
        ),
    output:
        report("results/tables/phenomena.md", caption="../report/phenomena.rst", category="Tables"),
        multiext("results/tables/phenomena", ".csv", ".manifest.json"),
    log:
        "results/logs/tables/phenomena.log",
    params:
        note=NOTE,
    shell:
        "python -m rlvr.diagnostics table --findings {input.findings:q} --figures ../figures/phenomena"
        " --note {params.note:q} --out results/tables/phenomena > {log:q} 2>&1"
