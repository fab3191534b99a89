# The base model, then every method and seed. Declared outputs are small; state/ and checkpoint/ beside them are the
# trainer's own, because Snakemake deletes what it declares before it runs a job again.
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.engines.local import VERSION as LOCAL_ENGINE_VERSION
from rlvr.study.software import training_software

TRAINED_IN = training_software(PLAN)

with one_line_errors():
    TRAINER = f"{TRAINING.training_python} -m rlvr train"


rule base_corpus:
    output:
        corpus="results/base/{model}/corpus.jsonl",
        manifest="results/base/{model}/corpus.manifest.json",
    log:
        "results/logs/base/{model}.corpus.log",
    params:
        settings=given(TRAINING.corpus_settings),
        examples=given(TRAINING.corpus_count),
        version=BASE_MODEL_VERSION,
    shell:
        "python -m rlvr stage corpus --settings {params.settings:q} --count {params.examples}"
        " --out {output.corpus:q} > {log:q} 2>&1"


rule import_model:
    input:
        given(lambda model: TRAINING.model_files(model, only_planning=workflow.dryrun)),  # known once the rules are read
    output:
        manifest="results/base/{model}/manifest.json",
    log:
        "results/logs/base/{model}.log",
    wildcard_constraints:
        model=pattern(PLAN.imported),
    params:
        options=given(TRAINING.model_source),
    shell:
        "python -m rlvr stage import-model {params.options:q} --out results/base/{wildcards.model} > {log:q} 2>&1"


rule reach_server:
    output:
        manifest="results/base/{model}/manifest.json",
    log:
        "results/logs/base/{model}.log",
    wildcard_constraints:
        model=pattern(PLAN.study.served_models),
    params:
        service=given(TRAINING.service),
    shell:
        "python -m rlvr stage reach-server --service {params.service:q} --out results/base/{wildcards.model}"
        " > {log:q} 2>&1"


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
        model=pattern(PLAN.study.models_from_scratch),
    priority: 100
    threads: PLAN.base_threads
    params:
        settings=given(TRAINING.base_model_settings),
        version=BASE_MODEL_VERSION,
    shell:
        # The number of threads is the study's, not the machine's: it is part of how sums are rounded.
        "python -m rlvr stage base-model --settings {params.settings:q} --corpus {input.corpus:q}"
        f" --threads {PLAN.base_threads} --checkpoint-interval 100"
        " --out results/base/{wildcards.model} > {log:q} 2>&1"


rule fine_tuned_model:
    input:
        base="results/base/{model}-pretrained/manifest.json",
        solutions=given(PLAN.study.solutions),
    output:
        manifest="results/base/{model}/manifest.json",
        metrics="results/base/{model}/metrics.parquet",
    log:
        "results/logs/base/{model}.log",
    benchmark:
        "results/costs/base/{model}.tsv"
    wildcard_constraints:
        model=pattern(PLAN.study.fine_tuned_models),
    priority: 100
    threads: PLAN.training_threads
    resources:
        gpu=TRAINING.local_gpus,
    params:
        settings=given(TRAINING.fine_tuning),
        order=given(PLAN.study.solutions),
        version=LOCAL_ENGINE_VERSION,
    shell:
        "python -m rlvr stage fine-tune --settings {params.settings:q} --base $(dirname {input.base:q})"
        f" --solutions {{input.solutions:q}} --threads {PLAN.training_threads} --device {PLAN.execution['device']}"
        f" --checkpoint-interval {PLAN.execution.get('checkpoint_interval', 100)}"
        " --out results/base/{wildcards.model} > {log:q} 2>&1"


