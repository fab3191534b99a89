# Problems: generated from a seed, or read from the Hub or from files; training and evaluation disjoint.


if "repository" in STUDY.training_settings:

    rule problems_train_read:
        input:
            training_files,
        output:
            "results/problems/train/problems.jsonl",
            "results/problems/train/manifest.json",
        log:
            "results/logs/problems/train.log",
        params:
            settings=training_set_settings,
        shell:
            "python -m rlvr stage read-training-set --settings {params.settings:q} --out results/problems/train"
            " > {log:q} 2>&1"

else:

    rule problems_train:
        output:
            "results/problems/train/problems.jsonl",
            "results/problems/train/manifest.json",
        log:
            "results/logs/problems/train.log",
        params:
            kinds=training_kinds,
            problems=training_count,
            seed=training_seed,
        shell:
            "python -m rlvr stage draw-problems --name train --split train --kinds {params.kinds:q} --count {params.problems}"
            " --seed {params.seed} --out results/problems/train > {log:q} 2>&1"


rule problems_generated:
    output:
        "results/problems/{benchmark}/problems.jsonl",
        "results/problems/{benchmark}/manifest.json",
    log:
        "results/logs/problems/{benchmark}.log",
    wildcard_constraints:
        benchmark="|".join(GENERATED) or NONE,
    params:
        kinds=generated_kinds,
        problems=generated_count,
        seed=generated_seed,
    shell:
        "python -m rlvr stage draw-problems --name {wildcards.benchmark} --split evaluation --kinds {params.kinds:q}"
        " --count {params.problems} --seed {params.seed} --out results/problems/{wildcards.benchmark} > {log:q} 2>&1"


rule problems_read:
    input:
        benchmark_files,
    output:
        "results/problems/{benchmark}/problems.jsonl",
        "results/problems/{benchmark}/manifest.json",
    log:
        "results/logs/problems/{benchmark}.log",
    wildcard_constraints:
        benchmark="|".join(READ) or NONE,
    params:
        settings=benchmark_settings,
    shell:
        "python -m rlvr stage read-problems --settings {params.settings:q} --out results/problems/{wildcards.benchmark}"
        " > {log:q} 2>&1"


# Per benchmark, so that one more benchmark touches nothing else; and no benchmark is sampled before it has passed.
rule problems_disjoint:
    input:
        benchmark="results/problems/{benchmark}/manifest.json",
        problems="results/problems/{benchmark}/problems.jsonl",
        trained_on=[
            *(["results/problems/train/problems.jsonl"] if STUDY.methods else []),
            *expand("results/base/{model}/corpus.jsonl", model=SCRATCH),
        ],
    output:
        "results/problems/{benchmark}/disjoint.json",
    log:
        "results/logs/problems/{benchmark}.disjoint.log",
    shell:
        "python -m rlvr stage check-disjoint --benchmark results/problems/{wildcards.benchmark}"
        " --trained-on {input.trained_on:q} --out {output:q} > {log:q} 2>&1"
