# What all rules share: the checked study, and the lists that follow from it.
import os
import re
import sys
from pathlib import Path

from evals.artifacts import canonical_json
from evals.errors import UserError
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERSION as CODE_GRADER_VERSION
from evals.grading.code.sandbox import require_sandbox
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.diagnostics import VERSION as DIAGNOSTICS_VERSION
from rlvr.diagnostics.phenomena.catalogue import CLAIMS
from rlvr.engines.local import VERSION as ENGINE_VERSION
from rlvr.study.diagnosed import Diagnosed
from rlvr.study.named import named_study_files, read_named_study, resolve_studies

# Jobs call `python`: the one that runs this, whether or not its environment is activated.
os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()]))


def checked_studies():
    """The studies of this invocation; a mistake ends in one line, before any work."""
    source = ", ".join(str(path).removeprefix(f"{workflow.basedir}/") for path in workflow.configfiles)
    try:
        return resolve_studies(config, source)
    except UserError as error:
        sys.exit(f"error: {error}")


def planning():
    """Whether nothing will be run. Snakemake knows it only once it has read the rules."""
    return any(word in ("--dry-run", "--dryrun") or re.fullmatch(r"-[a-zA-Z]*n[a-zA-Z]*", word) for word in sys.argv)


def require_local_copies():
    """Every local copy that the study names is there, or one line says which is not, before any work."""
    for name, benchmark in {**STUDY.benchmarks, "problems": STUDY.training_settings}.items():
        if "path" in benchmark and not os.path.exists(benchmark["path"]):
            sys.exit(f"error: {name}: path: {benchmark['path']}: no such file or directory")


def require_sandbox_for_programs():
    """Programs can be run here, if the study has a benchmark of them; better said now than after the training."""
    for name, benchmark in STUDY.benchmarks.items():
        if benchmark.get("grader") == "code":
            try:
                require_sandbox()
            except UserError as error:
                sys.exit(f"error: benchmark {name}: {error}")


# A scope is where a study's results lie under results/: "" for the study of this invocation, studies/NAME/ for a named
# one. Problems, base models, runs, samples and grades are shared by all of them.
ALL_STUDIES = checked_studies()
STUDIES, RUNS = ALL_STUDIES.by_scope, ALL_STUDIES.runs
STUDY = STUDIES[""]
SCRATCH = STUDY.models_from_scratch
TAKEN_IN = [name for name in STUDY.config["models"] if name not in SCRATCH]
require_local_copies()
require_sandbox_for_programs()
EXECUTION = STUDY.config["execution"]
REPOSITORY = workflow.basedir
GENERATED = [name for name, benchmark in STUDY.benchmarks.items() if benchmark["source"] == "generated"]
READ = [name for name in STUDY.benchmarks if name not in GENERATED]
NONE = "(?!)"
# Other Pythons than ours, such as vLLM's, find our packages here.
os.environ.update(PYTHONPATH=os.pathsep.join([REPOSITORY, *filter(None, [os.environ.get("PYTHONPATH")])]))


wildcard_constraints:
    run="|".join(RUNS),
    scope=f"(?:{'|'.join(STUDIES)})",
    benchmark="|".join(STUDY.benchmarks),
    model="|".join(STUDY.config["models"]),


def modules(*names):
    """Source files of modules or packages: inputs of the stages that are cheap to repeat when their code changes."""
    paths = []
    for name in names:
        path = Path(REPOSITORY, *name.split("."))
        paths += sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [str(path) for path in paths]


