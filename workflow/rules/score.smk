# Scores per benchmark, then comparisons over all of them.
rule score:
    input:
        # A manifest stands for the grades beside it: it has their hash, which the command checks.
        manifests=expand("results/grades/{run}/{{benchmark}}/manifest.json", run=RUN_IDS),
        runs="results/runs.json",
        code=modules("evals.statistics", "evals.scores"),
    output:
        scores="results/scores/{benchmark}.json",
        manifest="results/scores/{benchmark}.manifest.json",
    log:
        "results/logs/score/{benchmark}.log",
    params:
        directories=expand("results/grades/{run}/{{benchmark}}", run=RUN_IDS),
    shell:
        "python -m evals.scores score --benchmark {wildcards.benchmark} --grades {params.directories:q}"
        " --runs {input.runs:q} --out {output.scores:q} > {log:q} 2>&1"


rule compare:
    input:
        scores=SCORES,
        code=modules("evals.statistics", "evals.scores"),
    output:
        comparisons="results/comparisons.json",
        manifest="results/comparisons.manifest.json",
    log:
        "results/logs/compare.log",
    params:
        statistics=dict(sorted(STUDY.config["statistics"].items())),
        reference=STUDY.config["reference_method"],
    shell:
        "python -m evals.scores compare --scores {input.scores:q} --reference-method {params.reference}"
        " --seed {params.statistics[seed]} --resamples {params.statistics[resamples]}"
        " --permutations {params.statistics[permutations]} --out {output.comparisons:q} > {log:q} 2>&1"
