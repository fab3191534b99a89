"""Evaluation of checkpoints: samples and grades of all benchmarks, a job each; scores; comparisons; looks."""

from evals.audit import VERSION as AUDIT_VERSION
from evals.core.sampling import OfBenchmark, Sampling, SamplingMachine
from evals.scores.comparison import Settings

DECISIVE = {*OfBenchmark.model_fields, *Sampling.model_fields} - {"backend", "dtype"}
CHOOSING = [BEST_CHOICE.benchmark] if BEST_CHOICE else ["none"]
CANDIDATE = r"[^/]+_choice\d+-s\d+" if BEST_CHOICE else NO_NAME
GRADES = ("grades.jsonl", "manifest.json", "audit.json", "audit.manifest.json")


def evaluated_on(wildcards):
    """The benchmarks that a checkpoint is evaluated on."""
    return CHOOSING if policy(wildcards.run).chooses else BENCHMARKS


def sampling(wildcards):
    """What decides a policy's samples on all benchmarks alike; those of a candidate are others than those that are scored."""
    row = policy(wildcards.run)
    settings = STUDY.sampling(row.run.model)
    return settings.model_copy(update={"seed": settings.seed + 1}) if row.chooses else settings


def sampling_of(wildcards):
    """What each benchmark has of its own, by its name."""
    row = policy(wildcards.run)
    return {
        name: OfBenchmark(
            prompt=STUDY.prompt(name, row.run.model),
            samples_per_problem=BEST_CHOICE.k if row.chooses else CONFIG.evaluation.samples(name),
        )
        for name in evaluated_on(wildcards)
    }


def settings_of_samples(wildcards):
    """What decides the samples of a checkpoint."""
    return {**sampling(wildcards).identity(), "of": sampling_of(wildcards), "version": SAMPLER_VERSION}


def check_samples(wildcards, texts):
    """Refuse samples of a policy that were made with other settings than the study asks."""
    for name, own in sampling_of(wildcards).items():
        asked = {**sampling(wildcards).identity(), **own.identity()}
        asked = {key: value for key, value in asked.items() if key in DECISIVE}
        file = f"results/samples/{{run}}/{name}/manifest.json"
        refuse_made_otherwise(workflow, file, lambda w, asked=asked: asked, DECISIVE)(wildcards, texts)


def check_grades(wildcards, texts):
    """Refuse grades of a policy that were made by another grader than the study asks."""
    for name in evaluated_on(wildcards):
        kind, version = STUDY.grading(name)
        asked = {"kind": kind, **({"grader_version": version} if isinstance(version, int) else {})}
        file = f"results/grades/{{run}}/{name}/manifest.json"
        refuse_made_otherwise(workflow, file, lambda w, asked=asked: asked)(wildcards, texts)


def sampling_command(wildcards, threads):
    """The words of the command that samples a checkpoint: settings as JSON, and options of the machine."""
    own = {f"results/problems/{name}": of.identity() for name, of in sampling_of(wildcards).items()}
    settings = [policy(wildcards.run).directory, canonical_json(sampling(wildcards).identity()), canonical_json(own)]
    return [*settings, *options(MACHINE, SamplingMachine)]


def settings_of_grades(wildcards):
    """What decides the grades of a checkpoint."""
    return {"of": {name: STUDY.grading(name) for name in evaluated_on(wildcards)}, "audit": AUDIT_VERSION}


def verifiers(names):
    """The study's copies of a user's functions that grade benchmarks."""
    return {name: f"results/verifiers/{name}/{VERIFIER_FILE}" for name in names if name in STUDY.verifiers}


rule sample:
    """The responses of a checkpoint to all benchmarks. Finished batches lie in state/ beside them."""
    input:
        lambda w: policy(w.run).file,
        expand("results/problems/{set}/{file}.json", set=BENCHMARKS, file=("manifest", "disjoint")),
    output:
        expand("results/samples/{{run}}/{b}/{file}", b=BENCHMARKS, file=("samples.jsonl", "manifest.json")),
    log:
        "results/logs/samples/{run}.log",
    benchmark:
        "results/costs/sample/{run}.tsv"
    priority: 20
    conda:
        SAMPLING.conda
    container:
        SAMPLING.container
    threads: MACHINE.sampling_threads
    resources:
        gpu=lambda w: sampling(w).tensor_parallel_size if MACHINE.device == "cuda" else 0,
    params:
        *by_setting(settings_of_samples, at_most=60, check=check_samples),
        python=lambda w, output: SAMPLING.python,
        command=sampling_command,
    shell:
        "exec {params.python} -m rlvr sample results/samples/{wildcards.run} {params.command:q} > {log:q} 2>&1"


use rule sample as sample_candidate with:  # a checkpoint that the best one of its run is chosen among
    input:
        lambda w: policy(w.run).file,
        expand("results/problems/{set}/{file}.json", set=CHOOSING, file=("manifest", "disjoint")),
    output:
        [f"results/samples/{{run}}/{b}/{file}" for b in CHOOSING for file in ("samples.jsonl", "manifest.json")],
    wildcard_constraints:
        run=CANDIDATE,


