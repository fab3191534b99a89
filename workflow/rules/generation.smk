# What the jobs of sampling and of taking models in are given: models, settings, commands.


def sampling_gpus():
    """GPUs that a job of sampling takes."""
    on_gpus = EXECUTION["device"] == "cuda"
    return (STUDY.config.evaluation.tensor_parallel_size or 1) if on_gpus else 0


def benchmark_prompt(wildcards):
    """A benchmark's prompt template, for the model of a run."""
    return STUDY.prompt(wildcards.benchmark, RUNS[wildcards.run][1].model)


def evaluation_settings(wildcards):
    """What decides a run's samples beside model and problems: settings of sampling, and of the model."""
    model = RUNS[wildcards.run][1].model
    settings = {"backend": "local", "tensor_parallel_size": 1, **STUDY.config.evaluation.to_json()}
    settings |= {"dtype": STUDY.dtype(model), "prompt_form": STUDY.prompt_form(model)}
    return {key: value for key, value in sorted(settings.items()) if value is not None}


def sampling_options(wildcards):
    """The same as options of the command."""
    renamed = {"sampling_batch_size": "batch_size"}
    options = evaluation_settings(wildcards).items()
    words = [(f"--{renamed.get(key, key).replace('_', '-')}", str(value)) for key, value in options]
    return [word for option in words for word in option]


def sampling_python():
    """The Python of the backend's environment; a path is relative to the repository, a bare name is on the PATH."""
    python = EXECUTION.get("sampling_python", "python")
    if "/" not in python:
        return python
    path = Path(REPOSITORY, Path(python).expanduser())
    if not path.is_file():
        sys.exit(f"error: execution.sampling_python: {python}: no such file; `make test-engines` makes .venv-engines")
    return shlex.quote(str(path))


def sampling_command(what):
    """The command of a sampling job; ``what`` are the options in which a part differs from the whole."""
    return (
        f"{sampling_python()} -m rlvr stage sample --source {{params.source:q}}"
        " --problems results/problems/{wildcards.benchmark} --prompt {params.prompt:q} {params.options:q}"
        f" --threads {EXECUTION['sampling_threads']} --device {EXECUTION['device']}"
        f" --gpu-memory-utilization {EXECUTION.get('gpu_memory_utilization', 0.9)}"
        f" --out results/samples/{{wildcards.run}}/{{wildcards.benchmark}} {what} > {{log:q}} 2>&1"
    )


def sampling_parts(wildcards):
    """Marks of the jobs that a benchmark is divided into; none if one job does it all."""
    splits = EXECUTION.get("sampling_splits", 1)
    directory = f"results/samples/{wildcards.run}/{wildcards.benchmark}/splits"
    return [f"{directory}/{part}-of-{splits}" for part in range(1, splits + 1)] if splits > 1 else []


def model_settings(wildcards):
    """Where a model is taken from, as options of the command."""
    model = TAKEN_IN[wildcards.model]
    if model.path:
        return ["--model", model_path(wildcards)]
    return ["--model", model.id, "--revision", model.revision]


def model_path(wildcards):
    """A model's local directory, relative to the repository whatever directory the study works in."""
    return str(Path(REPOSITORY, Path(TAKEN_IN[wildcards.model].path).expanduser()).resolve())


def model_files(wildcards):
    """The files of a local checkpoint: with one of them changed, it is taken in and sampled again."""
    if TAKEN_IN[wildcards.model].path is None:
        return []
    patterns = ("*.safetensors", "*.json", "*.jinja")
    return sorted(str(path) for pattern in patterns for path in Path(model_path(wildcards)).glob(pattern))


def require_local_models():
    """Every local checkpoint that the study names is there, or one line says which is not, before any work.

    A plan (``snakemake -n``) of a study by verl only says so: it may be made far from where the models are.
    """
    for name, model in TAKEN_IN.items():
        if model.path and not Path(REPOSITORY, Path(model.path).expanduser()).is_dir():
            missing = f"models.{name}.path: {model.path}: no such directory"
            if not (STUDY.engine == "verl" and planning()):
                sys.exit(f"error: {missing}")
            print(f"not here yet: {missing}", file=sys.stderr)


require_local_models()
