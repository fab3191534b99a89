# Responses of every checkpoint to every benchmark, a verdict on every response, scores, an audit beside each score, and
# comparisons. Finished batches lie in state/ beside the samples, because Snakemake deletes what it declares.
from evals.generation import VERSION as SAMPLER_VERSION
from rlvr.study.software import sampling_software

SAMPLED_IN = sampling_software(PLAN)

with one_line_errors():
    SAMPLE = (
        f"{SAMPLING.sampling_command} --source {{params.source:q}} --problems results/problems/{{wildcards.benchmark}}"
        " --prompt {params.prompt:q} {params.options:q} --out results/samples/{wildcards.run}/{wildcards.benchmark}"
        " --others {resources.others:q}"
    )


rule sample_split:
    input:
        checkpoint=given(PLAN.checkpoint_manifest),
        problems="results/problems/{benchmark}/manifest.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
    output:
        touch("results/samples/{run}/{benchmark}/splits/{part}-of-{parts}"),
    log:
        "results/logs/sample/{run}/{benchmark}.{part}-of-{parts}.log",
    wildcard_constraints:
        part=r"\d+",
        parts=r"\d+",
    priority: given(SAMPLING.sampling_priority)
    conda:
        SAMPLED_IN.conda
    container:
        SAMPLED_IN.container
    threads: PLAN.execution["sampling_threads"]
    resources:
        gpu=SAMPLING.sampling_gpus,
        others=given(SAMPLING.other_benchmarks),
    params:
        source=given(PLAN.checkpoint),
        prompt=given(SAMPLING.prompt),
        evaluation=given(SAMPLING.evaluation),
        options=given(SAMPLING.sampling_options),
        version=SAMPLER_VERSION,
    shell:
        f"{SAMPLE} --splits {{wildcards.parts}} --split {{wildcards.part}} > {{log:q}} 2>&1"


rule sample:
    input:
        checkpoint=given(PLAN.checkpoint_manifest),
        problems="results/problems/{benchmark}/manifest.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
        parts=given(SAMPLING.sample_parts),
    output:
        samples="results/samples/{run}/{benchmark}/samples.jsonl",
        manifest="results/samples/{run}/{benchmark}/manifest.json",
    log:
        "results/logs/sample/{run}/{benchmark}.log",
    benchmark:
        "results/costs/sample/{run}/{benchmark}.tsv"
    priority: given(SAMPLING.sampling_priority)
    conda:
        SAMPLED_IN.conda
    container:
        SAMPLED_IN.container
    threads: PLAN.execution["sampling_threads"]
    resources:
        gpu=SAMPLING.sampling_gpus,
        others=given(SAMPLING.other_benchmarks),
    params:
        source=given(PLAN.checkpoint),
        prompt=given(SAMPLING.prompt),
        evaluation=given(SAMPLING.evaluation),
        options=given(SAMPLING.sampling_options),
        version=SAMPLER_VERSION,
    shell:
        f"{SAMPLE} > {{log:q}} 2>&1"


rule grade:
    input:
        samples="results/samples/{run}/{benchmark}/samples.jsonl",
        manifest="results/samples/{run}/{benchmark}/manifest.json",
        problems="results/problems/{benchmark}/problems.jsonl",
        verifier=given(PLAN.verifier),
    output:
        grades="results/grades/{run}/{benchmark}/grades.jsonl",
        manifest="results/grades/{run}/{benchmark}/manifest.json",
    log:
        "results/logs/grade/{run}/{benchmark}.log",
    benchmark:
        "results/costs/grade/{run}/{benchmark}.tsv"
    priority: 30
    threads: 1
    params:
        version=given(SAMPLING.grader_version),
        kind=given(SAMPLING.grading_kind),
    shell:
        "python -m rlvr stage grade --samples {input.samples:q} --problems {input.problems:q} --kind {params.kind}"
        " --verifier {input.verifier}"
        f" --workers {PLAN.execution['grading_workers']} --out $(dirname {{output.grades:q}}) > {{log:q}} 2>&1"


rule score:
    input:
        manifests=given(PLAN.grade_manifests),
        runs="results/{folder}runs.json",
        code=code_of("evals.scores.score"),
    output:
        scores="results/{folder}scores/{benchmark}.json",
        manifest="results/{folder}scores/{benchmark}.manifest.json",
    log:
        "results/logs/{folder}score/{benchmark}.log",
    params:
        directories=given(PLAN.grades),
    shell:
        "python -m rlvr stage score --benchmark {wildcards.benchmark} --grades {params.directories:q}"
        " --runs {input.runs:q} --out {output.scores:q} > {log:q} 2>&1"


rule audit:
    input:
        grades=given(PLAN.grade_manifests),
        samples=given(PLAN.sample_manifests),
        problems="results/problems/{benchmark}/problems.jsonl",
        code=code_of("evals.audit.run"),
    output:
        audit="results/{folder}audits/{benchmark}.json",
        manifest="results/{folder}audits/{benchmark}.manifest.json",
    log:
        "results/logs/{folder}audit/{benchmark}.log",
    threads: PLAN.execution["grading_workers"]
    params:
        grades=given(PLAN.grades),
        samples=given(PLAN.samples),
    shell:
        "python -m rlvr stage audit --benchmark {wildcards.benchmark} --grades {params.grades:q}"
        " --samples {params.samples:q} --problems {input.problems:q}"
        f" --workers {PLAN.execution['grading_workers']} --out {{output.audit:q}} > {{log:q}} 2>&1"


rule compare:
    input:
        scores=given(PLAN.scores),
        metrics=given(PLAN.metrics),
        code=code_of("evals.scores.comparison"),
    output:
        comparisons="results/{folder}comparisons.json",
        manifest="results/{folder}comparisons.manifest.json",
    log:
        "results/logs/{folder}compare.log",
    params:
        statistics=PLAN.statistics,
        reference=given(PLAN.reference_method),
        options=given(PLAN.comparison_options),
    shell:
        "python -m rlvr stage compare --scores {input.scores:q} --reference-method {params.reference}"
        " --seed {params.statistics[seed]} --resamples {params.statistics[resamples]}"
        " --permutations {params.statistics[permutations]} {params.options:q} --training results/runs"
        " --out {output.comparisons:q} > {log:q} 2>&1"
