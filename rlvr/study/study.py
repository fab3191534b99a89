"""A study as the workflow sees it: its runs, benchmarks and settings, resolved and checked before any work starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.core.config.base_models import Existing, FineTuned, FromScratch, HuggingFace, Served
from evals.core.config.problem_sets import PublishedSet
from evals.core.config.sections import PublishedProblems
from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput
from evals.core.files import canonical_json
from evals.core.records import BASE, Run, base_name
from evals.core.run_spec import (
    VERL,
    Cluster,
    ContrastMeasurement,
    Head,
    LocalRun,
    RunSpec,
    TrainingExecution,
    ValidationSchedule,
    divide_overrides,
    parse_run,
    parts_in_files,
)
from evals.core.sampling import BenchmarkSampling, Prompting, Sampling
from evals.core.training_settings import LocalTraining, VerlTraining
from evals.grading import CHOICE_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERIFIER_VERSION
from evals.grading.code import VERSION as CODE_GRADER_VERSION
from evals.grading.verdict import CODE, VERIFIER, Kind
from rlvr.study.benchmarks import (
    StudyBenchmark,
    absolute_path,
    read_benchmarks,
    require_solutions,
    training_settings,
    training_title,
    training_verifier,
)
from rlvr.study.catalogue import (
    Entry,
    changed_by_models,
    entry_of_run,
    entry_that_changes,
    load_catalogue,
    resolve_method,
)
from rlvr.study.designs import with_design
from rlvr.study.study_file import read_study_file

TRAIN, VALIDATION = "train", "validation"
"""The names of the problems that methods train on and are scored on meanwhile, beside the benchmarks' names."""
OF_PROBLEMS = "problems"
"""The value of a fine-tuned model's ``solutions`` that stands for those of the training problems."""
DEFAULT_STEPS = 4
"""The number of steps of a run at which its contrast is measured."""
TRAINING_PROBLEMS = f"results/problems/{TRAIN}/problems.jsonl"


def spread(steps: int, count: int) -> tuple[int, ...]:
    """The middles of ``count`` equal parts of a run, from 1: of 24 steps 4 are 3, 9, 15 and 21."""
    return tuple(sorted({math.ceil(steps * (2 * part + 1) / (2 * count)) for part in range(count)}))


