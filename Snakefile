# The only entry: `snakemake` runs the study of config/config.yaml, `snakemake --configfile FILE` another one.
import os
import sys
from functools import partial

from snakemake.utils import min_version

from rlvr.study.cost import plan_lines
from rlvr.study.displayed import FIGURES, REFERENCE, TABLES, Displayed
from rlvr.study.plan import Plan, directories, given, job_environment, manifests, one_line_errors, pattern
from rlvr.study.source_files import REPOSITORY, code_of

min_version("9.25")

# A study given by --configfile is complete in itself: merging it into the default would add the default's methods to it.
if not workflow.configfiles:

    configfile: f"{workflow.basedir}/config/config.yaml"


with one_line_errors():
    PLAN = Plan.read(config, ", ".join(str(path).removeprefix(f"{REPOSITORY}/") for path in workflow.configfiles))
SHOWN = Displayed(PLAN)
PAGE_TEMPLATES = [
    f"{REPOSITORY}/rlvr/report/templates/{name}" for name in ("base.html.jinja", "macros.html.jinja", "report.css")
]
os.environ.update(job_environment())
if PLAN.study.engine == "verl" and workflow.is_main_process:
    print(*plan_lines(PLAN.study), sep="\n", file=sys.stderr)


report: "workflow/report/study.rst"


wildcard_constraints:
    run=pattern(PLAN.runs),
    folder=f"(?:{'|'.join(PLAN.folders)})",
    benchmark=pattern(PLAN.study.benchmarks),
    model=pattern(PLAN.study.config.models),


include: "workflow/rules/problems.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/decoding.smk"
include: "workflow/rules/diagnose.smk"


rule all:
    default_target: True
    input:
        SHOWN.files(""),
        PLAN.intermediate(""),


rule runs:
    input:
        PLAN.run_manifests(""),


rule scores:
    input:
        PLAN.scores(""),
        PLAN.intermediate(""),


rule tables:
    input:
        SHOWN.tables(""),
        PLAN.intermediate(""),


rule figures:
    input:
        SHOWN.figures(""),
        PLAN.intermediate(""),


# The named studies (config/studies/*.yaml): `snakemake ablations`, `snakemake batching` ...
for study in SHOWN.named_studies:

    rule:
        name:
            study
        input:
            given(partial(SHOWN.targets_of, study)),
