# The only entry: `snakemake` runs the study of config/config.yaml, `snakemake --configfile FILE` another one.
# Stages are declared in rlvr/stages and planned in rlvr/study; here is one rule for each kind of stage.
from snakemake.utils import min_version

from rlvr.study.jobs import RESOURCES, given, name_targets, one_line_errors, set_job_environment
from rlvr.study.launch import end_jobs_on_termination, lift_job_rate
from rlvr.study.looks import announce_look
from rlvr.study.notices import print_notices
from rlvr.study.plan import Plan
from rlvr.study.records import checked_inputs
from rlvr.study.software import complete, software
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study_file import read_extended, read_study
from rlvr.study.targets import Targets

min_version("9.25")

# A study given by --configfile is complete in itself: merging it into the default would add the default's methods to it.
FILES = workflow.configfiles or [f"{workflow.basedir}/config/config.yaml"]


def plan_anew():
    """Plan by the decisions of a look that was taken just now."""
    plan = Plan.read(STUDY, SOURCE, EXTENDED)
    announce_look(plan.in_folder(plan.study.folder), plan.studies.looks, logger)
    return plan


with one_line_errors():
    STUDY = read_study(FILES, workflow.config_settings.config)
    SOURCE = ", ".join(str(path).removeprefix(f"{REPOSITORY}/") for path in FILES)
    EXTENDED = read_extended(FILES, workflow.config_settings.config)
    PLAN = Plan.read(STUDY, SOURCE, EXTENDED)
    TARGETS = Targets(PLAN, plan_anew)
    JOBS = TARGETS.jobs
    INPUTS = checked_inputs(PLAN, workflow)
    SOFTWARE = {name: software(PLAN, name) for name in ("", "training", "sampling")}
    if workflow.is_main_process:
        JOBS.require_past()
if not workflow.configfiles:

    configfile: FILES[0]


set_job_environment()
shell.prefix("set -euo pipefail; exec ")  # a job is its shell's process: neither outlives the other
if workflow.is_main_process:
    print_notices(PLAN.in_folder(PLAN.study.folder), PLAN.studies.looks)


onstart:
    lift_job_rate(workflow)
    end_jobs_on_termination(workflow)  # Snakemake has set its own way of ending by now, which this one calls
    JOBS.start()
    PLAN.register()


report: "workflow/report/study.rst"


for target, files in TARGETS.by_name.items():

    rule:
        name:
            target
        default_target: target == "all"
        input:
            given(TARGETS.after_looks(target, lambda folder: checkpoints.look.get(folder=folder), files)),


# What decides which trainings are left: Snakemake plans anew when it is made.
for KIND in JOBS.deciding:

    checkpoint:
        name:
            KIND.name
        input:
            KIND.of(INPUTS),
        output:
            KIND.outputs(report, directory),
        log:
            KIND.log,
        wildcard_constraints:
            **KIND.wildcards,
        params:
            **KIND.params(),
        shell:
            "python -m rlvr stage {params.job:q} > {log:q} 2>&1"


# What is not measured: it takes seconds, and runs where Snakemake does.
for KIND in JOBS.measured(False):

    rule:
        name:
            KIND.name
        input:
            KIND.of(INPUTS),
        output:
            KIND.outputs(report, directory),
        log:
            KIND.log,
        wildcard_constraints:
            **KIND.wildcards,
        priority: KIND.of(lambda stage: stage.priority)
        localrule: KIND.any.is_local
        threads: KIND.of(lambda stage: stage.threads(PLAN.execution))
        params:
            **KIND.params(),
        shell:
            "python -m rlvr stage {params.job:q} > {log:q} 2>&1"


# What computes: its cost is measured, and it may need devices and an environment of its own.
for KIND in JOBS.measured(True):

    rule:
        name:
            KIND.name
        input:
            KIND.of(INPUTS),
        output:
            KIND.outputs(report, directory),
        log:
            KIND.log,
        benchmark:
            KIND.any.cost
        wildcard_constraints:
            **KIND.wildcards,
        priority: KIND.of(lambda stage: stage.priority)
        conda:
            SOFTWARE[KIND.any.environment].conda
        container:
            SOFTWARE[KIND.any.environment].container
        threads: KIND.of(lambda stage: stage.threads(PLAN.execution))
        resources:
            **{name: KIND.resource(name) for name in RESOURCES},
            python=SOFTWARE[KIND.any.environment].python,
        params:
            **KIND.params(),
        shell:
            "{resources.python} -m rlvr stage {params.job:q} > {log:q} 2>&1"


with one_line_errors():
    complete(workflow, list(SOFTWARE.values()))
name_targets(workflow.rules, logger)
