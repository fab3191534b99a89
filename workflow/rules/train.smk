# The base model, then every method and seed. Declared outputs are small; state/ and checkpoint/ beside them are the
# trainer's own, because Snakemake deletes what it declares before it runs a job again.


def corpus_settings(wildcards):
    """A model's corpus, as configured."""
    return canonical_json(STUDY.config["models"][wildcards.model]["corpus"])


def corpus_count(wildcards):
    """Worked solutions that a model's training uses up."""
    training = STUDY.config["models"][wildcards.model]["training"]
    return training["steps"] * training["batch_size"]


def base_model_settings(wildcards):
    """A model's architecture and training, as the base trainer takes them."""
    model = STUDY.config["models"][wildcards.model]
    return canonical_json({"architecture": model["architecture"], **model["training"]})


rule base_corpus:
    output:
        "results/base/{model}/corpus.jsonl",
    params:
        settings=corpus_settings,
        examples=corpus_count,
        version=BASE_MODEL_VERSION,
    log:
        "results/logs/base/{model}.corpus.log",
    shell:
        "python -m rlvr.base_model corpus --settings {params.settings:q} --count {params.examples} --out {output:q}"
        " > {log:q} 2>&1"


rule base_model:
    input:
        corpus="results/base/{model}/corpus.jsonl",
    output:
        manifest="results/base/{model}/manifest.json",
        metrics="results/base/{model}/metrics.parquet",
    params:
        settings=base_model_settings,
        version=BASE_MODEL_VERSION,
    log:
        "results/logs/base/{model}.log",
    benchmark:
        "results/costs/base/{model}.tsv"
    threads: EXECUTION["base_threads"]
    priority: 100
    shell:
        # The number of threads is the study's, not the machine's: it is part of how sums are rounded.
        "python -m rlvr.base_model train --settings {params.settings:q} --corpus {input.corpus:q}"
        f" --threads {EXECUTION['base_threads']} --checkpoint-interval 100"
        " --out results/base/{wildcards.model} > {log:q} 2>&1"


def resolved_run(wildcards):
    """Content of the run's run.json: whatever changes it makes this run, and no other, be trained again."""
    return canonical_json(STUDY.resolved_run(wildcards.run))


def base_manifest(wildcards):
    """The base model that a run starts from."""
    return f"results/base/{STUDY.run(wildcards.run).model}/manifest.json"


rule train:
    input:
        base=base_manifest,
        problems="results/problems/train/manifest.json",
    output:
        run="results/runs/{run}/run.json",
        metrics="results/runs/{run}/metrics.parquet",
        manifest="results/runs/{run}/manifest.json",
    params:
        resolved=resolved_run,
        versions=[ENGINE_VERSION, SAMPLER_VERSION, GRADER_VERSION],
    log:
        "results/logs/train/{run}.log",
    benchmark:
        "results/costs/train/{run}.tsv"
    threads: EXECUTION["training_threads"]
    priority: 50
    shell:
        "printf '%s' {params.resolved:q} > {output.run:q} &&"
        " python -m rlvr.engines.local train {output.run:q}"
        f" --threads {EXECUTION['training_threads']} --device {EXECUTION['device']}"
        f" --checkpoint-interval {EXECUTION['checkpoint_interval']}"
        f" --grading-workers {EXECUTION['grading_workers']} > {{log:q}} 2>&1"