NOTE = (
    "Trained by verl. The tables say what was measured; what the study departs from its paper in stands in its file."
    if TAKEN_IN and STUDY.methods
    else (
        "Real problems and a tiny model made from scratch on arithmetic: this shows that they pass"
        " through the machinery. It is no evidence about any model's ability."
        if READ or "repository" in STUDY.training_settings
        else "Generated problems and a tiny model made from scratch: this shows how the methods behave on this task, and"
        " that the machinery works. It is no evidence about models of billions of parameters."
    )
)
# A study of models alone has neither training curves nor methods to set side by side.
FIGURES = ["scores", "differences", "training_curves"] if STUDY.methods else ["scores"]
TABLES = ["main", "by_seed", "audit", "paper_vs_ours"] if STUDY.methods else ["main", "audit"]
SHOWN = [
    *[f"tables/{table}.md" for table in TABLES],
    *[f"figures/{figure}.png" for figure in FIGURES],
    *(["report.html", "tracking.json"] if STUDY.methods else []),
]


def shown_results(scope, kind=""):
    """What people look at of the study at ``scope``: everything, or the files of a directory."""
    own = ["tables/paper.md", "figures/reward_curves.png"] if scope else []
    return [f"results/{scope}{path}" for path in own + SHOWN if path.startswith(kind)]


def made_of(scope):
    """Manifests of everything between the study at ``scope`` and what people look at.

    Targets ask for them by name. A job that fails loses its outputs, and Snakemake makes a lost file again only if it is
    asked for or something that is to be made needs it: not for a table that is there, made from what was lost.
    """
    study = STUDIES[scope]
    evaluated = [f"{run.run}/{benchmark}" for run in study.runs for benchmark in STUDY.benchmarks]
    problems = [*STUDY.benchmarks, *(["train"] if trained_runs(scope) else [])]
    return [
        *expand("results/problems/{name}/manifest.json", name=problems),
        *[study.checkpoint_manifest(run.run) for run in study.runs],
        *expand("results/{stage}/{evaluated}/manifest.json", stage=["samples", "grades"], evaluated=evaluated),
    ]


def with_beside(scope):
    """The scopes that are made together: a named study's, and that of the study it names in ``beside``.

    A study that was refused ends in one line, if it is asked for.
    """
    scopes = [scope]
    for each in scopes:
        if each in ALL_STUDIES.refused:
            sys.exit(f"error: {ALL_STUDIES.refused[each]}")
        name = each.removeprefix("studies/").removesuffix("/")
        other = read_named_study(named_study_files()[name]).get("beside")
        scopes += [f"studies/{other}/"] if other else []
    return scopes


def named_study_results(scope):
    """What people look at of a named study and of the one beside it."""

    def results(wildcards):
        return [path for each in with_beside(scope) for path in shown_results(each) + made_of(each)]

    return results


def sheets_of_curves(wildcards):
    """The run sheets whose reward curves stand in one figure."""
    return [f"results/{each}runs.json" for each in with_beside(wildcards.scope)]


def metrics_of_curves(wildcards):
    """The metrics of their runs."""
    runs = [run for each in with_beside(wildcards.scope) for run in trained_runs(each)]
    return expand("results/runs/{run}/metrics.parquet", run=runs)


def titles_of_curves(wildcards):
    """The headings of their columns."""
    names = [STUDIES[each].config["study"] for each in with_beside(wildcards.scope)]
    return [read_named_study(named_study_files()[name])["title"] for name in names]


def scope_tables(wildcards):
    """The tables of the study."""
    return shown_results(wildcards.scope, "tables/")


def scope_figures(wildcards):
    """The figures of the study."""
    return shown_results(wildcards.scope, "figures/")


def scope_scores(wildcards):
    """The scores of the study."""
    return [f"results/{wildcards.scope}scores/{benchmark}.json" for benchmark in STUDY.benchmarks]


def scope_audits(wildcards):
    """The audits of the study's grades."""
    return [f"results/{wildcards.scope}audits/{benchmark}.json" for benchmark in STUDY.benchmarks]


def sample_directories(wildcards):
    """The samples of every run of the study on a benchmark, in the order of their grades."""
    return [f"results/samples/{run.run}/{wildcards.benchmark}" for run in STUDIES[wildcards.scope].runs]


def sample_manifests(wildcards):
    """Their manifests, which have their hashes."""
    return [f"{directory}/manifest.json" for directory in sample_directories(wildcards)]


