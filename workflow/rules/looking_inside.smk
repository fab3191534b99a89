# Looking inside: the runs that the study's `diagnostics` names.
DIAGNOSTICS = STUDY.config.diagnostics.to_json() if STUDY.config.diagnostics else {}


def diagnosed():
    """The runs that are looked into; a mistake ends in one line, if they are asked for."""
    try:
        return Diagnosed.of(STUDY, RUNS)
    except UserError as error:
        sys.exit(f"error: {error}")


# The claims that the study has runs for.
MEASURED_CLAIMS = measurable_claims(DIAGNOSTICS)


def claim_inputs(wildcards):
    """Manifests of everything that a claim is measured on."""
    return diagnosed().manifests(wildcards.claim)


def claim_options(wildcards):
    """The same as options of the command."""
    return diagnosed().options(wildcards.claim)


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