rule grade:
    """A verdict on every response of a checkpoint to all benchmarks, and the audit of the verdicts."""
    input:
        expand("results/samples/{{run}}/{b}/manifest.json", b=BENCHMARKS),
        expand("results/problems/{b}/problems.jsonl", b=BENCHMARKS),
        list(verifiers(BENCHMARKS).values()),
    output:
        expand("results/grades/{{run}}/{b}/{file}", b=BENCHMARKS, file=GRADES),
    log:
        "results/logs/grades/{run}.log",
    benchmark:
        "results/costs/grade/{run}.tsv"
    priority: 30
    params:
        *by_setting(settings_of_grades, at_most=60, check=check_grades),
        call="evals.audit.grade:grade_policy",
        kinds=lambda w, output: {name: STUDY.grading(name)[0] for name in evaluated_on(w)},
        verifiers=lambda w, output: verifiers(evaluated_on(w)),
        workers=lambda w, output: MACHINE.grading_workers,
        run=lambda w: w.run,
        out=Path("results/grades"),
    script:
        "../scripts/call.py"


use rule grade as grade_candidate with:
    input:
        [f"results/samples/{{run}}/{b}/manifest.json" for b in CHOOSING],
        [f"results/problems/{b}/problems.jsonl" for b in CHOOSING],
        list(verifiers(CHOOSING).values()),
    output:
        [f"results/grades/{{run}}/{b}/{file}" for b in CHOOSING for file in GRADES],
    wildcard_constraints:
        run=CANDIDATE,


ruleorder: sample_candidate > sample
ruleorder: grade_candidate > grade


rule score:
    """The scores of all runs of a folder on a benchmark."""
    input:
        code_of("evals.scores.score"),
        of_runs("results/grades/{run}/{b}/manifest.json"),
        runs="results/{folder}runs.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
    output:
        "results/{folder}scores/{benchmark}.json",
        "results/{folder}scores/{benchmark}.manifest.json",
    log:
        "results/logs/{folder}scores/{benchmark}.log",
    params:
        call="evals.scores.score:write_scores",
        benchmark=lambda w: w.benchmark,
        grades=lambda w, input: [Path(path).parent for path in input if path.endswith(f"/{w.benchmark}/manifest.json")],
    script:
        "../scripts/call.py"


def is_look(wildcards):
    """Whether a folder is that of a look, which compares scores alone."""
    return wildcards.folder in STUDIES.looks(wildcards.folder)


def statistics(wildcards):
    """The statistics of a comparison: at a look its intervals have the level of the look, and controls are not named."""
    config = study_of(wildcards.folder).config
    look = STUDIES.looks(wildcards.folder).get(wildcards.folder)
    return {
        "reference_method": config.reference_method,
        "statistics": CONFIG.statistics,
        "controls": None if look else config.controls,
        "confidence": 1.0 - look.level if look else 0.95,
    }


def parameters_of_comparisons(wildcards):
    """The parameters that the manifest of a comparison has."""
    asked = statistics(wildcards)
    settings = Settings.of(**asked)
    names = {"seed": settings.seed, "bootstrap_resamples": settings.bootstrap_resamples}
    names |= {"permutations": settings.permutations, "reference_method": settings.reference_method}
    return names | {"confidence": settings.confidence}


def decisions(wildcards):
    """The decisions of the last look at the study of a folder; those of a look itself come later."""
    if is_look(wildcards):
        return []
    compared(wildcards.folder)
    taken = [name for name, look in STUDIES.looks(wildcards.folder).items() if look.is_due]
    return [f"results/{name}decisions.json" for name in taken[-1:]]


rule compare:
    """Every method of a folder beside the reference method and the base model."""
    input:
        code_of("evals.scores.comparison"),
        lambda w: [] if is_look(w) else of_runs("results/runs/{run}/metrics.parquet", trained=True)(w),
        scores=expand("results/{{folder}}scores/{b}.json", b=BENCHMARKS),
        decisions=decisions,
    output:
        "results/{folder}comparisons.json",
        "results/{folder}comparisons.manifest.json",
    log:
        "results/logs/{folder}comparisons.log",
    params:
        *by_setting(
            statistics,
            at_most=20,
            check=refuse_made_otherwise(
                workflow, "results/{folder}comparisons.manifest.json", parameters_of_comparisons
            ),
        ),
        call="evals.scores.comparison:compare_study",
        settings=lambda w, output: statistics(w),
        training=lambda w: None if is_look(w) else Path("results/runs"),
    script:
        "../scripts/call.py"


def look_of(name):
    """Make the function of a value of a look."""
    return lambda wildcards: getattr(STUDIES.looks(wildcards.folder)[wildcards.folder], name)


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
    params:
        call="evals.scores.looks:write_look",
        margin=look_of("margin"),
        level=look_of("level"),
        level_alone=look_of("level_alone"),
    script:
        "../scripts/call.py"
