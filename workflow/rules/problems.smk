# Problems: generated from a seed, or read from the Hub or from files; training and evaluation disjoint; their verifiers.
# They come first: bad ones end the study at once, and a job that has loaded a model goes on with all benchmarks that
# have been checked.
from evals.grading.code import VERIFIER_VERSION

if "columns" in PLAN.study.training_settings:

    rule problems_train_read:
        input:
            given(partial(PLAN.problem_files, TRAIN)),
        output:
            "results/problems/train/problems.jsonl",
            "results/problems/train/manifest.json",
        log:
            "results/logs/problems/train.log",
        priority: 200
        params:
            settings=given(partial(PLAN.problem_settings, TRAIN)),
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
        priority: 200
        params:
            kinds=given(partial(PLAN.problem_kinds, TRAIN)),
            problems=given(partial(PLAN.problem_count, TRAIN)),
            seed=given(partial(PLAN.problem_seed, TRAIN)),
        shell:
            "python -m rlvr stage draw-problems --name train --split train --kinds {params.kinds:q}"
            " --count {params.problems} --seed {params.seed} --out results/problems/train > {log:q} 2>&1"


rule problems_generated:
    output:
        "results/problems/{benchmark}/problems.jsonl",
        "results/problems/{benchmark}/manifest.json",
    log:
        "results/logs/problems/{benchmark}.log",
    wildcard_constraints:
        benchmark=pattern([*PLAN.generated, VALIDATION]),
    priority: 200
    params:
        kinds=given(PLAN.problem_kinds),
        problems=given(PLAN.problem_count),
        seed=given(PLAN.problem_seed),
    shell:
        "python -m rlvr stage draw-problems --name {wildcards.benchmark} --split evaluation --kinds {params.kinds:q}"
        " --count {params.problems} --seed {params.seed} --out results/problems/{wildcards.benchmark} > {log:q} 2>&1"


rule problems_read:
    input:
        given(PLAN.problem_files),
    output:
        "results/problems/{benchmark}/problems.jsonl",
        "results/problems/{benchmark}/manifest.json",
    log:
        "results/logs/problems/{benchmark}.log",
    wildcard_constraints:
        benchmark=pattern(PLAN.read_benchmarks),
    priority: 200
    params:
        settings=given(PLAN.problem_settings),
    shell:
        "python -m rlvr stage read-problems --settings {params.settings:q} --out results/problems/{wildcards.benchmark}"
        " > {log:q} 2>&1"


rule solutions_read:
    input:
        given(PLAN.solution_files),
    output:
        "results/solutions/{solution_set}/problems.jsonl",
        "results/solutions/{solution_set}/manifest.json",
    log:
        "results/logs/solutions/{solution_set}.log",
    wildcard_constraints:
        solution_set=pattern(PLAN.study.solution_settings),
    priority: 200
    params:
        settings=given(PLAN.solution_settings),
    shell:
        "python -m rlvr stage read-training-set --settings {params.settings:q}"
        " --out results/solutions/{wildcards.solution_set} > {log:q} 2>&1"


rule verifier:
    input:
        file=given(PLAN.verifier_file),
        problems="results/problems/{graded}/problems.jsonl",
    output:
        "results/verifiers/{graded}/verifier.py",
        "results/verifiers/{graded}/manifest.json",
    log:
        "results/logs/verifiers/{graded}.log",
    wildcard_constraints:
        graded=pattern(PLAN.study.verifiers),
    priority: 200
    params:
        version=VERIFIER_VERSION,
    shell:
        "python -m rlvr stage try-verifier --file {input.file:q} --problems {input.problems:q}"
        " --out results/verifiers/{wildcards.graded} > {log:q} 2>&1"


# Per benchmark, so that one more benchmark touches nothing else; and no benchmark is sampled before it has passed.
rule problems_disjoint:
    input:
        benchmark="results/problems/{benchmark}/manifest.json",
        problems="results/problems/{benchmark}/problems.jsonl",
        trained_on=PLAN.trained_on,
    output:
        "results/problems/{benchmark}/disjoint.json",
    log:
        "results/logs/problems/{benchmark}.disjoint.log",
    priority: 200
    shell:
        "python -m rlvr stage check-disjoint --benchmark results/problems/{wildcards.benchmark}"
        " --trained-on {input.trained_on:q} --out {output:q} > {log:q} 2>&1"
