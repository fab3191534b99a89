# MLflow: a projection of the files, made again at any time. The database itself is not declared: it holds other things
# than ours, and Snakemake deletes what it declares.
rule track:
    input:
        runs="results/{scope}runs.json",
        scores=scope_scores,
        comparisons="results/{scope}comparisons.json",
        tables=scope_tables,
        figures=scope_figures,
        manifests=run_manifests,
        code=modules(
            "rlvr.report.mlflow",
            "rlvr.report.provenance",
            "rlvr.runs.progress",
            "evals.tables",
            "evals.results",
            "evals.statistics",
            "evals.core.single_writer",
        ),
    output:
        "results/{scope}tracking.json",
    log:
        "results/logs/{scope}track.log",
    params:
        study=study_name,
        benchmarks=list(STUDY.benchmarks),
    shell:
        "python -m rlvr stage track --results results --runs {input.runs:q} --study {params.study}"
        " --benchmarks {params.benchmarks}"
        " --database results/mlflow.db --artifacts results/mlflow-artifacts --out {output:q} > {log:q} 2>&1"