def grade_directories(wildcards):
    """The grades of every run of the study on a benchmark."""
    return [f"results/grades/{run.run}/{wildcards.benchmark}" for run in STUDIES[wildcards.scope].runs]


def grade_manifests(wildcards):
    """Their manifests, which stand for them: they have their hash, which the command checks."""
    return [f"{directory}/manifest.json" for directory in grade_directories(wildcards)]


def trained_runs(scope):
    """Ids of the runs of the study at ``scope``, base models aside."""
    return [run.run for run in STUDIES[scope].trained_runs]


def training_metrics(wildcards):
    """The metrics of every trained run of the study."""
    return expand("results/runs/{run}/metrics.parquet", run=trained_runs(wildcards.scope))


def run_manifests(wildcards):
    """The manifests of every trained run of the study.

    Benchmark files are written with a job but are no outputs of it: the tables read them, and follow the job through
    its manifest.
    """
    return expand("results/runs/{run}/manifest.json", run=trained_runs(wildcards.scope))


# Parameters and inputs of rules. Text with braces has to come from a function: Snakemake reads wildcards into the
# braces of a plain string.
def run_sheet_json(wildcards):
    """All runs of the study."""
    return STUDIES[wildcards.scope].run_sheet()


def named_study(wildcards):
    """The named study as written."""
    return read_named_study(named_study_files()[study_name(wildcards)])


def study_title(wildcards):
    """The named study's heading."""
    return named_study(wildcards)["title"]


def notes(wildcards):
    """What the study asks, if it is a named one, and what its numbers are evidence of."""
    return [named_study(wildcards)["question"], NOTE] if wildcards.scope else [NOTE]


def own_settings(wildcards):
    """How this study's numbers are made, in the terms of config/reference/settings.yaml."""
    evaluation = STUDY.config["evaluation"]
    sampling = {key: evaluation[key] for key in ("temperature", "top_p", "max_new_tokens")}
    settings = {"training_problems": STUDY.training_problems, "checkpoint": "last"}
    models = {name: f"{name}, trained from scratch" for name in SCRATCH}
    taken_in = {name: STUDY.config["models"][name] for name in TAKEN_IN}  # owner/name or a path: papers give the name
    models |= {name: Path(model.get("id") or model["path"]).name for name, model in taken_in.items()}
    return canonical_json({"models": models, **settings, **sampling})


def study_name(wildcards):
    """The study's name."""
    return STUDIES[wildcards.scope].config["study"]


def reference_method(wildcards):
    """The method that every other one of the study is compared with."""
    return STUDIES[wildcards.scope].config["reference_method"]


def training_kinds(wildcards):
    """Families and lengths of the training problems."""
    return canonical_json(STUDY.training_settings["kinds"])


def training_set_settings(wildcards):
    """What decides the problems of a published training set."""
    return canonical_json(STUDY.training_settings)


def training_files(wildcards):
    """The local copy that a published training set is read from."""
    return local_files(STUDY.training_settings)


def training_count(wildcards):
    """Number of the training problems."""
    return STUDY.config["problems"]["count"]


def training_seed(wildcards):
    """Seed of the training problems."""
    return STUDY.config["problems"]["seed"]


def benchmark_settings(wildcards):
    """What decides a benchmark's problems."""
    return canonical_json(STUDY.problem_settings(wildcards.benchmark))


def generated_kinds(wildcards):
    """Family and length of a generated benchmark."""
    return canonical_json(STUDY.problem_settings(wildcards.benchmark)["kinds"])


def generated_count(wildcards):
    """Number of a generated benchmark's problems."""
    return STUDY.benchmarks[wildcards.benchmark]["count"]


def generated_seed(wildcards):
    """Seed of a generated benchmark."""
    return STUDY.benchmarks[wildcards.benchmark]["seed"]


def local_files(settings):
    """The files of a local copy: if one is changed, the copy is read again."""
    path = settings.get("path")
    return sorted(str(file) for file in ([path] if os.path.isfile(path) else Path(path).rglob("*.*"))) if path else []


