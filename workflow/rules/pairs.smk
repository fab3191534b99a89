# What the jobs of decoding with two models are given.
from types import SimpleNamespace

from evals.decoding import VERSION as DECODING_VERSION
from rlvr.study.decoding import DecodingStudy


def checked_decoding():
    """The settings of config/decoding.yaml on the study at hand; a mistake ends in one line."""
    try:
        return DecodingStudy.resolve(STUDY)
    except UserError as error:
        sys.exit(f"error: {error}")


DECODED = checked_decoding()
DECODING_SCORES = expand("results/decoding/scores/{benchmark}.json", benchmark=STUDY.benchmarks)
DECODING_NOTE = (
    "Thresholds and gamma were chosen on other problems of the same kinds. Base, trained model and both together have"
    " the same random numbers."
)


def decoding_results(wildcards):
    """What people look at; a study that decoding does not go with ends in one line."""
    try:
        DECODED.require()
    except UserError as error:
        sys.exit(f"error: {error}")
    shown = ["tables/decoding.md", "figures/replaced_tokens.png"]
    return [*(f"results/decoding/{path}" for path in shown), "results/decoding.html", "results/decoding.tracking.json"]


def decoding_kinds(wildcards):
    """Families and lengths of the problems that thresholds are chosen on."""
    return canonical_json(DECODED.kinds)


def trained_run(wildcards):
    """The trained model of a run that both models decode."""
    return DECODED.decoded[wildcards.decoded].trained.run


def pair_manifests(run):
    """Manifests of the base and of the trained model."""
    return [STUDY.checkpoint_manifest(f"{RUNS[run][1].model}-base"), STUDY.checkpoint_manifest(run)]


def pair_of_sweep(wildcards):
    """The same of a run that is swept."""
    return pair_manifests(wildcards.run)


def pair_of_decoded(wildcards):
    """The same of a run that both models decode."""
    return pair_manifests(trained_run(wildcards))


def pair_options(run):
    """Models and sampling as options of the command."""
    settings = evaluation_settings(SimpleNamespace(run=run))
    settings["batch_size"] = settings.pop("sampling_batch_size")
    settings.pop("tensor_parallel_size")
    base, trained = (str(Path(manifest).parent) for manifest in pair_manifests(run))
    settings |= {"base": base, "trained": trained, "threads": EXECUTION["sampling_threads"]}
    settings["device"] = EXECUTION["device"]
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def sweep_options(wildcards):
    """Options of a sweep; prompts as in training, where generated problems of every kind have one form."""
    options = [*pair_options(wildcards.run), "--prompt", STUDY.config.problems.prompt]
    for key in ("criteria", "fractions", "extrapolation_fractions", "gammas"):
        options += [f"--{key.replace('_', '-')}", *map(str, getattr(DECODED.settings, key))]
    return options


def decoded_options(wildcards):
    """Options of a run that both models decode."""
    run = trained_run(wildcards)
    prompt = benchmark_prompt(SimpleNamespace(run=run, benchmark=wildcards.benchmark))
    return [*pair_options(run), "--prompt", prompt, "--scheme", DECODED.decoded[wildcards.decoded].scheme]


def decoding_run_sheet(wildcards):
    """All runs of the table."""
    return DECODED.run_sheet()


def decoding_grades(wildcards):
    """The grades of all runs of the table on a benchmark: of one model from the study, of both from here."""
    alone = [f"results/grades/{run.run}/{wildcards.benchmark}" for run in DECODED.alone]
    return alone + [f"results/decoding/grades/{run}/{wildcards.benchmark}" for run in DECODED.decoded]


def decoding_grade_manifests(wildcards):
    """Their manifests."""
    return [f"{directory}/manifest.json" for directory in decoding_grades(wildcards)]


SWEEPS = expand("results/decoding/sweeps/{run}/sweep.json", run=[run.run for run in DECODED.trained])
