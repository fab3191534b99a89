# Decoding with two models, beside the main study: `snakemake decoding`.
from evals.decoding import VERSION as DECODING_VERSION
from evals.grading import VERSION as GRADER_VERSION
from rlvr.study.decoding import DecodingJobs

with one_line_errors():
    DECODING = DecodingJobs(PLAN)


wildcard_constraints:
    decoded=pattern(DECODING.decoded),


rule decoding:
    input:
        given(DECODING.targets),


if DECODING.taken is None:

    rule decoding_problems:
        input:
            scored=expand("results/problems/{benchmark}/problems.jsonl", benchmark=PLAN.generated),
        output:
            "results/decoding/problems/problems.jsonl",
            "results/decoding/problems/manifest.json",
        log:
            "results/logs/decoding/problems.log",
        params:
            kinds=given(DECODING.kinds),
            problems=DECODING.settings.problems.count,
            seed=DECODING.settings.problems.seed,
        shell:
            "python -m rlvr stage draw-problems --name decoding --split evaluation --kinds {params.kinds:q}"
            " --count {params.problems} --seed {params.seed} --without {input.scored:q}"
            " --out results/decoding/problems > {log:q} 2>&1"

else:

    rule decoding_problems:
        input:
            f"results/problems/{DECODING.taken.benchmark}/manifest.json",
        output:
            "results/decoding/problems/problems.jsonl",
            "results/decoding/problems/manifest.json",
        log:
            "results/logs/decoding/problems.log",
        params:
            first=f"--count {DECODING.taken.count}" if DECODING.taken.count else "",
        shell:
            "python -m rlvr stage take-problems --benchmark $(dirname {input:q}) {params.first}"
            " --out results/decoding/problems > {log:q} 2>&1"


# Neither trained on nor scored.
rule decoding_disjoint:
    input:
        problems="results/decoding/problems/manifest.json",
        others=DECODING.trained_on_or_reported,
    output:
        "results/decoding/problems/disjoint.json",
    log:
        "results/logs/decoding/disjoint.log",
    shell:
        "python -m rlvr stage check-disjoint --benchmark results/decoding/problems"
        " --trained-on {input.others:q} --out {output:q} > {log:q} 2>&1"


rule decoding_sweep:
    input:
        models=given(DECODING.pair),
        problems="results/decoding/problems/manifest.json",
        disjoint="results/decoding/problems/disjoint.json",
    output:
        "results/decoding/sweeps/{run}/sweep.json",
        "results/decoding/sweeps/{run}/manifest.json",
    log:
        "results/logs/decoding/sweeps/{run}.log",
    benchmark:
        "results/costs/decoding/{run}.tsv"
    threads: PLAN.execution["sampling_threads"]
    params:
        options=given(DECODING.sweep_options),
        versions=[SAMPLER_VERSION, GRADER_VERSION, DECODING_VERSION],
    shell:
        "python -m rlvr decode sweep {params.options:q} --problems results/decoding/problems"
        " --out results/decoding/sweeps/{wildcards.run} > {log:q} 2>&1"


rule decoding_choose:
    input:
        DECODING.sweeps,
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
        models=given(DECODING.pair_of_decoded),
        chosen="results/decoding/chosen.json",
        problems="results/problems/{benchmark}/manifest.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
    output:
        samples="results/decoding/samples/{decoded}/{benchmark}/samples.jsonl",
        manifest="results/decoding/samples/{decoded}/{benchmark}/manifest.json",
    log:
        "results/logs/decoding/sample/{decoded}/{benchmark}.log",
    priority: given(SAMPLING.sampling_priority)
    threads: PLAN.execution["sampling_threads"]
    resources:
        others=given(DECODING.other_benchmarks),
    params:
        options=given(DECODING.sampling_options),
        versions=[SAMPLER_VERSION, DECODING_VERSION],
    shell:
        "python -m rlvr decode sample {params.options:q} --problems results/problems/{wildcards.benchmark}"
        " --chosen {input.chosen:q} --others {resources.others:q} --out $(dirname {output.samples:q}) > {log:q} 2>&1"


