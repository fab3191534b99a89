# The entry: `snakemake` runs the study of config/config.yaml, `snakemake --configfile FILE` another one.
from snakemake.utils import min_version

from rlvr.study.rule_values import one_line_errors
from rlvr.study.studies import DEFAULT_STUDY, Studies

min_version("9.27.1")  # as pyproject.toml, which has an upper bound too: docs/architecture.md says why

IN_JOB = not workflow.is_main_process  # which has checked the study

# A study given by --configfile is complete in itself: merging it into the default would add the default's methods to it.
# Another workflow that uses this one as a module gives the study whole by `config:`, or its file: {"study_file": FILE}.
with one_line_errors():
    if "study_file" in config:
        STUDIES = Studies.read([config["study_file"]], {}, IN_JOB)
    elif config and not workflow.configfiles and dict(config) != workflow.config_settings.config:
        # More than what `--config` changes of the default study.
        STUDIES = Studies(config, "config", is_checked=IN_JOB)
    else:
        changes = workflow.config_settings.config
        STUDIES = Studies.read(workflow.configfiles or [DEFAULT_STUDY], changes, IN_JOB)


report: "workflow/report/study.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/inputs.smk"
include: "workflow/rules/problems.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/show.smk"
include: "workflow/rules/studies.smk"


rule all:
    """The whole study: its report, and every file on the way to it."""
    default_target: True
    input:
        lambda wildcards: everything(STUDY.folder),
