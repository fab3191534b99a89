# Scores per benchmark, an audit beside each, then comparisons over all scores.
rule score:
    input:
        manifests=grade_manifests,
        runs="results/{scope}runs.json",
        code=modules("evals.statistics", "evals.scores"),
    output:
        scores="results/{scope}scores/{benchmark}.json",
        manifest="results/{scope}scores/{benchmark}.manifest.json",
    log:
        "results/logs/{scope}score/{benchmark}.log",
    params:
        directories=grade_directories,
    shell:
        "python -m rlvr stage score --benchmark {wildcards.benchmark} --grades {params.directories:q}"
        " --runs {input.runs:q} --out {output.scores:q} > {log:q} 2>&1"


rule audit:
    input:
        grades=grade_manifests,
        samples=sample_manifests,
        problems="results/problems/{benchmark}/problems.jsonl",
        code=modules("evals.audit", "evals.grading", "evals.problems.choices"),
    output:
        audit="results/{scope}audits/{benchmark}.json",
        manifest="results/{scope}audits/{benchmark}.manifest.json",
    log:
        "results/logs/{scope}audit/{benchmark}.log",
    threads: EXECUTION["grading_workers"]
    params:
        grades=grade_directories,
        samples=sample_directories,
    shell:
        "python -m rlvr stage audit --benchmark {wildcards.benchmark} --grades {params.grades:q}"
        " --samples {params.samples:q} --problems {input.problems:q}"
        f" --workers {EXECUTION['grading_workers']} --out {{output.audit:q}} > {{log:q}} 2>&1"


rule compare:
    input:
        scores=scope_scores,
        code=modules("evals.statistics", "evals.scores"),
    output:
        comparisons="results/{scope}comparisons.json",
        manifest="results/{scope}comparisons.manifest.json",
    log:
        "results/logs/{scope}compare.log",
    params:
        statistics=dict(sorted(STUDY.config.statistics.to_json().items())),
        reference=reference_method,
    shell:
        "python -m rlvr stage compare --scores {input.scores:q} --reference-method {params.reference}"
        " --seed {params.statistics[seed]} --resamples {params.statistics[resamples]}"
        " --permutations {params.statistics[permutations]} --out {output.comparisons:q} > {log:q} 2>&1"
