"""Base models: trained from scratch, imported, fine-tuned, or found at a server."""


rule base_corpus:
    """The worked solutions that a base model is trained on."""
    output:
        "results/base/{model}/corpus.jsonl.bz2",
        "results/base/{model}/corpus.manifest.json",
    log:
        "results/logs/base/{model}/corpus.log",
    wildcard_constraints:
        model=one_of(SCRATCH),
    resources:
        **size(8000, minutes=120),
    params:
        *made_by(lambda w: {**corpus(w), "version": base_model.VERSION}, 60, parameters_of_corpus),
        call="rlvr.base_model.corpus:write_corpus",
        arguments=lambda w, output: corpus(w),
    script:
        "../scripts/call.py"


rule base_model:
    """A base model, trained from scratch on its corpus, or gone on with."""
    input:
        corpus="results/base/{model}/corpus.jsonl.bz2",
        held_out=lambda w: (
            [f"results/problems/{VALIDATION}/problems.jsonl"] if SCRATCH[w.model].training.stop_at else []
        ),
    output:
        "results/base/{model}/manifest.json",
        "results/base/{model}/metrics.parquet",
    log:
        "results/logs/base/{model}.log",
    benchmark:
        "results/costs/base/{model}.tsv"
    wildcard_constraints:
        model=one_of(SCRATCH),
    priority: 100
    threads: MACHINE.base_threads
    resources:
        **size(lambda w: model_training_mb(SCRATCH[w.model], on_gpu=False), 720, MACHINE.base_threads),
    params:
        *made_by(from_scratch, 40, lambda w: {f"results/base/{w.model}/manifest.json": from_scratch(w)}),
        f"version: {base_model.VERSION}",
        settings=lambda w, output: from_scratch(w),
        machine=lambda w, output: MACHINE,
    script:
        "../scripts/base_model.py"


rule import_model:
    """A model that exists: the files of a directory, which are inputs, or a commit on the Hub."""
    input:
        files_of_model,
    output:
        "results/base/{imported}/manifest.json",
    log:
        "results/logs/base/{imported}.log",
    wildcard_constraints:
        imported=one_of(IMPORTED),
    priority: 100
    localrule: True
    params:
        refusing(lambda w: {f"results/base/{w.imported}/manifest.json": imported(w)}),
        call="evals.generation.checkpoint:import_model",
        model=lambda w: imported(w)["model"],
        revision=lambda w: imported(w)["revision"],
    script:
        "../scripts/call.py"


rule reach_server:
    """A model that a server has: the server is asked for its models."""
    output:
        "results/base/{model}/manifest.json",
    log:
        "results/logs/base/{model}.log",
    wildcard_constraints:
        model=one_of(STUDY.served_models),
    priority: 100
    localrule: True
    params:
        *by_setting(lambda w: STUDY.served_models[w.model].service(), at_most=20),
        refusing(
            lambda w: {f"results/base/{w.model}/manifest.json": STUDY.served_models[w.model].service()},
            Service.model_fields,
        ),
        call="evals.generation.served:write_service",
        service=lambda w, output: Service.parse(STUDY.served_models[w.model].service(), "service"),
    script:
        "../scripts/call.py"


rule fine_tuned_model:
    """An existing model, trained on worked solutions before the study's methods train it."""
    input:
        base="results/base/{model}-pretrained/manifest.json",
        solutions=lambda w: STUDY.solutions(w.model),
    output:
        "results/base/{model}/manifest.json",
        "results/base/{model}/metrics.parquet",
    log:
        "results/logs/base/{model}.log",
    benchmark:
        "results/costs/base/{model}.tsv"
    wildcard_constraints:
        model=one_of(TUNED),
    priority: 100
    threads: MACHINE.training_threads
    resources:
        **size(lambda w: model_training_mb(TUNED[w.model], MACHINE.device == "cuda"), 1440, MACHINE.training_threads),
        gpu=int(MACHINE.device == "cuda"),
        tasks=0,
    params:
        *made_by(fine_tuning, 40, parameters_of_fine_tuning, MAY_BE_AT_DEFAULT),
        f"version: {local.VERSION}",
        lambda w: f"order: {STUDY.solutions(w.model)}",  # the order of the files decides, too
        settings=lambda w, output: fine_tuning(w),
        machine=lambda w, output: MACHINE,
    script:
        "../scripts/fine_tune.py"
