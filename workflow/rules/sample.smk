# Responses of every checkpoint to every benchmark.


def evaluated_manifest(wildcards):
    """The manifest of the checkpoint that a run evaluates."""
    return STUDY.checkpoint_manifest(wildcards.run)


def evaluated_directory(wildcards):
    """The directory of that checkpoint's artifact."""
    return str(Path(STUDY.checkpoint_manifest(wildcards.run)).parent)


def benchmark_prompt(wildcards):
    """A benchmark's prompt template."""
    return STUDY.benchmarks[wildcards.benchmark]["prompt"]


rule sample:
    input:
        checkpoint=evaluated_manifest,
        problems="results/problems/{benchmark}/manifest.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
    output:
        samples="results/samples/{run}/{benchmark}/samples.jsonl",
        manifest="results/samples/{run}/{benchmark}/manifest.json",
    params:
        source=evaluated_directory,
        prompt=benchmark_prompt,
        evaluation=STUDY.config["evaluation"],
        version=SAMPLER_VERSION,
    log:
        "results/logs/sample/{run}/{benchmark}.log",
    benchmark:
        "results/costs/sample/{run}/{benchmark}.tsv"
    threads: EXECUTION["sampling_threads"]
    priority: 20
    shell:
        "python -m evals.generation sample --source {params.source:q} --problems results/problems/{wildcards.benchmark}"
        " --prompt {params.prompt:q} --samples-per-problem {params.evaluation[samples_per_problem]}"
        " --max-new-tokens {params.evaluation[max_new_tokens]} --temperature {params.evaluation[temperature]}"
        " --top-p {params.evaluation[top_p]} --batch-size {params.evaluation[sampling_batch_size]}"
        f" --seed {{params.evaluation[seed]}} --threads {EXECUTION['sampling_threads']} --device {EXECUTION['device']}"
        " --out results/samples/{wildcards.run}/{wildcards.benchmark} > {log:q} 2>&1"
