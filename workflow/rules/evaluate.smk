"""Evaluation of checkpoints: samples and grades of all benchmarks, a job each; scores; comparisons; looks."""

from pathlib import Path

from evals import audit, generation
from evals.core.comparisons import FALL
from evals.core.files import canonical_json
from evals.core.run_spec import VERIFIER_FILE
from evals.core.sampling import OfBenchmark, Sampling, SamplingMachine
from rlvr.study.job_sizes import grading_mb, sampling_mb, size
from rlvr.study.policies import DECODINGS
from rlvr.study.rule_values import NO_NAME, options
from rlvr.study.source_files import code_of

DECISIVE = {*OfBenchmark.model_fields, *Sampling.model_fields, "served_model", "extra_body"} - {"backend", "dtype"}
CHOOSING = [BEST_CHOICE.benchmark] if BEST_CHOICE else ["none"]
CANDIDATE = r"[^/]+_choice\d+-s\d+" if BEST_CHOICE else NO_NAME


def evaluated_on(wildcards):
    """The benchmarks that a checkpoint is evaluated on."""
    return CHOOSING if policy(wildcards.run).chooses else BENCHMARKS


def sampling(wildcards):
    """What decides a policy's samples on all benchmarks alike; those of a candidate are others than those that are scored."""
    row, decoding = policy(wildcards.run), DECODED_BY.get(wildcards.decoding)
    settings = STUDY.sampling(row.run.model)
    if decoding is not None:
        return settings.model_copy(update={"temperature": decoding.temperature, "top_p": decoding.top_p})
    return settings.model_copy(update={"seed": settings.seed + 1}) if row.chooses else settings


def sampling_of(wildcards):
    """What each benchmark has of its own, by its name."""
    row, decoding = policy(wildcards.run), DECODED_BY.get(wildcards.decoding)
    own = {}
    for name in evaluated_on(wildcards):
        samples = BEST_CHOICE.k if row.chooses else CONFIG.evaluation.samples(name)
        samples = decoding.samples_per_problem if decoding else samples
        own[name] = OfBenchmark(prompt=STUDY.prompt(name, row.run.model), samples_per_problem=samples)
    return own


def settings_of_samples(wildcards):
    """What decides the samples of a checkpoint."""
    return {**sampling(wildcards).identity(), "of": sampling_of(wildcards), "version": generation.VERSION}


def parameters_of_samples(wildcards):
    """The parameters that the manifests of samples have, of those that decide them."""
    settings, at = sampling(wildcards), f"results/{wildcards.decoding}samples/{wildcards.run}"
    shared = settings.identity()
    server = STUDY.served_models.get(policy(wildcards.run).run.model)
    shared |= {"served_model": server.model, "extra_body": server.extra_body} if server else {}
    shared = {key: value for key, value in shared.items() if key in DECISIVE and value != {}}
    shared |= {"engine": settings.backend, "version": generation.VERSION}
    shared |= {} if settings.dtype == "auto" else {"dtype": settings.dtype}
    shared["from"] = [] if server else [policy(wildcards.run).directory]
    return {f"{at}/{name}/manifest.json": {**shared, **own.identity()} for name, own in sampling_of(wildcards).items()}


def sampling_command(wildcards, output):
    """The words of the command that samples a checkpoint: settings as JSON, and options of the machine."""
    own = {f"results/problems/{name}": of.identity() for name, of in sampling_of(wildcards).items()}
    settings = [policy(wildcards.run).directory, canonical_json(sampling(wildcards).identity()), canonical_json(own)]
    return [*settings, *options(MACHINE, SamplingMachine)]


def settings_of_grades(wildcards):
    """What decides the grades of a checkpoint."""
    of_audit = {"audit": audit.VERSION, "audited": CONFIG.evaluation.audited}
    return {"of": {name: STUDY.grading(name) for name in evaluated_on(wildcards)}, **of_audit}


def parameters_of_grades(wildcards):
    """The parameters that the manifests of grades and of their audits have."""
    asked = {}
    for name in evaluated_on(wildcards):
        kind, version = STUDY.grading(name)
        file = f"results/{wildcards.decoding}grades/{wildcards.run}/{name}/manifest.json"
        samples = f"results/{wildcards.decoding}samples/{wildcards.run}/{name}"
        asked[file] = {"kind": kind, "grader_version": int(str(version).split()[-1]), "from": [samples]}
        audited = {"share": CONFIG.evaluation.audited, "version": audit.VERSION}
        asked[file.replace("manifest.json", "audit.json")] = audited
    return asked


def verifiers(names):
    """The study's copies of a user's functions that grade benchmarks."""
    return {name: f"results/verifiers/{name}/{VERIFIER_FILE}" for name in names if name in STUDY.verifiers}


