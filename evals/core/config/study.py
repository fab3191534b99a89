"""A study (config/*.yaml): models, problems, methods, training, evaluation, statistics and execution."""

from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from evals.core.comparisons import Controls
from evals.core.config import sections
from evals.core.config.base_models import FineTuned, FromScratch, HuggingFace, Model, Served
from evals.core.config.methods import Doses, Factorial, Methods, TrainingChanges
from evals.core.errors import InvalidInput, refuse
from evals.core.numbers import Index, InnerShare
from evals.core.record import Settings, require, setting
from evals.core.records import BASE
from evals.core.run_spec import LOCAL, LOCAL_DTYPES, VERL
from evals.core.training_settings import LocalTraining, VerlTraining
from evals.core.values import UNIQUE, Arxiv, Matching, Name, Text, Title

_OF_PACKAGES = {"diagnostics": "rlvr-claims", "decoding": "rlvr-claims"}
"""Sections that were of a study file -> the package whose own files have them now."""


class StudyConfig(Settings):
    """A study."""

    extends: Text | None = setting("another study file, relative to this one, from which this one differs", None)
    study: Name = setting("name; also that of the MLflow experiment")
    folder: Annotated[str, Matching("studies/[a-z0-9_]{1,64}", "studies/NAME")] | None = setting(
        "directory below results/ of what belongs to this study alone (default: results/ itself); the rest is shared "
        "with the study that it extends",
        None,
    )
    title: Title | None = setting("heading of its report", None)
    paper: Arxiv | None = setting("the paper that it follows", None)
    question: Text | None = setting("the question that it answers, in a sentence", None)
    beside: Name | None = setting("a study of config/studies whose curves stand beside its own", None)
    score_at: Annotated[tuple[InnerShare, ...], Field(min_length=1), *UNIQUE] | None = setting(
        "fractions of a run after which its checkpoints are scored too, points of the whole learning rate schedule",
        None,
    )
    engine: Literal["local", "verl"] = setting("training engine (verl: docs/paper_scale.md)", "local")
    seeds: sections.StudySeeds = setting(
        "training seeds: a list, or seeds from 1 on until every comparison is certain, `{at_most: 16, looks: [4, 6, "
        "8, 11, 16], margin: 2.0}` (docs/evaluation.md)",
        (),
    )
    models: Annotated[
        dict[Name, Annotated[FromScratch | HuggingFace | FineTuned | Served, Field(discriminator="source")]],
        Field(min_length=1),
    ] = setting("base models by name; `extends: NAME` takes a model of the study that is extended")
    problems: sections.Problems | None = setting("problems that the methods train on", None)
    validation: sections.Validation | None = setting(
        "scores along every run (docs/evaluation.md); engine local, drawn problems", None
    )
    benchmarks: Annotated[tuple[Name, ...], Field(min_length=1), *UNIQUE] = setting(
        "names of files in config/benchmarks"
    )
    benchmark_sources: dict[str, sections.LocalCopy] | None = setting(
        "local copies of benchmarks, by benchmark (docs/benchmarks.md)", None
    )
    methods: Methods = setting("methods by name, with changes of their catalogue entries", {})
    reference_method: str = setting("the method that every other one is compared with", BASE)
    controls: Controls | None = setting("methods with known outcomes against the reference method", None)
    doses: Doses | None = setting(
        "doses of difference between sampler and trainer for every method but controls (docs/methods/corrections.md); "
        "engine local",
        None,
    )
    factorial: Factorial | None = setting(
        "factors whose combinations are trained in place of the one method (docs/evaluation.md)", None
    )
    training: TrainingChanges = setting("training settings of every method", {})
    contrast_steps: Index | None = setting(
        "steps of each run at which contrast is measured; default 4; engine local", None
    )
    evaluation: sections.Evaluation = setting("sampling for evaluation")
    checkpoint: Literal["last"] | sections.Checkpoint | None = setting(
        "reported checkpoints: `last` (the default), or beside it the best one along each run (docs/evaluation.md)",
        None,
    )
    statistics: sections.Statistics = setting("intervals and tests")
    execution: sections.StudyExecution = setting("where and how jobs are carried out", sections.StudyExecution())

    def training_of(self, method: str, source: str, model: str | None = None) -> LocalTraining | VerlTraining:
        """The settings of a method's training: the study's, with the changes of a model, if named, and its own."""
        of_model = self.models[model].method_training if model is not None else {}
        changes, factor = self.methods[method].training, self.methods[method].learning_rate_factor
        settings = {**self.training, **of_model, **changes}
        settings["learning_rate"] *= factor
        kind = VerlTraining if self.engine == VERL else LocalTraining
        return kind.parse(settings, source, f"methods.{method}.training" if changes else "training")

    def trainings(self, source: str) -> dict[str, LocalTraining | VerlTraining]:
        """The training settings of every method; ``source`` names the study where they are refused."""
        training = {method: self.training_of(method, source) for method in self.methods}
        validated = self.validation.every if self.validation else 0
        chosen = self.best_checkpoint.every if self.best_checkpoint else 0
        for model, method in product(self.models, self.methods):
            settings, of = self.training_of(method, f"{source}: {method} on {model}", model), f"of {method} on {model}"
            steps, least = settings.steps, settings.least_steps
            if self.score_at is not None and steps != training[method].steps:
                accepted = "none in a study with score_at, whose steps are those of a method on every model"
                raise InvalidInput(source, f"models.{model}.training.steps", f"is {steps}", accepted)
            if validated > least:
                accepted = f"at most the steps that every training has, {least} {of}"
                raise InvalidInput(source, "validation.every", f"is {validated}", accepted)
            if chosen >= steps:
                accepted = f"less than the steps of every training, {steps} {of}"
                raise InvalidInput(source, "checkpoint.best.every", f"is {chosen}", accepted)
        return training

    @property
    def training_seeds(self) -> tuple[int, ...]:
        """All seeds that a method may be trained with."""
        seeds = self.seeds
        return tuple(range(1, seeds.looks[-1] + 1)) if isinstance(seeds, sections.SeedsByLooks) else seeds

    @property
    def control_methods(self) -> tuple[str, ...]:
        """The methods whose outcome against the reference method is known."""
        return tuple(filter(None, dict(self.controls or {}).values()))

    @property
    def varied_methods(self) -> list[str]:
        return [method for method in self.methods if method not in self.control_methods]

    @property
    def changing_model(self) -> str:
        """The first model that changes methods for itself; empty if none does."""
        return next((name for name, model in self.models.items() if getattr(model, "methods", None)), "")

    @property
    def best_checkpoint(self) -> sections.BestCheckpoint | None:
        """The rule by which the best policy of a run is chosen; None where the last alone is reported."""
        return self.checkpoint.best if isinstance(self.checkpoint, sections.Checkpoint) else None

    @classmethod
    def parse(cls, content: Any, source: str, key: str = "") -> Self:
        """Read a study; a section that a package has in files of its own is an :class:`InvalidInput` that names it."""
        for section in _OF_PACKAGES.keys() & (content if isinstance(content, dict) else {}):
            package = _OF_PACKAGES[section]
            found, accepted = f"is a section of a file of {package}", f"none here (packages/{package}/README.md)"
            raise InvalidInput(source, section, found, accepted)
        return super().parse(content, source, key)

    def check_whole(self) -> None:
        methods, benchmarks = ", ".join(self.methods), ", ".join(self.benchmarks)
        refuse(self.extends is not None, "is not in a file", "a key of a study file alone", "extends")  # resolved there
        accepted = "local, transformers, vllm; a model of source server has its own"
        refuse(self.evaluation.backend == "server", "is server", accepted, "evaluation.backend")
        for name, model in self.models.items():
            self._check_model(f"models.{name}", model)
        weighting = self.statistics.weighting
        others = isinstance(weighting, dict) and set(weighting) != set(self.benchmarks)
        accepted = f"the benchmarks, each once: {benchmarks}"
        refuse(others, f"has {', '.join(weighting or ())}", accepted, "statistics.weighting")
        for name in self.evaluation.samples_of:
            key = f"evaluation.samples_of.{name}"
            refuse(self.methods, "is in a study with methods", "samples_per_problem alone", key)
            refuse(name not in self.benchmarks, "is no benchmark of the study", benchmarks, key)
        if self.methods:
            require(self, ("seeds", "problems", "reference_method", "training"))
            kind = VerlTraining if self.engine == VERL else LocalTraining
            required = [name for name, field in kind.model_fields.items() if field.is_required()]
            lacking = [name for name in required if name not in self.training]
            refuse(lacking, f"lacks {', '.join(lacking)}", key="training")
            known = self.reference_method in self.methods
            refuse(not known, f"is {self.reference_method!r}", methods, "reference_method")
            compared = [method for method in self.methods if method != self.reference_method]
            for key, method in dict(self.controls or {}).items():
                is_other = method is not None and method not in compared
                refuse(is_other, f"is {method!r}", ", ".join(compared), f"controls.{key}")
            is_one = self.controls and self.controls.positive == self.controls.negative
            refuse(is_one, "is the positive control too", "another method", "controls.negative")
            self._check_engine()
        else:
            found = f"is {self.reference_method!r} in a study without methods, which only evaluates its models"
            accepted = "a method that `methods` has, or no reference_method"
            refuse(self.reference_method != BASE, found, accepted, "reference_method")
            given = {"score_at": self.score_at, "checkpoint.best": self.best_checkpoint}
            for key, value in given.items():
                refuse(value is not None, "is given in a study without methods, which trains nothing", "none", key)
        if (best := self.best_checkpoint) is not None:
            known, interval = best.benchmark in self.benchmarks, self.execution.checkpoint_interval
            refuse(not known, f"is {best.benchmark!r}", benchmarks, "checkpoint.best.benchmark")
            accepted = f"with engine verl a multiple of execution.checkpoint_interval, {interval}"
            is_between = self.engine == VERL and best.every % interval
            refuse(is_between, f"is {best.every}", accepted, "checkpoint.best.every")

    def _check_model(self, key: str, model: Model) -> None:
        if isinstance(model, FromScratch):
            looks = model.training.stop_at is not None and (self.validation is None or not self.methods)
            accepted, found = "a study with methods and `validation`", "is given in a study without validation problems"
            refuse(looks, found, accepted, f"{key}.training.stop_at")
            context = model.architecture.max_position_embeddings  # for the longest response and a token of a prompt
            longest_of = {"training": self.training.get("max_new_tokens", 0)}
            for stage, longest in (longest_of | {"evaluation": self.evaluation.max_new_tokens}).items():
                whole = f"{key}.architecture.max_position_embeddings, for prompt and response, {context}"
                accepted = f"at most {context - 1}"
                refuse(longest >= context, f"is {longest}, and {whole}", accepted, f"{stage}.max_new_tokens")
            return None
        if isinstance(model, Served):
            found, accepted = "is server in a study with methods", "a study that only evaluates"
            return refuse(self.methods, found, accepted, f"{key}.source")
        is_trained, by_verl = bool(self.methods) or isinstance(model, FineTuned), self.engine == VERL
        backend, dtypes = self.evaluation.backend, ", ".join(LOCAL_DTYPES)
        found = "is given to a model that is trained, whose training would lack it"
        refuse(is_trained and model.system_prompt is not None, found, "none", f"{key}.system_prompt")
        if model.dtype not in LOCAL_DTYPES:
            by_local = isinstance(model, FineTuned) or (self.methods and not by_verl)
            refuse(by_local, f"is {model.dtype} in a study trained by engine local", dtypes, f"{key}.dtype")
            found, accepted = f"is {model.dtype} with evaluation.backend local", "or backend transformers or vllm"
            refuse(backend == "local", found, f"{dtypes}, {accepted}", f"{key}.dtype")
        if model.head_dtype is not None:
            found = f"is {model.head_dtype} with evaluation.backend {backend}"
            refuse(backend != "local", found, "none, or backend local", f"{key}.head_dtype")
            self._check_of_engine(LOCAL, self.methods, f"{key}.head_dtype")
        self._check_of_engine(VERL, model.cluster, f"{key}.cluster")
        for method in model.methods or {}:
            found, accepted = "is no method of the study", ", ".join(self.methods)
            refuse(method not in self.methods, found, accepted, f"{key}.methods.{method}")
        return None

    def _check_of_engine(self, engine: str, is_given: object, key: str) -> None:
        found, accepted = f"is a setting of engine {engine}", f"none with engine {self.engine}"
        refuse(is_given and self.engine != engine, found, accepted, key)

    def _check_engine(self) -> None:
        """Check that the study has what its engine needs, and nothing that the engine would ignore."""
        execution, steps, is_validated = self.execution, self.contrast_steps, self.validation is not None
        self._check_of_engine(VERL, execution.cluster is not None, "execution.cluster")
        if self.engine == VERL:
            refuse(steps, f"is {steps}", "0, or none, with engine verl", "contrast_steps")
            require(execution, ("cluster", "training_python"), "execution")
            self._check_of_engine(LOCAL, is_validated, "validation")
        else:
            is_ignored = "training_python" in execution.model_fields_set and not self.samples_rollouts_by_vllm
            found = "names an environment of verl or vLLM"
            accepted = "none with engine local, unless training.sampling_backend is vllm"
            refuse(is_ignored, found, accepted, "execution.training_python")
        is_published, accepted = not isinstance(self.problems, sections.DrawnProblems), "none with a published set"
        found = "draws more problems like those of the training"
        refuse(is_validated and is_published, found, accepted, "validation")

    @property
    def samples_rollouts_by_vllm(self) -> bool:
        """Return whether a run of the local engine draws its rollouts by vLLM."""
        of_models = [model.method_training for model in self.models.values()]
        changes = [self.training, *of_models, *(method.training for method in self.methods.values())]
        return any(changed.get("sampling_backend") == "vllm" for changed in changes)