def solution_settings(config: StudyConfig, problems: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Look up the sets of solutions that models are fine-tuned on; one that has none is an :class:`InvalidInput`.

    Args:
        problems: the settings of the training problems, which a model may be fine-tuned on too.
    """
    settings_of_sets: dict[str, dict[str, Any]] = {}
    for name, model in config.models.items():
        for named in model.named_solutions if isinstance(model, FineTuned) else ():
            key = f"models.{name}.solutions"
            if isinstance(named, PublishedSet):
                settings = training_settings(named, source, key)
                require_solutions(settings, named.source, source, key)
                if settings_of_sets.setdefault(named.source, settings) != settings:
                    other = f"names {named.source} with another path or exclude than a model before"
                    raise InvalidInput(source, key, other)
            elif named == OF_PROBLEMS:
                require_solutions(problems, OF_PROBLEMS, source, key)
    return settings_of_sets


@dataclass(frozen=True)
class Study:
    """A checked configuration with everything that it names looked up.

    Attributes:
        methods: method's name -> resolved catalogue entry.
        changed_methods: (model, method) -> the resolved entry, where the model changes it.
        training: method's name -> its training settings: the study's, with the method's own changes.
        training_settings: the values that decide the problems that the methods train on; empty without methods.
        solution_settings: set's name -> the values that decide the published solutions that models are fine-tuned on.
        source: what messages call it: its file.
        seeds_of: (model, method) -> how many of the seeds, in a study that stops when it is certain; empty: all.
    """

    config: StudyConfig
    methods: Mapping[str, Entry]
    changed_methods: Mapping[tuple[str, str], Entry]
    training: Mapping[str, LocalTraining | VerlTraining]
    benchmarks: Mapping[str, StudyBenchmark]
    training_settings: Mapping[str, Any]
    solution_settings: Mapping[str, Mapping[str, Any]]
    source: str
    seeds_of: Mapping[tuple[str, str], int] = field(default_factory=dict)
    _specs: dict[tuple[str, str], RunSpec] = field(default_factory=dict, init=False, compare=False, repr=False)
    """The resolved runs of each model and method, which differ in their seeds and base models alone."""

    @classmethod
    def read(cls, path: Path) -> Study:
        """Read and resolve a study's configuration, or the study.json of its results."""
        return cls.resolve(read_study_file(path), str(path))

    @classmethod
    def resolve(cls, content: Mapping[str, Any], source: str = "config", is_checked: bool = False) -> Study:
        """Check a configuration and look up everything that it names; what is not accepted is named in one line.

        The runs are not looked at one by one where it ``is_checked``: the process of a job has one of them to do.
        """
        config = StudyConfig.parse(dict(content), source)
        if not config.methods:  # such a study trains nothing
            nothing: dict[str, Any] = {"seeds": (), "training": {}, "problems": None, "reference_method": BASE}
            config = config.model_copy(update=nothing)
        config = with_design(config, source)
        methods = {
            name: resolve_method(name, changes.of_entry, load_catalogue(), f"{source}: methods.{name}")
            for name, changes in config.methods.items()
        }
        benchmarks = read_benchmarks(config.benchmarks, config.benchmark_sources or {}, source)
        training = config.trainings(source)
        problems = training_settings(config.problems, source) if config.problems else {}
        solutions = solution_settings(config, problems, source)
        changed = changed_by_models(config, methods, source)
        study = cls(config, methods, changed, training, benchmarks, problems, solutions, source)
        for run in () if is_checked else study.trained_runs:
            if run.seed == config.training_seeds[0]:
                study.run_spec(run.run, f"{source}: run {run.run}")
        return study

    @property
    def titles(self) -> dict[str, str]:
        """Method's name -> its name for people."""
        return {name: entry["title"] for name, entry in self.methods.items()}

    @cached_property
    def trained_runs(self) -> list[Run]:
        """One run per model, method and seed."""
        return [
            Run(
                run=f"{model}-{method}-s{seed}",
                model=model,
                method=method,
                seed=seed,
                title=entry["title"],
                base=self._base_numbers(model)[(seed - 1) % len(self._base_numbers(model))],
            )
            for model in self.config.models
            for method, entry in self.methods.items()
            for seed in self.seeds(model, method)
        ]

    def _base_numbers(self, model: str) -> list[int | None]:
        """The numbers of a model's base models; the only one has none."""
        return self.models_from_scratch[model].numbers if model in self.models_from_scratch else [None]

    def seeds(self, model: str, method: str) -> tuple[int, ...]:
        """The seeds of a method's training runs."""
        seeds = self.config.training_seeds
        return seeds[: self.seeds_of.get((model, method), 0)] if self.seeds_of else seeds

    @cached_property
    def runs(self) -> list[Run]:
        """The base models, then every trained run: everything that is evaluated."""
        bases = [
            Run(
                run=base_name(f"{name}-{BASE}", number),
                model=name,
                method=BASE,
                seed=None,
                title=self.base_title(name),
                base=number,
            )
            for name in self.config.models
            for number in self._base_numbers(name)
        ]
        return bases + self.trained_runs

    @cached_property
    def _runs_by_id(self) -> dict[str, Run]:
        return {run.run: run for run in self.runs}

    def run(self, identifier: str) -> Run:
        return self._runs_by_id[identifier]

    def run_spec(self, identifier: str, source: str = "run.json") -> RunSpec:
        """Resolve a run: everything that determines its outcome. ``source`` names it where the engine refuses it."""
        run = self.run(identifier)
        pair = run.model, run.method
        if pair not in self._specs:
            self._specs[pair] = self._resolve_run(run, source)
        own = {"run": run.run, "base": f"results/base/{run.base_model}", "seed": run.seed}
        return self._specs[pair].model_copy(update=own)

    def _resolve_run(self, run: Run, source: str) -> RunSpec:
        method = self.changed_methods.get((run.model, run.method), self.methods[run.method])
        model = self.config.models[run.model]
        assert self.config.problems is not None, "a study with methods has problems"
        content = {
            "dtype": model.dtype,
            **({"head_dtype": head} if (head := getattr(model, "head_dtype", None)) else {}),
            "prompt_form": model.prompt_form,
            "chat_template_kwargs": dict(model.chat_template_kwargs),
            "run": run.run,
            "model": run.model,
            "base": f"results/base/{run.base_model}",
            "problems": "results/problems/train",
            "prompt": self.config.problems.prompt,
            "method_name": run.method,
            "method": entry_of_run(method),
            "seed": run.seed,
            "training": self.config.training_of(run.method, source, run.model).identity(),
        }
        if self.engine == VERL:
            content |= {"engine": VERL, "overrides": self._overrides(run.model)[0]}
        if TRAIN in self.verifiers:
            content["verifier"] = {"directory": f"results/verifiers/{TRAIN}", "version": VERIFIER_VERSION}
        if (validation := self.config.validation) is not None:
            schedule = validation.model_dump(include=set(ValidationSchedule.model_fields))
            content["validation"] = {"problems": f"results/problems/{VALIDATION}", **schedule}
        spec = parse_run(content, source)
        if isinstance(spec, LocalRun):
            spec = spec.model_copy(update={"contrast": self._measured_contrast(spec, source)})
        return spec

    def _measured_contrast(self, run: LocalRun, source: str) -> ContrastMeasurement | None:
        """The measurement of a run's contrast with the reference method; None where an angle would say nothing.

        An angle compares what two methods make of the same rollout batch and mini-batch. So it applies where they
        differ in nothing else: both have the same batching (assignment and selection) and the same training settings. A
        method that differs in which rollouts it samples or selects, in how it divides them, or in a learning rate, may
        have an angle of 0 and differ all the same: it has no contrast measured, which is not the same as having none.
        """
        reference, asked = self.config.reference_method, self.config.contrast_steps
        entry, training = entry_of_run(self.methods[reference]), self.config.training_of(reference, source, run.model)
        own, other = (settings.model_copy(update={"early_stop": None}) for settings in (run.training, training))
        if asked == 0 or own != other or run.method["batching"] != entry["batching"]:
            return None
        steps = spread(run.training.steps, DEFAULT_STEPS if asked is None else asked)
        return ContrastMeasurement(reference_method=reference, method=entry, steps=steps)

    def resolved_run(self, identifier: str) -> dict[str, Any]:
        return self.run_spec(identifier).to_json()

    def run_files(self, identifier: str) -> dict[str, str]:
        """The text of a run's files by their names: run.json, and where verl trains, cluster.json."""
        content = {"run.json": self.resolved_run(identifier)}
        content |= {"cluster.json": self.cluster(identifier)} if self.engine == VERL else {}
        return {name: canonical_json(of_file) for name, of_file in content.items()}

    def trains_as(self, other: Study, identifier: str) -> bool:
        """Return whether a run is the same training in both studies; the measured contrast may differ."""
        ours, theirs = (study.resolved_run(identifier) | {"contrast": None} for study in (self, other))
        return ours == theirs

    @property
    def engine(self) -> str:
        return self.config.engine

    @property
    def folder(self) -> str:
        """The directory of what belongs to this study alone, below results/, with a slash; empty: results/ itself."""
        return f"{self.config.folder}/" if self.config.folder else ""

    def cluster(self, identifier: str) -> dict[str, Any]:
        """The content of a run's ``cluster.json``, in a study trained by verl: where the run is carried out."""
        name, execution = self.run(identifier).model, self.config.execution
        shared = execution.model_dump(include=set(TrainingExecution.model_fields))
        content = {**shared, **self._machines(name), "overrides": self._overrides(name)[1]}
        return Cluster.parse(content, f"models.{name}.cluster").to_json()

    def _machines(self, name: str) -> dict[str, Any]:
        """The settings of the cluster for a model, with all overrides of verl's options: the study's and its own."""
        assert self.config.execution.cluster is not None, "a study trained by verl has a cluster"
        model = self.config.models[name]
        of_study, of_model = self.config.execution.cluster.to_json(), getattr(model, "cluster", {})
        return {**of_study, **of_model, "overrides": of_study["overrides"] | of_model.get("overrides", {})}

    def _overrides(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """A model's overrides of verl's options: those that may change results, and those that do not."""
        return divide_overrides(self._machines(name)["overrides"])

    def sampling(self, model: str) -> Sampling:
        """Everything that decides a model's samples but its weights, the problems, their prompt and their number."""
        entry, evaluation = self.config.models[model], self.config.evaluation
        settings = {key: getattr(evaluation, key) for key in BenchmarkSampling.model_fields}
        settings |= {
            key: getattr(entry, key)
            for key in (*Prompting.model_fields, *Head.model_fields, "dtype")
            if hasattr(entry, key)
        }
        return Sampling(**settings | ({"backend": "server"} if model in self.served_models else {}))

    def checkpoint(self, identifier: str) -> str:
        """The directory of the checkpoint that a run evaluates."""
        run = self.run(identifier)
        return f"results/base/{run.base_model}" if run.method == BASE else f"results/runs/{run.run}"

    def solutions(self, model: str) -> list[str]:
        """The files of solutions that a model is fine-tuned on."""
        files = []
        for named in self.fine_tuned_models[model].named_solutions:
            if isinstance(named, PublishedSet):
                files.append(f"results/solutions/{named.source}/problems.jsonl")
            else:
                files.append(TRAINING_PROBLEMS if named == OF_PROBLEMS else absolute_path(named))
        return files

    @cached_property
    def validation_settings(self) -> dict[str, Any]:
        """The values that decide the problems of the validation; empty in a study without it."""
        if self.config.validation is None or not self.methods:
            return {}
        validation = self.config.validation.to_json()
        return {**self.training_settings, "count": validation["count"], "seed": validation["seed"]}

    @cached_property
    def component_files(self) -> list[Path]:
        """The user's files that declare components of the methods."""
        entries = [*self.methods.values(), *self.changed_methods.values()]
        files = dict.fromkeys(part["file"] for entry in entries for part in parts_in_files(entry))
        return list(map(Path, files))

    @cached_property
    def verifiers(self) -> dict[str, str]:
        """The user's files that grade: of the training problems, and of benchmarks by name."""
        named = {name: benchmark.entry.verifier for name, benchmark in self.benchmarks.items()}
        if self.config.problems and self.methods:
            named = {TRAIN: training_verifier(self.config.problems, self.source), **named}
        return {name: absolute_path(path) for name, path in named.items() if path is not None}

    @property
    def by_last_statement(self) -> tuple[str, ...]:
        """The benchmarks whose responses are graded by their last statement where they mark no answer."""
        return tuple(name for name, known in self.benchmarks.items() if known.entry.extraction != "marked")

    def grading(self, benchmark: str) -> tuple[str, Any]:
        """The form in which a benchmark's responses are read, and the version of what grades them."""
        grader = self.benchmarks[benchmark].grader
        if benchmark in self.verifiers:
            return VERIFIER, f"{VERIFIER} {VERIFIER_VERSION}"
        if grader == CODE:
            return CODE, f"{CODE} {CODE_GRADER_VERSION}"
        if grader == Kind.CHOICE:
            return Kind.CHOICE.value, CHOICE_VERSION
        kind = Kind.LAST_STATEMENT if benchmark in self.by_last_statement else Kind.COMPLETION
        return kind.value, GRADER_VERSION

    @property
    def training_problems(self) -> str:
        """The training problems' name for people."""
        assert self.config.problems is not None, "a study with methods has problems"
        return training_title(self.config.problems, self.source)

    def prompt(self, benchmark: str, model: str) -> str:
        """The prompt template that a benchmark's problems are put into for a model."""
        problems, of_benchmark = self.config.problems, self.benchmarks[benchmark]
        default = "training" if isinstance(problems, PublishedProblems) else "benchmark"
        if problems and of_benchmark.grader == "math" and (self.config.evaluation.prompt or default) == "training":
            return problems.prompt
        return of_benchmark.prompt(self.config.models[model].prompt_form)

    @cached_property
    def benchmarks_with_another_prompt(self) -> tuple[str, ...]:
        """The benchmarks whose problems are put into another prompt than in training, choices and programs aside."""
        trained = self.config.problems.prompt if self.config.problems else None
        return tuple(
            name
            for name, benchmark in self.benchmarks.items()
            if benchmark.grader == "math" and any(self.prompt(name, model) != trained for model in self.config.models)
        )

    def published_name(self, model: str) -> str | None:
        """The name that papers give a model, of owner/name the last part; None of a directory, which says nothing."""
        if model in self.models_from_scratch:
            return f"{model}, trained from scratch"
        if model in self.served_models:
            return Path(self.served_models[model].model).name
        existing = self.existing_models.get(model) or self.fine_tuned_models[model]
        return existing.published_as or (Path(existing.id).name if existing.id else None)

    def model_title(self, model: str) -> str:
        """A model's name for people: that of papers, or of its directory."""
        existing = self.existing_models.get(model) or self.fine_tuned_models.get(model)
        return self.published_name(model) or Path(existing.path or "" if existing else "").name

    @cached_property
    def published_methods(self) -> dict[str, dict[str, str]]:
        """Model -> method -> the catalogue's entry that the method is with this model's changes, where there is one."""
        entries: dict[str, dict[str, str]] = {}
        for model, settings in self.config.models.items():
            of_model = settings.methods if isinstance(settings, Existing) else None
            for method, changes in (of_model or {}).items():
                parent = self.config.methods[method].of_entry.get("extends", method)
                if entry := entry_that_changes(parent, changes, load_catalogue()):
                    entries.setdefault(model, {})[method] = entry
        return entries

    def base_title(self, model: str) -> str:
        """Title of a base model: 'Base model', or in a study that only evaluates, the model's own name."""
        if self.methods or model in self.models_from_scratch:
            return "Base model"
        name = self.model_title(model)
        return name if name == model else f"{name} ({model})"

    @cached_property
    def models_from_scratch(self) -> dict[str, FromScratch]:
        return {name: model for name, model in self.config.models.items() if isinstance(model, FromScratch)}

    @cached_property
    def scratch_bases(self) -> dict[str, FromScratch]:
        """The base models that the study trains, by their names below results/base/."""
        return {
            base_name(name, number): model.numbered(number)
            for name, model in self.models_from_scratch.items()
            for number in model.numbers
        }

    @cached_property
    def fine_tuned_models(self) -> dict[str, FineTuned]:
        return {name: model for name, model in self.config.models.items() if isinstance(model, FineTuned)}

    @cached_property
    def existing_models(self) -> dict[str, HuggingFace]:
        """The models that exist: local directories, or commits on the Hugging Face Hub."""
        return {name: model for name, model in self.config.models.items() if isinstance(model, HuggingFace)}

    @cached_property
    def served_models(self) -> dict[str, Served]:
        """The models that servers have."""
        return {name: model for name, model in self.config.models.items() if isinstance(model, Served)}
