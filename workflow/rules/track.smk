# MLflow: a projection of the files, made again at any time. The database itself is not declared: it holds other things
# than ours, and Snakemake deletes what it declares.
rule track:
    input:
        runs="results/runs.json",
        scores=SCORES,
        comparisons="results/comparisons.json",
        tables=[rules.table_main.output, rules.table_by_seed.output],
        figures=FIGURES,
        manifests=RUN_MANIFESTS,
        code=modules("rlvr.tracking", "evals.tables", "evals.statistics"),
    output:
        "results/tracking.json",
    log:
        "results/logs/track.log",
    params:
        study=STUDY.config["study"],
        benchmarks=list(STUDY.benchmarks),
    shell:
        "python -m rlvr.tracking project --results results --runs {input.runs:q} --study {params.study}"
        " --benchmarks {params.benchmarks}"
        " --database results/mlflow.db --artifacts results/mlflow-artifacts --out {output:q} > {log:q} 2>&1"