use rule grade as decoding_grade with:
    input:
        samples="results/decoding/samples/{decoded}/{benchmark}/samples.jsonl",
        problems="results/problems/{benchmark}/problems.jsonl",
        verifier=given(PLAN.verifier),
    output:
        grades="results/decoding/grades/{decoded}/{benchmark}/grades.jsonl",
        manifest="results/decoding/grades/{decoded}/{benchmark}/manifest.json",
    log:
        "results/logs/decoding/grade/{decoded}/{benchmark}.log",
    benchmark:
        "results/costs/decoding/grade/{decoded}/{benchmark}.tsv"


use rule run_sheet as decoding_runs with:
    output:
        "results/decoding/runs.json",
    log:
        "results/logs/decoding/runs.log",
    params:
        sheet=given(DECODING.run_sheet),


use rule score as decoding_score with:
    input:
        manifests=given(DECODING.grade_manifests),
        runs="results/decoding/runs.json",
        code=code_of("evals.scores.score"),
    output:
        scores="results/decoding/scores/{benchmark}.json",
        manifest="results/decoding/scores/{benchmark}.manifest.json",
    log:
        "results/logs/decoding/score/{benchmark}.log",
    params:
        directories=given(DECODING.grades),


# The same policies stand on both sides of a comparison: it is about these checkpoints, not about other training seeds.
rule decoding_compare:
    input:
        scores=DECODING.scores,
        code=code_of("evals.scores.comparison"),
    output:
        comparisons="results/decoding/comparisons.json",
        manifest="results/decoding/comparisons.manifest.json",
    log:
        "results/logs/decoding/compare.log",
    params:
        statistics=PLAN.statistics,
        reference=PLAN.reference_method(""),
    shell:
        "python -m rlvr stage compare --scores {input.scores:q} --reference-method {params.reference}"
        " --claim checkpoints --seed {params.statistics[seed]} --resamples {params.statistics[resamples]}"
        " --permutations {params.statistics[permutations]} --out {output.comparisons:q} > {log:q} 2>&1"


rule table_decoding:
    input:
        scores=DECODING.scores,
        comparisons="results/decoding/comparisons.json",
        runs="results/decoding/runs.json",
        chosen="results/decoding/chosen.json",
        code=code_of("evals.decoding.table"),
    output:
        report("results/decoding/tables/decoding.md", caption="../report/decoding_table.rst", category="Decoding"),
        multiext("results/decoding/tables/decoding", ".csv", ".manifest.json"),
    log:
        "results/logs/decoding/table.log",
    params:
        notes=[DECODING.note, SHOWN.evidence],
    shell:
        "python -m rlvr stage table decoding --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --chosen {input.chosen:q} --samples results/decoding/samples --note {params.notes:q}"
        " --out results/decoding/tables/decoding > {log:q} 2>&1"


rule figure_decoding:
    input:
        sweeps=DECODING.sweeps,
        code=code_of("evals.decoding.figure"),
    output:
        report(
            "results/decoding/figures/replaced_tokens.png",
            caption="../report/replaced_tokens.rst",
            category="Decoding",
        ),
        multiext("results/decoding/figures/replaced_tokens", ".svg", ".pdf", ".manifest.json"),
    log:
        "results/logs/decoding/figure.log",
    shell:
        "python -m rlvr stage figure replaced_tokens --sweeps {input.sweeps:q}"
        " --out results/decoding/figures/replaced_tokens > {log:q} 2>&1"


rule page_decoding:
    input:
        scores=DECODING.scores,
        comparisons="results/decoding/comparisons.json",
        runs="results/decoding/runs.json",
        chosen="results/decoding/chosen.json",
        figure="results/decoding/figures/replaced_tokens.svg",
        code=code_of("rlvr.report.pages"),
        template=page_templates("sections.html.jinja"),
    output:
        page=report("results/decoding.html", caption="../report/decoding_table.rst", category="Study"),
        manifest="results/decoding.manifest.json",
    log:
        "results/logs/decoding/page.log",
    params:
        notes=[DECODING.note, SHOWN.evidence],
    shell:
        "python -m rlvr stage page decoding --scores {input.scores:q} --comparisons {input.comparisons:q}"
        " --runs {input.runs:q} --chosen {input.chosen:q} --samples results/decoding/samples --figure {input.figure:q}"
        " --note {params.notes:q} --out {output.page:q} > {log:q} 2>&1"
