"""A study (config/*.yaml): models, problems, methods, training, evaluation, statistics and execution."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from evals.core.config.base_models import ClusterChanges, FineTuned, FromScratch, HuggingFace, Model, Served
from evals.core.config.methods import Methods, TrainingChanges
from evals.core.config.problem_sets import Kinds, require_verifier
from evals.core.config.settings import UNIQUE, Name, Omittable, Prompt, Seeds, Settings, Sha256, Text, optional
from evals.core.errors import NotAccepted
from evals.core.numbers import BOUNDED, Count, Index, NotNegative, Share, ShareOrZero
from evals.core.records import BASE, Controls, Weighting
from evals.core.run_spec import LOCAL, LOCAL_DTYPES, VERL, Example

_NOT_REQUIRED = (
    "micro_batch_size",
    "micro_batch_tokens",
    "share_prompts",
    "max_prompt_tokens",
    "sampling_batch_size",
    "learning_rate_decay_from",
    "top_p",
)
"""Training settings that only one engine has, or that have a default."""


class DrawnProblems(Settings):
    """Training problems that are drawn from a seed.

    The split of a generated problem follows from a hash of its text, so that no benchmark can hold a training problem.
    """

    seed: Index = Field(description="decides which problems are drawn")
    count: Count = Field(description="number of different problems")
    prompt: Prompt = Field(description="text with {problem} in it once")
    kinds: Kinds = Field(description="kinds of problems, equally likely")
    verifier: Omittable[Text] = optional(
        "a file with a Python function that gives the rewards, relative to the repository (docs/your_verifier.md)"
    )

    @model_validator(mode="after")
    def _check_verifier(self) -> Self:
        require_verifier(self.kinds, self.verifier)
        return self


class PublishedProblems(Settings):
    """Training problems of a published set (docs/benchmarks.md)."""

    source: Name = Field(description="name of a file in config/datasets")
    path: Omittable[Text] = optional("a local copy that is read instead of the Hub: a JSON lines file or a directory")
    exclude: Omittable[Annotated[tuple[str, ...], *UNIQUE]] = optional(
        "ids of problems that are left out, such as those of a benchmark"
    )
    prompt: Prompt = Field(description="text with {problem} in it once")
    verifier: Omittable[Text] = optional(
        "a file with a Python function that gives the rewards, relative to the repository (docs/your_verifier.md)"
    )


def _kind_of_problems(content: Any) -> str:
    published = isinstance(content, PublishedProblems) or (isinstance(content, dict) and "source" in content)
    return "PublishedProblems" if published else "DrawnProblems"


Problems = Annotated[
    Annotated[DrawnProblems, Tag("DrawnProblems")] | Annotated[PublishedProblems, Tag("PublishedProblems")],
    Discriminator(_kind_of_problems),
]


class Validation(Settings):
    """Scores of every training on problems of its own, drawn like the training problems from the evaluation split.

    They draw from random streams of their own and change nothing in a training.
    """

    seed: Index = Field(description="decides which problems are drawn")
    count: Annotated[int, Field(ge=2), BOUNDED] = Field(description="number of problems")
    every: Count = Field(description="rollout steps between two scores; the first is before the training")
    samples_per_problem: Count = Field(description="samples of each problem")


class LocalCopy(Settings):
    """A local copy of a benchmark that is otherwise read from the Hugging Face Hub."""

    path: Text = Field(description="the file or directory, relative to the repository")
    sha256: Sha256 | None = optional("of the resulting problems.jsonl")


class Evaluation(Settings):
    """Sampling for evaluation. Every sample has random numbers of its own, the same for every checkpoint."""

    samples_per_problem: Annotated[int, Field(ge=1), BOUNDED] = Field(description="the k of avg@k")
    samples_of: Omittable[dict[Name, Count]] = optional(
        "another k, by benchmark, such as 1 for a large one; in a study without methods"
    )
    max_new_tokens: Count = Field(description="longest response in tokens")
    temperature: NotNegative = Field(description="of sampling")
    top_p: Share = Field(description="of sampling")
    top_k: Omittable[Index] = optional("of sampling: tokens that are kept; default 0, all")
    min_p: Omittable[ShareOrZero] = optional("of sampling: least probability, as a share of the most likely token's")
    stop: Omittable[Annotated[tuple[Text, ...], Field(min_length=1), *UNIQUE]] = optional(
        "texts that end a response and are cut off it, such as the beginning of a next problem"
    )
    few_shot: Omittable[Annotated[tuple[Example, ...], Field(min_length=1)]] = optional(
        "worked examples before each problem"
    )
    sampling_batch_size: Count = Field(description="responses decoded at a time")
    seed: Index = Field(description="of the random numbers")
    backend: Omittable[Literal["local", "transformers", "vllm"]] = optional(
        "what samples; default local (docs/generation.md)"
    )
    max_model_len: Annotated[int, Field(ge=2), BOUNDED] | None = optional("shortens the context; vLLM")
    tensor_parallel_size: Omittable[Count] = optional("GPUs that share a model; vLLM")
    prompt: Omittable[Literal["training", "benchmark"]] = optional(
        "training: problems with an answer are put into problems.prompt, as in training; benchmark: into the "
        "benchmark's own prompt. Default: training with a published training set, else benchmark. Multiple choice and "
        "programs keep their own"
    )

    def samples(self, benchmark: str) -> int:
        """The samples of each problem of a benchmark."""
        return (self.samples_of or {}).get(benchmark, self.samples_per_problem)


class Statistics(Settings):
    """Intervals and tests (docs/evaluation.md)."""

    seed: Index = Field(description="of the resampling")
    resamples: Annotated[int, Field(ge=100), BOUNDED] = Field(description="of the bootstrap")
    permutations: Annotated[int, Field(ge=100), BOUNDED] = Field(description="of the sign-flip test")
    weighting: Omittable[Weighting] = optional(
        "of the mean over benchmarks: `benchmarks`, all alike (the default), `problems`, all alike, or a weight for "
        "each benchmark"
    )


class BestCheckpoint(Settings):
    """The policies along every training that its best one is chosen among: those of the highest avg@k on a benchmark.

    Of equals the earliest is chosen. Other samples than those that are scored decide.
    """

    benchmark: Name = Field(description="benchmark of the study; its own score of the chosen policy is selected on")
    k: Count = Field(description="samples of each of its problems")
    every: Count = Field(description="steps between two policies; the last one is always among them")


class Checkpoint(Settings):
    """The policies of a training that are reported beside its last one."""

    best: BestCheckpoint = Field(description="the best on one benchmark")


class Registration(Settings):
    """A comparison with the reference method that is fixed before the trainings and gets one verdict.

    What was registered, and when, stays in ``results/registration.json`` (docs/evaluation.md).
    """

    method: str = Field(description="the method that is compared with the reference method, over all benchmarks")
    smallest_effect: Share = Field(
        description="the smallest difference that would matter, as a fraction of one: 0.02 is 2 points"
    )


class Diagnostics(Settings):
    """The runs that ``snakemake phenomena`` analyses (docs/diagnostics.md).

    Optional; it changes no run, and nothing is computed before it is asked for.
    """

    method: str = Field(description="its runs, one a seed of the first model, are replayed for token tables and probed")
    weighting_method: Omittable[str] = optional(
        "the same for a method that weighs tokens, such as DelTA, for the claims about weights"
    )
    steps: Annotated[tuple[Count, ...], Field(min_length=1), *UNIQUE] = Field(
        description="rollout steps that are analysed, from 1"
    )
    seeds: Omittable[Count] = optional("so many of the study's training seeds are analysed, the first; default: all")
    benchmark: str = Field(description="on which base and trained models are compared token by token")
    selected: Omittable[Annotated[tuple[str, ...], Field(min_length=2, max_length=2), *UNIQUE]] = optional(
        "two methods, of this study or of named ones, that train on the tokens of highest and of lowest weight"
    )
    compared: Omittable[Annotated[tuple[str, ...], Field(min_length=1), *UNIQUE]] = optional(
        "methods, of this study or of named ones, whose training and checkpoints are compared for drift; "
        "which of them make a pair follows from their settings. One that differs from another in its steps alone, at a "
        "constant learning rate, is a point of that one's drift over training"
    )


class Execution(Settings):
    """The execution of jobs: devices, threads and intervals. Nothing here changes a number beyond its rounding.

    The number of threads decides how sums are split, and so can change the last bit of a sum. The study fixes it, not
    the machine, so that a study on CPUs repeats itself bit by bit on every x86-64 processor with AVX2.
    """

    device: Literal["cpu", "cuda"] = Field(description="where models are")
    base_threads: Omittable[Count] = optional("threads of a job that trains a base model")
    training_threads: Omittable[Count] = optional("threads of a training")
    sampling_threads: Count = Field(description="threads of a job that samples")
    grading_workers: Count = Field(description="processes for answers that need symbolic comparison")
    checkpoint_interval: Omittable[Count] = optional("training steps between saved states: what a kill can cost")
    hidden_state_budget: Omittable[Index] = optional(
        "MiB of a rollout batch's hidden states that DelTA keeps in memory; more are spilled to a file of "
        "the run's directory"
    )
    gradient_checkpointing: Omittable[bool] = optional(
        "whether a training computes layers again for the gradient instead of keeping them: less memory, a third more "
        "time; default false; engine local"
    )
    rollouts_kept_every: Omittable[Count] = optional(
        "training steps between two whose rollouts a training keeps, token by token, beside those of step 1; the page "
        "rollouts/index.html shows them; default: none are kept"
    )
    sampling_python: Omittable[Text] = optional(
        "Python of the environment that samples, such as .venv-engines/bin/python for vLLM"
    )
    sampling_splits: Omittable[Count] = optional("jobs that a benchmark's sampling is divided into")
    gpu_memory_utilization: Omittable[Share] = optional("share of a GPU's memory that vLLM takes; default 0.9")
    training_python: Omittable[Text] = optional("Python of the environment that verl is installed in; engine verl")
    cluster: Omittable[ClusterChanges] = optional(
        "engine verl; nodes, gpus_per_node and tokens_per_device are required"
    )

    @model_validator(mode="after")
    def _check_cluster(self) -> Execution:
        if self.cluster is not None:
            _require(self.cluster, ("nodes", "gpus_per_node", "tokens_per_device"), "cluster")
        return self


class StudyConfig(Settings):
    """A study."""

    extends: Omittable[Text] = optional(
        "another study file, as seen from the directory of this one, which then states what differs: single keys of "
        "`training`, `evaluation`, `statistics` and `execution`, other sections as a whole; null leaves a key out"
    )
    study: Name = Field(description="name; also that of the MLflow experiment")
    engine: Omittable[Literal["local", "verl"]] = optional(
        "what trains: local (the default) or verl (docs/paper_scale.md)"
    )
    seeds: Seeds = Field(
        default=(),
        description="training seeds: each determines the order of prompts, the rollouts' random numbers and the "
        "mini-batches",
    )
    models: Annotated[
        dict[Name, Annotated[FromScratch | HuggingFace | FineTuned | Served, Field(discriminator="source")]],
        Field(min_length=1),
    ] = Field(description="base models by name")
    problems: Omittable[Problems] = optional("problems that the methods train on")
    validation: Omittable[Validation] = optional(
        "scores along every training, for compute-performance curves (docs/evaluation.md); engine local, drawn problems"
    )
    benchmarks: Annotated[tuple[Name, ...], Field(min_length=1), *UNIQUE] = Field(
        description="names of files in config/benchmarks"
    )
    benchmark_sources: Omittable[dict[str, LocalCopy]] = optional(
        "local copies of benchmarks, by benchmark (docs/benchmarks.md)"
    )
    methods: Methods = Field(default={}, description="methods by name, with what is changed of their catalogue entries")
    reference_method: str = Field(default=BASE, description="the method that every other one is compared with")
    controls: Omittable[Controls] = optional(
        "two methods with known outcomes against the reference method, which tables and report judge the study by; the "
        "named studies that have the same reference method have them too"
    )
    training: TrainingChanges = Field(default=TrainingChanges(), description="training settings of every method")
    contrast_steps: Omittable[Index] = optional(
        "steps of each training, spread over it, at which the angle to the reference method's gradient is measured "
        "(docs/evaluation.md); default 4; 0: not measured; engine local"
    )
    evaluation: Evaluation = Field(description="sampling for evaluation")
    checkpoint: Omittable[Literal["last"] | Checkpoint] = optional(
        "policies that are reported: `last`, each training's last one (the default), or beside it the best of those "
        "along it (docs/evaluation.md)"
    )
    statistics: Statistics = Field(description="intervals and tests")
    registration: Omittable[Registration] = optional(
        "a comparison that gets one verdict: superior, equivalent, inferior or undecided"
    )
    diagnostics: Omittable[Diagnostics] = optional("runs that `snakemake phenomena` analyses")
    execution: Execution = Field(description="where and how jobs are carried out")

    @property
    def best_checkpoint(self) -> BestCheckpoint | None:
        """The rule by which the best policy of a training is chosen; None where the last alone is reported."""
        return self.checkpoint.best if isinstance(self.checkpoint, Checkpoint) else None

    @property
    def trained_by(self) -> str:
        """The engine: ``local`` or ``verl``."""
        return self.engine or LOCAL

    @field_validator("training")
    @classmethod
    def _check_training(cls, training: TrainingChanges) -> TrainingChanges:
        _require(training, [key for key in TrainingChanges.model_fields if key not in _NOT_REQUIRED])
        return training

    @model_validator(mode="after")
    def _check_whole(self) -> StudyConfig:
        if self.extends is not None:  # reading a file resolves it
            raise NotAccepted("is not in a file", "a key of a study file alone", "extends")
        for name, model in self.models.items():
            self._check_model(f"models.{name}", model)
        if not self.methods and self.reference_method != BASE:
            found = f"is {self.reference_method!r} in a study without methods, which only evaluates its models"
            raise NotAccepted(found, "a method that `methods` has, or no reference_method", "reference_method")
        weighting = self.statistics.weighting
        if isinstance(weighting, dict) and set(weighting) != set(self.benchmarks):
            found, accepted = f"has {', '.join(weighting)}", f"the benchmarks, each once: {', '.join(self.benchmarks)}"
            raise NotAccepted(found, accepted, "statistics.weighting")
        for name in self.evaluation.samples_of or {}:
            if name not in self.benchmarks or self.methods:
                found = "is in a study with methods" if self.methods else "is no benchmark of the study"
                accepted = "samples_per_problem alone" if self.methods else ", ".join(self.benchmarks)
                raise NotAccepted(found, accepted, f"evaluation.samples_of.{name}")
        if self.methods:
            _require(self, ("seeds", "problems", "reference_method", "training"))
            if self.reference_method not in self.methods:
                raise NotAccepted(f"is {self.reference_method!r}", ", ".join(self.methods), "reference_method")
            self._check_controls()
            _require(self.execution, ("training_threads", "checkpoint_interval"), "execution")
            self._check_engine()
            self._check_validation()
        if self.best_checkpoint is not None:
            self._check_best(self.best_checkpoint)
        if self.registration is not None:
            compared = [method for method in self.methods if method != self.reference_method]
            if self.registration.method not in compared:
                accepted = ", ".join(compared) or "a study with methods"
                raise NotAccepted(f"is {self.registration.method!r}", accepted, "registration.method")
            if len(self.models) > 1:
                raise NotAccepted(f"is given in a study of {len(self.models)} models", "one model", "registration")
        return self

    def _check_best(self, best: BestCheckpoint) -> None:
        if not self.methods:
            raise NotAccepted("is given in a study without methods, which trains nothing", "none", "checkpoint.best")
        if best.benchmark not in self.benchmarks:
            raise NotAccepted(f"is {best.benchmark!r}", ", ".join(self.benchmarks), "checkpoint.best.benchmark")
        interval = self.execution.checkpoint_interval or 1
        if self.trained_by == VERL and best.every % interval:
            accepted = f"with engine verl a multiple of execution.checkpoint_interval, {interval}"
            raise NotAccepted(f"is {best.every}", accepted, "checkpoint.best.every")

    def _check_controls(self) -> None:
        """Check that the controls are two methods that are compared with the reference method."""
        compared = [method for method in self.methods if method != self.reference_method]
        for key, method in dict(self.controls or {}).items():
            if method not in compared:
                raise NotAccepted(f"is {method!r}", ", ".join(compared), f"controls.{key}")
        if self.controls and self.controls.positive == self.controls.negative:
            raise NotAccepted("is the positive control too", "another method", "controls.negative")

    def _check_model(self, key: str, model: Model) -> None:
        if isinstance(model, FromScratch):
            self._check_context(key, model)
            return _require(self.execution, ("base_threads",), "execution")
        if isinstance(model, Served):
            if self.methods:
                raise NotAccepted("is server in a study with methods", "a study that only evaluates", f"{key}.source")
            return None
        if (self.methods or isinstance(model, FineTuned)) and model.prompting:
            name = next(iter(model.prompting))
            raise NotAccepted(
                "is given to a model that is trained, whose training would lack it", "none", f"{key}.{name}"
            )
        accepted = ", ".join(LOCAL_DTYPES)
        if isinstance(model, FineTuned):
            _require(self.execution, ("training_threads", "checkpoint_interval"), "execution")
        trains = isinstance(model, FineTuned) or (self.methods and self.trained_by == LOCAL)
        if trains and model.sampling_dtype not in LOCAL_DTYPES:
            raise NotAccepted(f"is {model.sampling_dtype} in a study trained by engine local", accepted, f"{key}.dtype")
        if model.cluster is not None and self.trained_by == LOCAL:
            raise NotAccepted("is a setting of engine verl", "none with engine local", f"{key}.cluster")
        if (self.evaluation.backend or "local") == "local" and model.sampling_dtype not in LOCAL_DTYPES:
            found = f"is {model.sampling_dtype} with evaluation.backend local"
            raise NotAccepted(found, f"{accepted}, or backend transformers or vllm", f"{key}.dtype")
        for method in model.methods or {}:
            if method not in self.methods:
                accepted = ", ".join(self.methods)
                raise NotAccepted("is no method of the study", accepted, f"{key}.methods.{method}")
        return None

    def _check_context(self, key: str, model: FromScratch) -> None:
        """Check that the longest response fits into the model's context beside one token of a prompt."""
        context = model.architecture.max_position_embeddings
        for stage in ("training", "evaluation"):
            longest = getattr(self, stage).max_new_tokens
            if longest is not None and longest >= context:
                found = (
                    f"is {longest}, and {key}.architecture.max_position_embeddings, for prompt and response, {context}"
                )
                raise NotAccepted(found, f"at most {context - 1}", f"{stage}.max_new_tokens")

    def _check_engine(self) -> None:
        """Check that the study has what its engine needs, and nothing that the engine would ignore."""
        of_verl = ("cluster", "training_python")
        if self.trained_by == VERL:
            if self.diagnostics is not None:
                raise NotAccepted("replays runs of engine local", "none with engine verl", "diagnostics")
            if self.contrast_steps:
                raise NotAccepted(f"is {self.contrast_steps}", "0, or none, with engine verl", "contrast_steps")
            needed = ("checkpoint_interval", "grading_workers", "hidden_state_budget", *of_verl)
            _require(self.execution, needed, "execution")
        elif given := [key for key in of_verl if key in self.execution.model_fields_set]:
            raise NotAccepted("is a setting of engine verl", "none with engine local", f"execution.{given[0]}")

    def _check_validation(self) -> None:
        if self.validation is None:
            return
        if self.trained_by == VERL:
            raise NotAccepted("is a setting of engine local", "none with engine verl", "validation")
        if not isinstance(self.problems, DrawnProblems):
            raise NotAccepted(
                "draws more problems like those of the training", "none with a published set", "validation"
            )


def _require(settings: Settings, keys: Iterable[str], key: str = "") -> None:
    """Check that ``settings``, which stand under ``key``, have ``keys``."""
    if lacking := [each for each in keys if each not in settings.model_fields_set]:
        raise NotAccepted(f"lacks {', '.join(lacking)}", key=key)
