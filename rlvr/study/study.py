"""A study as the workflow sees it: its runs, benchmarks and settings, resolved and checked before any work starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from evals.core.errors import UserError
from evals.core.files import canonical_json
from rlvr.study.benchmarks import problem_settings, prompt_of, read_benchmarks, training_settings, training_title
from rlvr.study.catalogue import load_catalogue, resolve_method
from rlvr.study.paper_scale import VERL, check_engine, cluster_of, engine_of
from rlvr.study.validation import check, read_schema

BASE = "base"
HUGGING_FACE = "hugging_face"


@dataclass(frozen=True)
class Run:
    """One row of the study's run sheet.

    Attributes:
        run: readable id; the name of the run's directories.
        model: base model.
        method: method's name in the study, or "base" for the base model itself.
        seed: training seed; None for the base model.
        title: of the method, for people.
    """

    run: str
    model: str
    method: str
    seed: int | None
    title: str


@dataclass(frozen=True)
class Study:
    """A checked configuration.

    Attributes:
        config: the configuration as given.
        methods: method's name -> resolved catalogue entry.
        training: method's name -> its training settings: the study's, with the method's own changes.
        changed_by_model: (model, method) -> the method's resolved entry, where the model changes it.
        benchmarks: benchmark's name -> its configuration.
    """

    config: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    training: Mapping[str, Mapping[str, Any]]
    benchmarks: Mapping[str, Mapping[str, Any]]
    changed_by_model: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def resolve(cls, config: Mapping[str, Any], source: str = "config") -> Study:
        """Check a configuration and look up everything it names.

        Raises:
            UserError: one line that names the file, the key and what is accepted.
        """
        check(dict(config), read_schema("config.schema.yaml"), source)
        catalogue = load_catalogue()
        config = _completed(config)
        methods = {
            name: resolve_method(name, _without_training(overrides), catalogue, f"{source}: methods.{name}")
            for name, overrides in config["methods"].items()
        }
        training = {
            name: {**config["training"], **overrides.get("training", {})}
            for name, overrides in config["methods"].items()
        }
        if methods and config["reference_method"] not in methods:
            raise UserError(
                f"{source}: reference_method: is {config['reference_method']!r}; accepted: {', '.join(methods)}"
            )
        for name, settings in training.items():
            changed = "training" in config["methods"][name]
            _check_updates(settings, f"{source}: methods.{name}.training" if changed else f"{source}: training")
        if methods:
            check_engine(config, {"training": config["training"]}, source)
        lacking = [key for key in ("training_threads", "checkpoint_interval") if key not in config["execution"]]
        if methods and lacking:
            raise UserError(f"{source}: execution: lacks {', '.join(lacking)}")
        _check_models(config, source)
        if config.get("problems"):
            training_settings(config["problems"], source)
        by_model = _changed_by_models(config, methods, catalogue, source)
        return cls(config, methods, training, read_benchmarks(config, source), by_model)

    @cached_property
    def trained_runs(self) -> list[Run]:
        """One run per model, method and seed."""
        return [
            Run(f"{model}-{method}-s{seed}", model, method, seed, entry["title"])
            for model in self.config["models"]
            for method, entry in self.methods.items()
            for seed in self.config["seeds"]
        ]

    @cached_property
    def runs(self) -> list[Run]:
        """The base models, then every trained run: everything that is evaluated."""
        bases = [Run(f"{model}-{BASE}", model, BASE, None, "Base model") for model in self.config["models"]]
        return bases + self.trained_runs

    @cached_property
    def _runs_by_id(self) -> dict[str, Run]:
        return {run.run: run for run in self.runs}

    def run(self, identifier: str) -> Run:
        """The run of that id."""
        return self._runs_by_id[identifier]

    def resolved_run(self, identifier: str) -> dict[str, Any]:
        """Content of a run's ``run.json``: everything that determines its outcome."""
        run = self.run(identifier)
        method = self.changed_by_model.get((run.model, run.method), self.methods[run.method])
        pieces = ("version", "reward_shaping", "advantage", "token_weights", "loss", "batching")
        of_verl = {"engine": VERL, "dtype": self.dtype(run.model), "prompt_form": self.prompt_form(run.model)}
        return {
            **(of_verl if self.engine == VERL else {}),
            "run": run.run,
            "model": run.model,
            "base": f"results/base/{run.model}",
            "problems": "results/problems/train",
            "prompt": self.config["problems"]["prompt"],
            "method_name": run.method,
            "method": {piece: method.get(piece) for piece in pieces},
            "seed": run.seed,
            "training": {
                **self.config["training"],
                **self._training_of_model(run.model),
                **self.config["methods"][run.method].get("training", {}),
            },
        }

    @property
    def engine(self) -> str:
        """What trains the runs: ``local`` or ``verl``."""
        return engine_of(self.config)

    def cluster(self, identifier: str) -> dict[str, Any]:
        """Content of a run's ``cluster.json``, in a study trained by verl."""
        return cluster_of(self.config, self.run(identifier).model)

    def _training_of_model(self, model: str) -> Mapping[str, Any]:
        """Training settings that a model taken in brings; ``training`` of one made here is how it was made."""
        entry: Mapping[str, Any] = self.config["models"][model]
        return entry.get("training", {}) if entry["source"] == HUGGING_FACE else {}

    def checkpoint_manifest(self, identifier: str) -> str:
        """The manifest of the checkpoint that a run evaluates."""
        run = self.run(identifier)
        if run.method == BASE:
            return f"results/base/{run.model}/manifest.json"
        return f"results/runs/{run.run}/manifest.json"

    def problem_settings(self, benchmark: str) -> dict[str, Any]:
        """What decides a benchmark's problems."""
        return problem_settings(benchmark, self.benchmarks[benchmark])

    @cached_property
    def training_settings(self) -> dict[str, Any]:
        """What decides the problems that the methods are trained on; empty in a study without methods."""
        problems = self.config.get("problems")
        return training_settings(problems, str(self.config["study"])) if problems else {}

    @property
    def training_problems(self) -> str:
        """What the methods are trained on, in words."""
        return training_title(self.config["problems"], str(self.config["study"]))

    def prompt_form(self, model: str) -> str:
        """Whether a model is given plain text (``base``) or the user's turn of a chat (``chat``)."""
        return str(self.config["models"][model].get("prompt", "base"))

    def prompt(self, benchmark: str, model: str) -> str:
        """The prompt template that a benchmark's problems are put into for a model."""
        return prompt_of(self.benchmarks[benchmark], self.prompt_form(model))

    def dtype(self, model: str) -> str:
        """In which a model is sampled; ``auto`` is the checkpoint's own."""
        entry = self.config["models"][model]
        return str(entry.get("dtype", "auto")) if entry["source"] == HUGGING_FACE else "float32"

    @cached_property
    def models_from_scratch(self) -> list[str]:
        """The models that the study trains; the others are taken in."""
        return [name for name, model in self.config["models"].items() if model["source"] != HUGGING_FACE]

    def run_sheet(self) -> str:
        """All runs as JSON, for the commands that make tables and figures."""
        return canonical_json([vars(run) for run in self.runs])


