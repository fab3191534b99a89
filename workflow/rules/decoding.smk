# Decoding with two models, beside the study at hand: `snakemake decoding`.
wildcard_constraints:
    decoded="|".join(DECODED.decoded) or NONE,


rule decoding:
    input:
        decoding_results,


rule decoding_problems:
    input:
        scored=expand("results/problems/{benchmark}/problems.jsonl", benchmark=GENERATED),
    output:
        "results/decoding/problems/problems.jsonl",
        "results/decoding/problems/manifest.json",
    log:
        "results/logs/decoding/problems.log",
    params:
        kinds=decoding_kinds,
        problems=DECODED.settings.problems.count,
        seed=DECODED.settings.problems.seed,
    shell:
        "python -m rlvr stage draw-problems --name decoding --split evaluation --kinds {params.kinds:q}"
        " --count {params.problems} --seed {params.seed} --without {input.scored:q}"
        " --out results/decoding/problems > {log:q} 2>&1"


# Neither trained on nor scored.
rule decoding_disjoint:
    input:
        problems="results/decoding/problems/manifest.json",
        others=[
            *(["results/problems/train/problems.jsonl"] if STUDY.methods else []),
            *expand("results/base/{model}/corpus.jsonl", model=SCRATCH),
            *expand("results/problems/{benchmark}/problems.jsonl", benchmark=GENERATED),
        ],
    output:
        "results/decoding/problems/disjoint.json",
    log:
        "results/logs/decoding/disjoint.log",
    shell:
        "python -m rlvr stage check-disjoint --benchmark results/decoding/problems"
        " --trained-on {input.others:q} --out {output:q} > {log:q} 2>&1"


rule decoding_sweep:
    input:
        models=pair_of_sweep,
        problems="results/decoding/problems/manifest.json",
        disjoint="results/decoding/problems/disjoint.json",
    output:
        "results/decoding/sweeps/{run}/sweep.json",
        "results/decoding/sweeps/{run}/manifest.json",
    log:
        "results/logs/decoding/sweeps/{run}.log",
    benchmark:
        "results/costs/decoding/{run}.tsv"
    threads: EXECUTION["sampling_threads"]
    params:
        options=sweep_options,
        versions=[SAMPLER_VERSION, GRADER_VERSION, DECODING_VERSION],
    shell:
        "python -m rlvr decode sweep {params.options:q} --problems results/decoding/problems"
        " --out results/decoding/sweeps/{wildcards.run} > {log:q} 2>&1"


rule decoding_choose:
    input:
        SWEEPS,
    output:
        "results/decoding/chosen.json",
        "results/decoding/chosen.manifest.json",
    log:
        "results/logs/decoding/choose.log",
    params:
        version=DECODING_VERSION,
    shell:
        "python -m rlvr decode choose --sweeps {input:q} --out results/decoding/chosen.json > {log:q} 2>&1"


rule decoding_sample:
    input:
        models=pair_of_decoded,
        chosen="results/decoding/chosen.json",
        problems="results/problems/{benchmark}/manifest.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
    output:
        "results/decoding/samples/{decoded}/{benchmark}/samples.jsonl",
        "results/decoding/samples/{decoded}/{benchmark}/manifest.json",
    log:
        "results/logs/decoding/sample/{decoded}/{benchmark}.log",
    threads: EXECUTION["sampling_threads"]
    params:
        options=decoded_options,
        versions=[SAMPLER_VERSION, DECODING_VERSION],
    shell:
        "python -m rlvr decode sample {params.options:q} --problems results/problems/{wildcards.benchmark}"
        " --chosen {input.chosen:q} --out results/decoding/samples/{wildcards.decoded}/{wildcards.benchmark}"
        " > {log:q} 2>&1"


rule decoding_grade:
    input:
        samples="results/decoding/samples/{decoded}/{benchmark}/samples.jsonl",
        problems="results/problems/{benchmark}/problems.jsonl",
    output:
        "results/decoding/grades/{decoded}/{benchmark}/grades.jsonl",
        "results/decoding/grades/{decoded}/{benchmark}/manifest.json",
    log:
        "results/logs/decoding/grade/{decoded}/{benchmark}.log",
    params:
        version=GRADER_VERSION,
        kind=grading_kind,
    shell:
        "python -m rlvr stage grade --samples {input.samples:q} --problems {input.problems:q}"
        " --kind {params.kind} --out results/decoding/grades/{wildcards.decoded}/{wildcards.benchmark}"
        f" --workers {EXECUTION['grading_workers']} > {{log:q}} 2>&1"


rule decoding_runs:
    output:
        "results/decoding/runs.json",
    log:
        "results/logs/decoding/runs.log",
    localrule: True
    params:
        sheet=decoding_run_sheet,
    shell:
        "printf '%s' {params.sheet:q} > {output:q} 2> {log:q}"


