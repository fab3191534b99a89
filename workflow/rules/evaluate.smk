"""Evaluation of checkpoints: samples and grades of all benchmarks, a job each; scores; comparisons; looks.

Of a policy's samples one file is declared, of its grades another: the manifest that stands for those of all benchmarks.
"""


rule sample:
    """The responses of a checkpoint to all benchmarks, by a decoding. Finished batches lie in state/ beside them."""
    input:
        lambda w: policy(w.run).file,
        lambda w: expand("results/problems/{b}/disjoint.json", b=evaluated_on(w)),  # it names the problems' bytes
    output:
        "results/{decoding}samples/{run}/manifest.json",
    log:
        "results/logs/{decoding}samples/{run}.log",
    benchmark:
        "results/costs/{decoding}sample/{run}.tsv"
    priority: 20
    conda:
        SAMPLING.conda
    container:
        SAMPLING.container
    threads: MACHINE.sampling_threads
    resources:
        **size(lambda w: sampling_mb(STUDY, policy(w.run).run.model), 720, MACHINE.sampling_threads),
        gpu=lambda w: sampling(w).tensor_parallel_size if MACHINE.device == "cuda" else 0,
        tasks=0,
    params:
        *made_by(settings_of_samples, 30 + 2 * len(BENCHMARKS), parameters_of_samples, DECISIVE),
        python=lambda w, output: SAMPLING.python,
        out=lambda w, output: f"results/{w.decoding}samples/{w.run}",
        command=sampling_command,
    shell:
        "exec {params.python} -P -m rlvr sample {params.out:q} {params.command:q} > {log:q} 2>&1"


rule grade:
    """A verdict on every response of a checkpoint to all benchmarks, and the audit of the verdicts."""
    input:
        "results/{decoding}samples/{run}/manifest.json",
        lambda w: list(verifiers(evaluated_on(w)).values()),
    output:
        "results/{decoding}grades/{run}/manifest.json",
    log:
        "results/logs/{decoding}grades/{run}.log",
    benchmark:
        "results/costs/{decoding}grade/{run}.tsv"
    priority: 30
    threads: MACHINE.grading_workers
    resources:
        **size(grading_mb(MACHINE.grading_workers), 240, MACHINE.grading_workers),
    params:
        *made_by(settings_of_grades, 2 + len(BENCHMARKS), parameters_of_grades),
        call="evals.audit.grade:grade_policy",
        kinds=lambda w, output: {name: STUDY.grading(name)[0] for name in evaluated_on(w)},
        verifiers=lambda w, output: verifiers(evaluated_on(w)),
        workers=lambda w, output: MACHINE.grading_workers,
        audited=lambda w, output: CONFIG.evaluation.audited,
        run=lambda w: w.run,
        out=lambda w, output: Path(f"results/{w.decoding}grades"),
    script:
        "../scripts/call.py"


rule score:
    """The scores of all runs of a folder, a file for each benchmark."""
    input:
        code_of("evals.scores.score"),
        of_runs("{answers}grades/{run}/manifest.json"),
        expand("results/problems/{b}/disjoint.json", b=BENCHMARKS),
        runs="results/{folder}runs.json",
    output:
        expand("results/{{folder}}scores/{b}{ending}", b=BENCHMARKS, ending=(".json", ".manifest.json")),
    log:
        "results/logs/{folder}scores.log",
    resources:
        **size(8000, minutes=120 * len(BENCHMARKS)),
    params:
        call="evals.scores.score:write_all_scores",
        benchmarks=lambda w, output: BENCHMARKS,
        grades=lambda w, input: [Path(path).parent for path in input if "/grades/" in path],
        out=lambda w: Path(f"results/{w.folder}scores"),
    script:
        "../scripts/call.py"


rule compare:
    """Every method of a folder beside the reference method and the base model."""
    input:
        code_of("evals.scores.comparison"),
        of_runs("results/runs/{run}/metrics.parquet"),
        scores=expand("results/{{folder}}scores/{b}.json", b=BENCHMARKS),
        decisions=last_decisions,
    output:
        "results/{folder}comparisons.json",
        "results/{folder}comparisons.manifest.json",
    log:
        "results/logs/{folder}comparisons.log",
    resources:
        **size(8000, minutes=120),
    params:
        ORDER,
        *made_by(statistics, 30, parameters_of_comparisons, ["fall", "margin", "level"]),
        call="evals.scores.comparison:compare_study",
        settings=lambda w, output: statistics(w),
        training=Path("results/runs"),
    script:
        "../scripts/call.py"


checkpoint look:
    """The decisions of a look: which comparisons are certain by now, and which go on. Snakemake plans anew after it."""
    input:
        code_of("evals.scores.looks"),
        comparisons="results/{folder}comparisons.json",
        earlier=lambda w: [f"results/{name}decisions.json" for name in filter(None, [look_of("earlier")(w)])],
    output:
        "results/{folder}decisions.json",
        "results/{folder}decisions.manifest.json",
    log:
        "results/logs/{folder}decisions.log",
    localrule: True
    params:
        refusing(lambda w: {f"results/{w.folder}decisions.json": {name: of(w) for name, of in OF_LOOK.items()}}),
        **OF_LOOK,
        call="evals.scores.looks:write_look",
    script:
        "../scripts/call.py"
