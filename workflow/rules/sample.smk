# Responses of every checkpoint to every benchmark.


rule sample:
    input:
        checkpoint=evaluated_manifest,
        problems="results/problems/{benchmark}/manifest.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
    output:
        samples="results/samples/{run}/{benchmark}/samples.jsonl",
        manifest="results/samples/{run}/{benchmark}/manifest.json",
    log:
        "results/logs/sample/{run}/{benchmark}.log",
    benchmark:
        "results/costs/sample/{run}/{benchmark}.tsv"
    priority: 20
    threads: EXECUTION["sampling_threads"]
    params:
        source=evaluated_directory,
        prompt=benchmark_prompt,
        evaluation=dict(sorted(STUDY.config["evaluation"].items())),
        version=SAMPLER_VERSION,
    shell:
        "python -m evals.generation sample --source {params.source:q} --problems results/problems/{wildcards.benchmark}"
        " --prompt {params.prompt:q} --samples-per-problem {params.evaluation[samples_per_problem]}"
        " --max-new-tokens {params.evaluation[max_new_tokens]} --temperature {params.evaluation[temperature]}"
        " --top-p {params.evaluation[top_p]} --batch-size {params.evaluation[sampling_batch_size]}"
        f" --seed {{params.evaluation[seed]}} --threads {EXECUTION['sampling_threads']} --device {EXECUTION['device']}"
        " --out results/samples/{wildcards.run}/{wildcards.benchmark} > {log:q} 2>&1"
