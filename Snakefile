# The only entry: `snakemake` runs the study of config/config.yaml, `snakemake --configfile FILE` another one.
from snakemake.utils import min_version

min_version("9.25")

# A study given by --configfile is complete in itself: merging it into the default would add the default's methods to it.
if not workflow.configfiles:

    configfile: f"{workflow.basedir}/config/config.yaml"


report: "workflow/report/study.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/shown.smk"
include: "workflow/rules/generation.smk"
include: "workflow/rules/looking_inside.smk"
include: "workflow/rules/study.smk"
include: "workflow/rules/problems.smk"
include: "workflow/rules/clusters.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/sample.smk"
include: "workflow/rules/grade.smk"
include: "workflow/rules/score.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/track.smk"
include: "workflow/rules/pairs.smk"
include: "workflow/rules/decoding.smk"
include: "workflow/rules/diagnose.smk"


rule all:
    default_target: True
    input:
        shown_results(""),
        made_of(""),


rule runs:
    input:
        expand("results/runs/{run}/manifest.json", run=trained_runs("")),


rule scores:
    input:
        expand("results/scores/{benchmark}.json", benchmark=STUDY.benchmarks),
        made_of(""),


rule tables:
    input:
        shown_results("", "tables/"),
        made_of(""),


rule figures:
    input:
        shown_results("", "figures/"),
        made_of(""),


# Token tables, and the papers' claims measured on them.
rule phenomena:
    input:
        "results/tables/phenomena.md",
        expand("results/figures/phenomena/{claim}.png", claim=MEASURED_CLAIMS),
        "results/phenomena.html",
        "results/phenomena.tracking.json",


# The named studies (config/studies/*.yaml): `snakemake ablations`, `snakemake batching` ...
for scope in [scope for scope in [*STUDIES, *ALL_STUDIES.refused] if scope.count("/") == 2]:

    rule:
        name:
            scope.split("/")[1]
        input:
            named_study_results(scope),
