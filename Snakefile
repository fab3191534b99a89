# The only entry: `snakemake` runs the study of config/config.yaml, `snakemake --configfile FILE` another one.
from functools import partial

from snakemake.utils import min_version

from rlvr.study.cost import print_cost, print_warnings
from rlvr.study.displayed import FIGURES, TABLES, Displayed, page_templates
from rlvr.study.launch import end_jobs_on_termination, lift_job_rate, measure_inputs_once
from rlvr.study.plan import Plan
from rlvr.study.rules import given, one_line_errors, name_targets, pattern, set_job_environment
from rlvr.study.sampled import SamplingJobs
from rlvr.study.software import complete
from rlvr.study.source_files import REPOSITORY, as_input, code_of
from rlvr.study.studies import named_study_files
from rlvr.study.study import TRAIN, VALIDATION
from rlvr.study.study_file import read_study
from rlvr.study.trained import TrainingJobs

min_version("9.25")

# A study given by --configfile is complete in itself: merging it into the default would add the default's methods to it.
FILES = workflow.configfiles or [f"{workflow.basedir}/config/config.yaml"]
with one_line_errors():
    STUDY = read_study(FILES, workflow.config_settings.config)
    PLAN = Plan.read(STUDY, ", ".join(str(path).removeprefix(f"{REPOSITORY}/") for path in FILES))
if not workflow.configfiles:

    configfile: FILES[0]


TRAINING, SAMPLING, SHOWN = TrainingJobs(PLAN), SamplingJobs(PLAN), Displayed(PLAN)
set_job_environment()
shell.prefix("set -euo pipefail; exec ")  # a job is its shell's process: neither outlives the other
if workflow.is_main_process:
    print_cost(PLAN.study)
    print_warnings(PLAN.study)


onstart:
    lift_job_rate(workflow)
    measure_inputs_once(workflow)
    end_jobs_on_termination(workflow)  # Snakemake has set its own way of ending by now, which this one calls
    PLAN.register()


report: "workflow/report/study.rst"


wildcard_constraints:
    run=pattern(PLAN.runs),
    folder=f"(?:{'|'.join(PLAN.folders)})",
    benchmark=pattern(PLAN.study.benchmarks),
    model=pattern(PLAN.study.config.models),


# Here, because Snakemake takes no default target from a file that is included.
rule all:
    default_target: True
    input:
        SHOWN.files(""),
        PLAN.intermediate(""),


include: "workflow/rules/targets.smk"
include: "workflow/rules/problems.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/decoding.smk"
include: "workflow/rules/diagnose.smk"


with one_line_errors():
    complete(workflow, [TRAINED_IN, SAMPLED_IN])
name_targets(workflow.rules, logger)
