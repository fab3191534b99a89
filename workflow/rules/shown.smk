# What people look at of a study, and what it is made from.
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
    own = ["tables/paper.md", *[f"figures/{name}.png" for name in own_figures(scope)]] if scope else []
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


def own_figures(scope):
    """Names of the figures that a named study has and others have not."""
    return ["reward_curves", *(["score_curves"] if f"{scope}steps/" in STUDIES else [])]


def with_beside(scope):
    """The scopes that are made together: a named study's, and that of the study it names in ``beside``.

    A study that was refused ends in one line, if it is asked for.
    """
    scopes = [scope]
    for each in scopes:
        if each in ALL_STUDIES.refused:
            sys.exit(f"error: {ALL_STUDIES.refused[each]}")
        name = each.removeprefix("studies/").removesuffix("/")
        other = read_named_study(named_study_files()[name]).beside
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
    names = [STUDIES[each].config.study for each in with_beside(wildcards.scope)]
    return [read_named_study(named_study_files()[name]).title for name in names]


def scopes_of_score_curves(wildcards):
    """The study's own scope, and that of its methods at earlier steps."""
    return [wildcards.scope, f"{wildcards.scope}steps/"]


def sheets_of_score_curves(wildcards):
    """The run sheets of both."""
    return [f"results/{scope}runs.json" for scope in scopes_of_score_curves(wildcards)]


def scores_of_score_curves(wildcards):
    """The scores of both."""
    scopes = scopes_of_score_curves(wildcards)
    return [f"results/{scope}scores/{benchmark}.json" for scope in scopes for benchmark in STUDY.benchmarks]


def points_of_score_curves(wildcards):
    """Where the methods are scored."""
    return canonical_json(score_points(STUDIES[wildcards.scope], named_study(wildcards).score_at))


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
