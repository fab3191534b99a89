"""Training: the runs, checkpoints that are kept along them, and the best one of each."""


rule copy_component:
    """A file of the user's with components, copied into the results, in a directory named after its bytes."""
    input:
        file=lambda w: COMPONENTS[w.digest],
    output:
        "results/components/{digest}/manifest.json",
        f"results/components/{{digest}}/{COMPONENT_FILE}",
    log:
        "results/logs/components/{digest}.log",
    wildcard_constraints:
        digest=one_of(COMPONENTS),
    priority: 200
    localrule: True
    params:
        call="rlvr.methods.component_file:copy_component",
    script:
        "../scripts/call.py"


rule train:
    """A run. Its outputs are small; state/ and checkpoint/ beside them are the trainer's own, which Snakemake leaves."""
    input:
        lambda w: f"results/base/{policy(w.run).run.base_model}/manifest.json",
        expand("results/problems/{set}/manifest.json", set=[set for set in PROBLEMS if set in (TRAIN, VALIDATION)]),
        [f"results/verifiers/{TRAIN}/{VERIFIER_FILE}"] if TRAIN in STUDY.verifiers else [],
        lambda w: [str(file.with_name("manifest.json")) for file in spec(w).component_files],
    output:
        "results/runs/{run}/manifest.json",
        "results/runs/{run}/metrics.parquet",
        run="results/runs/{run}/run.json",
    log:
        "results/logs/runs/{run}.log",
    benchmark:
        "results/costs/train/{run}.tsv"
    wildcard_constraints:
        run=rf"(?!{BEST}/)[^/]+",
    priority: lambda w: STUDIES.priority(w.run)  # every method's first seed comes before any method's second
    conda:
        TRAINING.conda
    container:
        TRAINING.container
    threads: MACHINE.training_threads
    resources:
        **size(of_training(training_mb), minutes=TRAINING_MINUTES) | DEVICES,
        tasks=0,  # the executor would ask for one task a GPU, where one process starts all others
    params:
        *made_by(settings_of_run, 70, lambda w: {f"results/runs/{w.run}/manifest.json": settings_of_run(w)}),
        content=lambda w, output: canonical_json(spec(w).to_json()),
        machine=machine_options,
        python=lambda w, output: TRAINING.python,
        kept=lambda w, output: checkpoints_at(STUDIES.kept_steps(w.run)),
    shell:
        "printf %s {params.content:q} > {output.run}; "
        "exec {params.python} -P -m rlvr train {output.run} {params.machine:q} {params.kept} > {log:q} 2>&1"


rule policy_at_step:
    """A checkpoint along a run. One that was not kept is made by repeating the run up to there."""
    input:
        "results/runs/{run}/manifest.json",
    output:
        "results/runs/{run}/checkpoints/step-{step}.kept",
    log:
        "results/logs/runs/{run}/checkpoints/step-{step}.log",
    benchmark:
        "results/costs/policies/{run}/step-{step}.tsv"
    wildcard_constraints:
        step=r"\d+",
    priority: lambda w: STUDIES.priority(w.run)
    conda:
        TRAINING.conda
    container:
        TRAINING.container
    threads: MACHINE.training_threads
    resources:
        **size(of_training(training_mb), TRAINING_MINUTES) | (MERGING if BY_VERL else DEVICES),  # verl's states are merged
        tasks=0,
    params:
        machine=machine_options,
        python=lambda w, output: TRAINING.python,
        kept=lambda w, output: checkpoints_at([w.step]),
    shell:
        "touch {output:q}; exec {params.python} -P -m rlvr train results/runs/{wildcards.run}/run.json {params.machine:q} "
        "{params.kept} > {log:q} 2>&1"


use rule policy_at_step as candidates with:  # the checkpoints along a run that the best one is chosen among, by one job
    output:
        "results/runs/{run}/candidates.kept",
    log:
        "results/logs/runs/{run}/candidates.log",
    benchmark:
        "results/costs/policies/{run}/candidates.tsv"
    params:
        lambda w: f"steps: {STUDIES.candidate_steps(w.run)}",
        machine=machine_options,
        python=lambda w, output: TRAINING.python,
        kept=lambda w, output: checkpoints_at(STUDIES.candidate_steps(w.run)),


rule best_policy:
    """The best checkpoint of a run, laid out as a run; checkpoint/ has its files, by hard links."""
    input:
        lambda w: [f"{os.path.dirname(grades)}/manifest.json" for grades in grades_of_candidates(w).values()],
    output:
        "results/runs/{run}/manifest.json",
        "results/runs/{run}/metrics.parquet",
        "results/runs/{run}/chosen.json",
        "results/runs/{run}/chosen.manifest.json",
    log:
        "results/logs/runs/{run}.log",
    wildcard_constraints:
        run=BEST,
    localrule: True
    params:
        refusing(lambda w: {f"results/runs/{w.run}/chosen.json": {"from": [*grades_of_candidates(w).values()]}}),
        call="rlvr.engines.result:choose_best",
        trained=lambda w, output: Path(f"results/runs/{policy(w.run).trained.run}"),
        candidates=lambda w, output: grades_of_candidates(w),
    script:
        "../scripts/call.py"