def benchmark_files(wildcards):
    """The local copy that a benchmark is read from."""
    return local_files(STUDY.benchmarks[wildcards.benchmark])


def grading_kind(wildcards):
    """How a benchmark's responses are read."""
    grader = STUDY.benchmarks[wildcards.benchmark].get("grader")
    return grader if grader in ("choice", "code") else "completion"


def grader_version(wildcards):
    """The version of what grades a benchmark."""
    return f"code {CODE_GRADER_VERSION}" if grading_kind(wildcards) == "code" else GRADER_VERSION


def corpus_settings(wildcards):
    """A model's corpus, as configured."""
    return canonical_json(STUDY.config["models"][wildcards.model]["corpus"])


def corpus_count(wildcards):
    """Worked solutions that a model's training uses up."""
    training = STUDY.config["models"][wildcards.model]["training"]
    return training["steps"] * training["batch_size"]


def base_model_settings(wildcards):
    """A model's architecture and training, as the base trainer takes them."""
    model = STUDY.config["models"][wildcards.model]
    return canonical_json({"architecture": model["architecture"], **model["training"]})


def resolved_run(wildcards):
    """Content of the run's run.json: whatever changes it makes this run, and no other, be trained again."""
    return canonical_json(RUNS[wildcards.run][0].resolved_run(wildcards.run))


def base_manifest(wildcards):
    """The base model that a run starts from."""
    return f"results/base/{RUNS[wildcards.run][1].model}/manifest.json"


def evaluated_manifest(wildcards):
    """The manifest of the checkpoint that a run evaluates."""
    return RUNS[wildcards.run][0].checkpoint_manifest(wildcards.run)


def evaluated_directory(wildcards):
    """The directory of that checkpoint's artifact."""
    return str(Path(RUNS[wildcards.run][0].checkpoint_manifest(wildcards.run)).parent)


def study_json(wildcards):
    """The whole configuration of the study."""
    return canonical_json(STUDIES[wildcards.scope].config)


# Looking inside: the runs that the study's `diagnostics` names.
DIAGNOSTICS = STUDY.config.get("diagnostics", {})


def diagnosed():
    """The runs that are looked into; a mistake ends in one line, if they are asked for."""
    try:
        return Diagnosed.of(STUDY, RUNS)
    except UserError as error:
        sys.exit(f"error: {error}")


def measured_claims():
    """The claims that the study has runs for."""
    needs = {"delta_coefficients": "weighting_method", "learning_tax": "compared"}
    return [claim for claim in CLAIMS if needs.get(claim, "method") in DIAGNOSTICS]


def compared_runs(wildcards):
    """Ids of the runs whose training, and checkpoints, a claim compares."""
    return diagnosed().compared if wildcards.claim in ("delta_coefficients", "learning_tax") else []


def compared_manifests(wildcards):
    """Their manifests."""
    return expand("results/runs/{run}/manifest.json", run=compared_runs(wildcards))


def token_tables(wildcards):
    """Manifests of the token tables of the method that is looked into."""
    return expand("results/diagnostics/{run}/manifest.json", run=diagnosed().runs)


def contrast_tables(wildcards):
    """Manifests of those of the method that weighs tokens, for the claim about its weights."""
    runs = diagnosed().weighting_runs if wildcards.claim == "delta_coefficients" else []
    return expand("results/diagnostics/{run}/manifest.json", run=runs)


def compared_benchmark(wildcards):
    """The benchmark on which base and trained model are compared, for the claim about their difference."""
    benchmark = diagnosed().benchmark
    return f"results/problems/{benchmark}/manifest.json" if wildcards.claim == "update_direction" else []


def probed_tables(wildcards):
    """Manifests of the probes."""
    return expand("results/diagnostics/{run}/probes.manifest.json", run=diagnosed().runs)


def directories(manifests):
    """Where artifacts lie, from their manifests."""
    return [str(Path(manifest).parent) for manifest in manifests]