def _completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with what a study of models alone may leave out: such a study trains nothing."""
    if config.get("methods"):
        return dict(config)
    return {**config, "methods": {}, "seeds": [], "training": {}, "problems": None, "reference_method": BASE}


def _without_training(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What a study changes of a method's catalogue entry, which knows nothing of training settings."""
    return {key: value for key, value in overrides.items() if key != "training"}


def _changed_by_models(
    config: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]],
    catalogue: Mapping[str, Any],
    source: str,
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Methods that a model changes on top of what the study does, such as a coefficient published for one size."""
    changed: dict[tuple[str, str], Mapping[str, Any]] = {}
    for model, settings in config["models"].items():
        for name, overrides in settings.get("methods", {}).items():
            where = f"{source}: models.{model}.methods.{name}"
            if name not in methods:
                raise UserError(f"{where}: is no method of the study; accepted: {', '.join(methods)}")
            parent = resolve_method(name, _without_training(config["methods"][name]), catalogue, where)
            entry = resolve_method(name, overrides, {name: {**parent, "version": 1}}, where)
            changed[model, name] = {**entry, "version": parent["version"]}
    return changed


def _check_updates(training: Mapping[str, Any], source: str) -> None:
    """What a schema cannot say of training settings."""
    rollouts = training["prompts_per_step"] * training["samples_per_prompt"]
    if training["updates_per_step"] > training["prompts_per_step"]:
        raise UserError(
            f"{source}.updates_per_step: is {training['updates_per_step']}; accepted: at most "
            f"prompts_per_step, {training['prompts_per_step']}, so that every update has a prompt of its own"
        )
    if rollouts % training["updates_per_step"]:
        raise UserError(
            f"{source}.updates_per_step: is {training['updates_per_step']}; accepted: a divisor of "
            f"prompts_per_step * samples_per_prompt, {rollouts}"
        )


def _check_models(config: Mapping[str, Any], source: str) -> None:
    """What a schema cannot say of base models."""
    for name, model in config["models"].items():
        if model["source"] == HUGGING_FACE:
            _check_hugging_face(name, config, source)
            continue
        missing = [key for key in ("base_threads",) if key not in config["execution"]]
        if missing:
            raise UserError(f"{source}: execution: lacks {', '.join(missing)}")
        corpus, architecture = model["corpus"], model["architecture"]
        if len(corpus["error_rates"]) != len(corpus["shares"]) or abs(sum(corpus["shares"]) - 1) > 1e-9:
            raise UserError(
                f"{source}: models.{name}.corpus.shares: is {corpus['shares']}; accepted: one share for each of "
                f"error_rates, {len(corpus['error_rates'])} in all, that sum to 1"
            )
        if architecture["num_attention_heads"] % architecture["num_key_value_heads"]:
            raise UserError(
                f"{source}: models.{name}.architecture.num_key_value_heads: is {architecture['num_key_value_heads']}; "
                f"accepted: a divisor of num_attention_heads, {architecture['num_attention_heads']}"
            )


def _check_hugging_face(name: str, config: Mapping[str, Any], source: str) -> None:
    """What a schema cannot say of a model that is taken in."""
    if config["methods"] and engine_of(config) != VERL:
        raise UserError(
            f"{source}: models.{name}.source: is {HUGGING_FACE} in a study with methods; accepted: from_scratch, "
            "engine verl, or no methods: the local engine trains what the study made"
        )
    dtype = config["models"][name].get("dtype", "auto")
    if config["evaluation"].get("backend", "local") == "local" and dtype != "float32":
        raise UserError(
            f"{source}: models.{name}.dtype: is {dtype} with evaluation.backend local; accepted: float32, or backend "
            "transformers or vllm"
        )