# Where verl carries a run out, and which policies along it are kept, is no part of what the run is: these are resources,
# and no parameters.
rule train:
    input:
        base=given(PLAN.base_manifest),
        problems=expand("results/problems/{name}/manifest.json", name=PLAN.trained_with),
        verifier=given(partial(PLAN.verifier, TRAIN)),
    output:
        run="results/runs/{run}/run.json",
        metrics="results/runs/{run}/metrics.parquet",
        manifest="results/runs/{run}/manifest.json",
    log:
        "results/logs/train/{run}.log",
    benchmark:
        "results/costs/train/{run}.tsv"
    wildcard_constraints:
        run=pattern(PLAN.trained),
    priority: given(TRAINING.training_priority)
    conda:
        TRAINED_IN.conda
    container:
        TRAINED_IN.container
    threads: PLAN.training_threads
    resources:
        nodes=given(TRAINING.training_nodes),
        gpu=given(TRAINING.training_gpus),
        gres=given(TRAINING.training_gres),
        ray_cluster=given(TRAINING.ray_clusters),
        cluster_json=given(TRAINING.cluster),
        kept_steps=given(TRAINING.kept_steps),
    params:
        resolved=given(TRAINING.run_spec),
        versions=TRAINING.training_versions,
    shell:
        f"{TRAINER} {{output.run:q}} --run-json {{params.resolved:q}} --checkpoints-at {{resources.kept_steps}}"
        f" {TRAINING.training_options} > {{log:q}} 2>&1"


# A policy along a training, which a named study is scored at (`score_at`). The trainer's own files lie in the directory
# beside the output, so that they are kept; one that is not there is made by repeating the training up to its step.
rule policy_at_step:
    input:
        "results/runs/{run}/manifest.json",
    output:
        touch("results/runs/{run}/checkpoints/step-{step}.kept"),
    log:
        "results/logs/train/{run}.step-{step}.log",
    wildcard_constraints:
        run=pattern(PLAN.trained),
        step="[0-9]+",
    priority: given(TRAINING.training_priority)
    conda:
        TRAINED_IN.conda
    container:
        TRAINED_IN.container
    threads: PLAN.training_threads
    resources:
        nodes=given(TRAINING.training_nodes),
        gpu=given(TRAINING.training_gpus),
        gres=given(TRAINING.training_gres),
        ray_cluster=given(TRAINING.ray_clusters),
        cluster_json=given(TRAINING.cluster),
    shell:
        f"{TRAINER} results/runs/{{wildcards.run}}/run.json --checkpoints-at {{wildcards.step}}"
        f" {TRAINING.training_options} > {{log:q}} 2>&1"


# The policies that the best one of a training is chosen among (`checkpoint` in a study), kept as above, all by one job.
rule candidates:
    input:
        "results/runs/{run}/manifest.json",
    output:
        touch("results/runs/{run}/candidates.kept"),
    log:
        "results/logs/train/{run}.candidates.log",
    wildcard_constraints:
        run=pattern(PLAN.trained),
    priority: 50
    conda:
        TRAINED_IN.conda
    container:
        TRAINED_IN.container
    threads: PLAN.training_threads
    resources:
        nodes=given(TRAINING.training_nodes),
        gpu=given(TRAINING.training_gpus),
        gres=given(TRAINING.training_gres),
        ray_cluster=given(TRAINING.ray_clusters),
        cluster_json=given(TRAINING.cluster),
    params:
        steps=given(TRAINING.candidate_steps),
    shell:
        f"{TRAINER} results/runs/{{wildcards.run}}/run.json --checkpoints-at {{params.steps}}"
        f" {TRAINING.training_options} > {{log:q}} 2>&1"


# Laid out as a run; checkpoint/ beside the outputs has the chosen policy's files, by hard links.
rule best_policy:
    input:
        grades=given(TRAINING.candidate_grades),
    output:
        multiext("results/runs/{run}/", "manifest.json", "metrics.parquet", "chosen.json", "chosen.manifest.json"),
    log:
        "results/logs/train/{run}.log",
    wildcard_constraints:
        run=pattern(PLAN.best),
    params:
        trained=given(TRAINING.trained_run),
        candidates=given(TRAINING.candidates),
    shell:
        "python -m rlvr stage choose-best --trained {params.trained} --candidates {params.candidates:q}"
        " --out results/runs/{wildcards.run} > {log:q} 2>&1"