def statistics(wildcards):
    """The statistics of a comparison: at a look its intervals have the level of the look, and controls are not named."""
    config = study_of(wildcards.folder).config
    looks = {} if DECODINGS in wildcards.folder else STUDIES.looks(wildcards.folder)
    look, planned, stopping = looks.get(wildcards.folder), list(looks.values()), None
    if planned and not look:
        stopping = {"looks": [row.seeds for row in planned], "levels": [row.level for row in planned]}
        stopping |= {"margin": planned[0].margin, "level": config.seeds.level / 100}
    return {
        "reference_method": config.reference_method,
        "statistics": CONFIG.statistics,
        "controls": None if look else config.controls,
        "confidence": 1.0 - look.level if look else 0.95,
        **({"is_first_look": True} if look and look.earlier is None else {}),
        "stopping": stopping,
    }


def parameters_of_comparisons(wildcards):
    """The parameters that the manifest of a comparison has."""
    asked, of = statistics(wildcards), CONFIG.statistics
    parameters = {"seed": of.seed, "bootstrap_resamples": of.resamples, "permutations": of.permutations}
    parameters |= {key: asked[key] for key in ("reference_method", "confidence", "controls")}
    parameters |= {key: value for key, value in (asked["stopping"] or {}).items() if key in ("margin", "level")}
    parameters |= {} if of.fall == FALL else {"fall": of.fall.to_json()}
    parameters["weighting"] = of.weighting or "benchmarks"
    parameters["from"] = results_of(wildcards.folder)["scores"]
    return {f"results/{wildcards.folder}comparisons.manifest.json": parameters}


def last_decisions(wildcards):
    """The decisions of the last look at the study of a folder; those of a look itself come later."""
    if DECODINGS in wildcards.folder or wildcards.folder in STUDIES.looks(wildcards.folder):
        return []
    compared(wildcards.folder)
    due = [name for name, look in STUDIES.looks(wildcards.folder).items() if look.is_due]
    return [f"results/{name}decisions.json" for name in due[-1:]]


def look_of(name):
    """Make the function of a value of a look."""
    return lambda wildcards: getattr(STUDIES.looks(wildcards.folder)[wildcards.folder], name)


OF_LOOK = {name: look_of(name) for name in ("margin", "level", "level_alone")}


rule sample:
    """The responses of a checkpoint to all benchmarks, by a decoding: samples.jsonl, which its manifest stands for.

    Finished batches lie in state/ beside it.
    """
    input:
        lambda w: policy(w.run).file,
        expand("results/problems/{set}/{file}.json", set=BENCHMARKS, file=("manifest", "disjoint")),
    output:
        expand("results/{{decoding}}samples/{{run}}/{b}/manifest.json", b=BENCHMARKS),
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


use rule sample as sample_candidate with:  # a checkpoint that the best one of its run is chosen among
    input:
        lambda w: policy(w.run).file,
        expand("results/problems/{set}/{file}.json", set=CHOOSING, file=("manifest", "disjoint")),
    output:
        expand("results/{{decoding}}samples/{{run}}/{b}/manifest.json", b=CHOOSING),
    wildcard_constraints:
        run=CANDIDATE,


rule grade:
    """A verdict on every response of a checkpoint to all benchmarks, grades.jsonl, and the audit of the verdicts."""
    input:
        expand("results/{{decoding}}samples/{{run}}/{b}/manifest.json", b=BENCHMARKS),
        expand("results/problems/{b}/problems.jsonl", b=BENCHMARKS),
        list(verifiers(BENCHMARKS).values()),
    output:
        expand("results/{{decoding}}grades/{{run}}/{b}/{file}.json", b=BENCHMARKS, file=("manifest", "audit")),
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


use rule grade as grade_candidate with:
    input:
        expand("results/{{decoding}}samples/{{run}}/{b}/manifest.json", b=CHOOSING),
        expand("results/problems/{b}/problems.jsonl", b=CHOOSING),
        list(verifiers(CHOOSING).values()),
    output:
        expand("results/{{decoding}}grades/{{run}}/{b}/{file}.json", b=CHOOSING, file=("manifest", "audit")),
    wildcard_constraints:
        run=CANDIDATE,


ruleorder: sample_candidate > sample
ruleorder: grade_candidate > grade


rule score:
    """The scores of all runs of a folder on a benchmark."""
    input:
        code_of("evals.scores.score"),
        of_runs("{answers}grades/{run}/{b}/manifest.json"),
        runs="results/{folder}runs.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
    output:
        "results/{folder}scores/{benchmark}.json",
        "results/{folder}scores/{benchmark}.manifest.json",
    log:
        "results/logs/{folder}scores/{benchmark}.log",
    resources:
        **size(8000, minutes=120),
    params:
        call="evals.scores.score:write_scores",
        benchmark=lambda w: w.benchmark,
        grades=lambda w, input: [Path(path).parent for path in input if "/grades/" in path],
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
