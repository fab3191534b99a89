# The base model, then every method and seed. Declared outputs are small; state/ and checkpoint/ beside them are the
# trainer's own, because Snakemake deletes what it declares before it runs a job again.


rule base_corpus:
    output:
        corpus="results/base/{model}/corpus.jsonl",
        manifest="results/base/{model}/corpus.manifest.json",
    log:
        "results/logs/base/{model}.corpus.log",
    params:
        settings=corpus_settings,
        examples=corpus_count,
        version=BASE_MODEL_VERSION,
    shell:
        "python -m rlvr stage corpus --settings {params.settings:q} --count {params.examples}"
        " --out {output.corpus:q} > {log:q} 2>&1"


rule import_model:
    input:
        model_files,
    output:
        manifest="results/base/{model}/manifest.json",
    log:
        "results/logs/base/{model}.log",
    wildcard_constraints:
        model="|".join(TAKEN_IN) or NONE,
    params:
        options=model_settings,
    shell:
        "python -m rlvr stage import-model {params.options:q} --out results/base/{wildcards.model} > {log:q} 2>&1"


rule base_model:
    input:
        corpus="results/base/{model}/corpus.jsonl",
    output:
        manifest="results/base/{model}/manifest.json",
        metrics="results/base/{model}/metrics.parquet",
    log:
        "results/logs/base/{model}.log",
    benchmark:
        "results/costs/base/{model}.tsv"
    wildcard_constraints:
        model="|".join(SCRATCH) or NONE,
    priority: 100
    threads: EXECUTION.get("base_threads", 1)
    params:
        settings=base_model_settings,
        version=BASE_MODEL_VERSION,
    shell:
        # The number of threads is the study's, not the machine's: it is part of how sums are rounded.
        "python -m rlvr stage base-model --settings {params.settings:q} --corpus {input.corpus:q}"
        f" --threads {EXECUTION.get('base_threads', 1)} --checkpoint-interval 100"
        " --out results/base/{wildcards.model} > {log:q} 2>&1"


if STUDY.engine == "verl":

    # Where a run is carried out is no part of what it is: cluster.json stands beside run.json, and is no parameter.
    rule train:
        input:
            base=base_manifest,
            problems="results/problems/train/manifest.json",
        output:
            run="results/runs/{run}/run.json",
            metrics="results/runs/{run}/metrics.parquet",
            manifest="results/runs/{run}/manifest.json",
        log:
            "results/logs/train/{run}.log",
        benchmark:
            "results/costs/train/{run}.tsv"
        priority: 50
        threads: EXECUTION.get("training_threads", 1)
        resources:
            nodes=1,
            gpu=run_gpus,
            ray_cluster=run_ray_cluster,
            cluster_json=run_cluster,
        params:
            resolved=resolved_run,
            versions=[VERL_ENGINE_VERSION, GRADER_VERSION],
        shell:
            "printf '%s' {params.resolved:q} > {output.run:q} &&"
            " printf '%s' {resources.cluster_json:q} > results/runs/{wildcards.run}/cluster.json &&"
            " python -m rlvr train {output.run:q}"
            f" --python {EXECUTION['training_python']} > {{log:q}} 2>&1"

else:

    rule train:
        input:
            base=base_manifest,
            problems="results/problems/train/manifest.json",
        output:
            run="results/runs/{run}/run.json",
            metrics="results/runs/{run}/metrics.parquet",
            manifest="results/runs/{run}/manifest.json",
        log:
            "results/logs/train/{run}.log",
        benchmark:
            "results/costs/train/{run}.tsv"
        priority: 50
        threads: EXECUTION.get("training_threads", 1)
        params:
            resolved=resolved_run,
            versions=[ENGINE_VERSION, SAMPLER_VERSION, GRADER_VERSION],
        shell:
            "printf '%s' {params.resolved:q} > {output.run:q} &&"
            " python -m rlvr train {output.run:q}"
            f" --threads {EXECUTION.get('training_threads', 1)} --device {EXECUTION['device']}"
            f" --checkpoint-interval {EXECUTION.get('checkpoint_interval', 1)}"
            f" --hidden-state-budget {EXECUTION.get('hidden_state_budget', 0)}"
            f" --grading-workers {EXECUTION['grading_workers']} > {{log:q}} 2>&1"
