# Small files that say what is asked for: the whole configuration, and the sheet of its runs.
rule study_file:
    output:
        "results/{scope}study.json",
    log:
        "results/logs/{scope}study.log",
    priority: 200  # by them MLflow knows the trainings that are under way
    localrule: True
    params:
        study=study_json,
    shell:
        "printf '%s' {params.study:q} > {output:q} 2> {log:q}"


rule run_sheet:
    output:
        "results/{scope}runs.json",
    log:
        "results/logs/{scope}runs.log",
    priority: 200  # by them MLflow knows the trainings that are under way
    localrule: True
    params:
        sheet=run_sheet_json,
    shell:
        "printf '%s' {params.sheet:q} > {output:q} 2> {log:q}"
