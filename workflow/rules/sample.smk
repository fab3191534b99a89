# Responses of every checkpoint to every benchmark. Finished batches lie in state/ beside the declared outputs, which
# Snakemake deletes before it runs a job again.


rule sample_split:
    input:
        checkpoint=evaluated_manifest,
        problems="results/problems/{benchmark}/manifest.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
    output:
        touch("results/samples/{run}/{benchmark}/splits/{part}-of-{parts}"),
    log:
        "results/logs/sample/{run}/{benchmark}.{part}-of-{parts}.log",
    wildcard_constraints:
        part=r"\d+",
        parts=r"\d+",
    priority: 20
    threads: EXECUTION["sampling_threads"]
    resources:
        gpu=sampling_gpus(),
    params:
        source=evaluated_directory,
        prompt=benchmark_prompt,
        evaluation=evaluation_settings,
        options=sampling_options,
        version=SAMPLER_VERSION,
    shell:
        sampling_command("--splits {wildcards.parts} --split {wildcards.part}")


rule sample:
    input:
        checkpoint=evaluated_manifest,
        problems="results/problems/{benchmark}/manifest.json",
        disjoint="results/problems/{benchmark}/disjoint.json",
        parts=sampling_parts,
    output:
        samples="results/samples/{run}/{benchmark}/samples.jsonl",
        manifest="results/samples/{run}/{benchmark}/manifest.json",
    log:
        "results/logs/sample/{run}/{benchmark}.log",
    benchmark:
        "results/costs/sample/{run}/{benchmark}.tsv"
    priority: 20
    threads: EXECUTION["sampling_threads"]
    resources:
        gpu=sampling_gpus(),
    params:
        source=evaluated_directory,
        prompt=benchmark_prompt,
        evaluation=evaluation_settings,
        options=sampling_options,
        version=SAMPLER_VERSION,
    shell:
        sampling_command("")
