# A verdict on every sample.
rule grade:
    input:
        samples="results/samples/{run}/{benchmark}/samples.jsonl",
        manifest="results/samples/{run}/{benchmark}/manifest.json",
        problems="results/problems/{benchmark}/problems.jsonl",
    output:
        grades="results/grades/{run}/{benchmark}/grades.jsonl",
        manifest="results/grades/{run}/{benchmark}/manifest.json",
    log:
        "results/logs/grade/{run}/{benchmark}.log",
    benchmark:
        "results/costs/grade/{run}/{benchmark}.tsv"
    priority: 30
    threads: 1
    params:
        version=grader_version,
        kind=grading_kind,
    shell:
        "python -m rlvr stage grade --samples {input.samples:q} --problems {input.problems:q}"
        " --kind {params.kind} --out results/grades/{wildcards.run}/{wildcards.benchmark}"
        f" --workers {EXECUTION['grading_workers']} > {{log:q}} 2>&1"
