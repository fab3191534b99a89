# What is asked for by name: `snakemake scores`, `snakemake ablations` ...
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


# The named studies (config/studies/*.yaml), those too that do not go with the main study: they say why.
for study in named_study_files():

    rule:
        name:
            study
        input:
            given(partial(SHOWN.targets_of, study)),
