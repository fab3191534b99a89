"""What is asked for by name: the study and its parts, and the studies of config/studies beside it."""


rule runs:
    """All runs of the study."""
    input:
        lambda w: [f"results/runs/{run}/manifest.json" for run in trained(OWN)],


rule scores:
    """The scores of the study."""
    input:
        lambda w: [file for file in made(OWN) if not file.endswith("comparisons.json")],


rule tables:
    """The tables of the study."""
    input:
        lambda w: [*made(OWN), *table_files(OWN)],


rule phenomena:
    """Which known effects of RLVR the study shows."""
    input:
        lambda w: [*made(OWN), f"results/{OWN}tables/phenomena.md"],


rule figures:
    """The figures of the study."""
    input:
        lambda w: [*made(OWN), *figure_files(OWN)],


# A name for each file of config/studies: this is the one loop, and it makes targets alone.
for name in asked_names():

    rule:
        """A study of config/studies beside the one at hand: the file of its name says what it asks."""
        name:
            name
        input:
            of_study(name),


machine.name_environments(workflow.rules)
name_targets(workflow.rules, logger)