rule decoding_score:
    input:
        manifests=decoding_grade_manifests,
        runs="results/decoding/runs.json",
        code=modules("evals.statistics", "evals.scores"),
    output:
        scores="results/decoding/scores/{benchmark}.json",
        manifest="results/decoding/scores/{benchmark}.manifest.json",
    log:
        "results/logs/decoding/score/{benchmark}.log",
    params:
        directories=decoding_grades,
    shell:
        "python -m rlvr stage score --benchmark {wildcards.benchmark} --grades {params.directories:q}"
        " --runs {input.runs:q} --out {output.scores:q} > {log:q} 2>&1"


# The same policies stand on both sides of a comparison: it is about these checkpoints, not about other training seeds.
rule decoding_compare:
    input:
        scores=DECODING_SCORES,
        code=modules("evals.statistics", "evals.scores"),
    output:
        comparisons="results/decoding/comparisons.json",
        manifest="results/decoding/comparisons.manifest.json",
    log:
        "results/logs/decoding/compare.log",
    params:
        statistics=dict(sorted(STUDY.config.statistics.to_json().items())),
        reference=STUDY.config.reference_method,
    shell:
        "python -m rlvr stage compare --scores {input.scores:q} --reference-method {params.reference}"
        " --claim checkpoints --seed {params.statistics[seed]} --resamples {params.statistics[resamples]}"
        " --permutations {params.statistics[permutations]} --out {output.comparisons:q} > {log:q} 2>&1"


rule table_decoding:
    input:
        scores=DECODING_SCORES,
        comparisons="results/decoding/comparisons.json",
        runs="results/decoding/runs.json",
        chosen="results/decoding/chosen.json",
        code=modules("evals.decoding.table", "evals.decoding", "evals.tables", "evals.results", "evals.statistics"),
    output:
        report("results/decoding/tables/decoding.md", caption="../report/decoding_table.rst", category="Decoding"),
        multiext("results/decoding/tables/decoding", ".csv", ".manifest.json"),
    log:
        "results/logs/decoding/table.log",
    params:
        notes=[DECODING_NOTE, NOTE],
    shell:
        "python -m rlvr stage table decoding --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --chosen {input.chosen:q} --samples results/decoding/samples --note {params.notes:q}"
        " --out results/decoding/tables/decoding > {log:q} 2>&1"


rule figure_decoding:
    input:
        sweeps=SWEEPS,
        code=modules(
            "evals.decoding.figure",
            "evals.decoding",
            "evals.figures",
            "evals.tables",
            "evals.results",
            "evals.statistics",
        ),
    output:
        report(
            "results/decoding/figures/replaced_tokens.png",
            caption="../report/replaced_tokens.rst",
            category="Decoding",
        ),
        multiext("results/decoding/figures/replaced_tokens", ".svg", ".manifest.json"),
    log:
        "results/logs/decoding/figure.log",
    shell:
        "python -m rlvr stage figure replaced_tokens --sweeps {input.sweeps:q} --out results/decoding/figures/replaced_tokens"
        " > {log:q} 2>&1"


rule page_decoding:
    input:
        scores=DECODING_SCORES,
        comparisons="results/decoding/comparisons.json",
        runs="results/decoding/runs.json",
        chosen="results/decoding/chosen.json",
        figure="results/decoding/figures/replaced_tokens.svg",
        code=modules(
            "rlvr.report.pages",
            "rlvr.report.html",
            "rlvr.page_template",
            "rlvr.diagnostics.claims.findings",
            "rlvr.diagnostics.claims.results",
            "evals.decoding",
            "evals.tables",
            "evals.results",
            "evals.statistics",
        ),
        template=PAGE_TEMPLATES,
    output:
        page=report("results/decoding.html", caption="../report/decoding_table.rst", category="Study"),
        manifest="results/decoding.manifest.json",
    log:
        "results/logs/decoding/page.log",
    params:
        notes=[DECODING_NOTE, NOTE],
    shell:
        "python -m rlvr stage page decoding --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --chosen {input.chosen:q} --samples results/decoding/samples --figure {input.figure:q}"
        " --note {params.notes:q} --out {output.page:q} > {log:q} 2>&1"


rule track_decoding:
    input:
        page="results/decoding.html",
        note="results/decoding/tables/decoding.md",
        table="results/decoding/tables/decoding.csv",
        figure="results/decoding/figures/replaced_tokens.png",
        code=modules(
            "rlvr.report.mlflow",
            "rlvr.report.provenance",
            "rlvr.runs.progress",
            "evals.results",
            "evals.statistics",
        ),
    output:
        "results/decoding.tracking.json",
    log:
        "results/logs/decoding/track.log",
    params:
        study=STUDY.config.study,
    shell:
        "python -m rlvr stage track-extra --study {params.study} --name decoding --title 'decoding with two models'"
        " --note {input.note:q} --files {input.page:q} {input.note:q} {input.table:q} {input.figure:q}"
        " --database results/mlflow.db --artifacts results/mlflow-artifacts --out {output:q} > {log:q} 2>&1"
