"""What is asked for by name: the study and its parts, and the studies of config/studies beside it."""

from rlvr.study.rule_values import name_targets
from rlvr.study.studies import asked_names


def everything(folder):
    """Every file of a folder: what is made up to its comparisons, and what people look at."""
    parts = [folder]
    parts += [f"{folder}steps/"] * (study_of(folder).config.score_at is not None)
    parts += [f"{folder}best/"] * bool(BEST_CHOICE)
    files = [file for part in parts for file in made(part)]
    study = [] if design(folder) else [f"results/{folder}study.json"]
    return [*files, *study, *(file for drawn in drawn_files(folder) for file in drawn), *pages_of(folder)]


OWN = STUDY.folder


rule runs:
    """All runs of the study."""
    input:
        lambda w: [f"results/runs/{row.run}/manifest.json" for row in compared(OWN) if row.seed is not None],


rule scores:
    """The scores of the study."""
    input:
        lambda w: [file for file in made(OWN) if not file.endswith("comparisons.json")],


rule tables:
    """The tables of the study."""
    input:
        lambda w: [*made(OWN), *drawn_files(OWN)[0]],


rule figures:
    """The figures of the study."""
    input:
        lambda w: [*made(OWN), *drawn_files(OWN)[1]],


def of_study(name):
    """Make the input function of a study of config/studies, with the one that it is made together with."""

    def files(wildcards):
        with one_line_errors():
            folders = STUDIES.together(STUDIES.folder_of(name))
        return [file for folder in folders for file in everything(folder)]

    return files


# A name for each file of config/studies: this is the one loop, and it makes targets alone.
for name in asked_names():

    rule:
        """A study of config/studies beside the one at hand: the file of its name says what it asks."""
        name:
            name
        input:
            of_study(name),


name_targets(workflow.rules, logger)
