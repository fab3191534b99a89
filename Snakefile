# The entry: `snakemake` runs the study of config/config.yaml, `snakemake --configfile FILE` another one.
from snakemake.utils import min_version

from rlvr.study.rule_values import one_line_errors
from rlvr.study.studies import Studies

min_version("9.25")

# A study given by --configfile is complete in itself: merging it into the default would add the default's methods to it.
FILES = workflow.configfiles or [f"{workflow.basedir}/config/config.yaml"]
with one_line_errors():
    STUDIES = Studies.read(FILES, workflow.config_settings.config)
if not workflow.configfiles:

    configfile: FILES[0]


report: "workflow/report/study.rst"


include: "workflow/rules/common.smk"
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
