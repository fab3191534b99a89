# Looking inside: the runs that the study's `diagnostics` names.
DIAGNOSTICS = STUDY.config.diagnostics.to_json() if STUDY.config.diagnostics else {}


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
    found = diagnosed()
    return {"delta_coefficients": found.selected, "learning_tax": found.compared}.get(wildcards.claim, [])


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


def rollouts_pages(wildcards):
    """Pages of the first seed's rollouts, of the method that is looked into and of the one that weighs tokens."""
    found = diagnosed()
    runs = [*found.runs[:1], *found.weighting_runs[:1]]
    return expand("results/diagnostics/{run}/step-{step}.html", run=runs, step=found.steps)


# What pages beside the report are laid out by.
PAGE_TEMPLATES = [
    f"{REPOSITORY}/rlvr/report/templates/base.html.jinja",
    f"{REPOSITORY}/rlvr/report/templates/sections.html.jinja",
    f"{REPOSITORY}/rlvr/report/templates/macros.html.jinja",
    f"{REPOSITORY}/rlvr/report/templates/report.css",
]
