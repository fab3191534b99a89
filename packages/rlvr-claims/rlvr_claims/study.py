"""What is made of a study: the runs that claims are measured on, and the pairs of models that decode together.

The workflow asks here which files there are; nothing imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from evals.core.comparisons import Claim
from evals.core.config.problem_sets import GeneratedBenchmark
from evals.core.errors import InvalidInput, UserError
from evals.core.records import Run
from evals.core.sampling import OfBenchmark, Sampling
from evals.core.yaml_file import read_yaml
from evals.generation.backend import BACKENDS
from evals.grading.verdict import Kind
from rlvr.study.studies import Studies
from rlvr.study.study import TRAIN, TRAINING_PROBLEMS, Study
from rlvr_claims import TABLE_VERSIONS
from rlvr_claims.claims.base import Need, claims_left_out, find_claim, measurable_claims
from rlvr_claims.decoding import SCHEMES
from rlvr_claims.settings import ClaimsConfig, ClaimsFile, DecodingBenchmark, DecodingConfig, DecodingProblems

TOKENS, DECODING = "results/claims/tokens", "results/claims/decoding"
_KINDS = (Kind.COMPLETION.value, Kind.LAST_STATEMENT.value, Kind.CHOICE.value)
"""The kinds of grading that a sweep has."""
_TITLES = {
    "replacement": "{}: replacement, base driving",
    "extrapolation_base": "{}: extrapolation, base driving",
    "extrapolation_trained": "{}: extrapolation, trained driving",
}


def read_file(path: Path) -> tuple[ClaimsFile, Path, Studies]:
    """Read a file of this package: its settings, the path of the study's file, and the study."""
    settings = ClaimsFile.parse(read_yaml(path), str(path))
    extended = (path.parent / settings.extends).resolve()
    if not extended.is_file():
        accepted = "a study's file, as seen from the directory of this one"
        raise InvalidInput(str(path), "extends", f"is {settings.extends}, and there is no such file", accepted)
    studies = Studies.read([extended], {})
    if studies.main.folder or not studies.main.methods:
        found = "compares no methods" if not studies.main.methods else f"has the folder {studies.main.folder}"
        raise InvalidInput(str(path), "extends", f"is {settings.extends}, which {found}", "a study that trains")
    return settings, extended, studies


@dataclass(frozen=True)
class MeasuredRuns:
    """The runs of a study that claims are measured on, all of its first model and one a seed."""

    studies: Studies
    settings: ClaimsConfig

    @cached_property
    def names(self) -> dict[Need, list[str]]:
        """The names that meet each need: of runs, or of a benchmark.

        Raises:
            InvalidInput: the settings name something that does not exist, or that cannot be measured.
        """
        study, settings = self.studies.main, self.settings
        if study.engine != "local":
            raise InvalidInput("", "claims", "are of runs of engine local", f"none with engine {study.engine}")
        if study.config.samples_rollouts_by_vllm:
            raise InvalidInput("", "claims", "are of rollouts of the trainer's own sampler", "none with vLLM's")
        model, seeds = next(iter(study.config.models)), study.config.training_seeds[: settings.seeds]
        for key in ("method", "weighting_method"):
            if (method := getattr(settings, key)) is not None:
                if method not in study.methods:
                    raise InvalidInput("", f"claims.{key}", f"is {method!r}", ", ".join(study.methods))
                last = study.run_spec(f"{model}-{method}-s{seeds[0]}").training.least_steps
                if max(settings.steps) > last:
                    raise InvalidInput("", "claims.steps", f"are {list(settings.steps)}", f"1 to {last}")
        if settings.benchmark not in study.benchmarks:
            raise InvalidInput("", "claims.benchmark", f"is {settings.benchmark!r}", ", ".join(study.benchmarks))
        if graded := {TRAIN, settings.benchmark} & study.verifiers.keys():
            found = f"measure correctness by the project's grader, and {sorted(graded)[0]} has a verifier"
            raise InvalidInput("", "claims", found, "none")
        if settings.benchmark in study.by_last_statement:
            found = f"is {settings.benchmark}, which has extraction last_statement"
            raise InvalidInput("", "claims.benchmark", found, "a benchmark with extraction marked")
        names = {Need.BENCHMARK: [settings.benchmark]}
        for need in (need for need in Need if need.key and need is not Need.BENCHMARK):
            named = getattr(settings, need.key)
            methods = [named] if isinstance(named, str) else named or ()
            names[need] = [f"{model}-{method}-s{seed}" for method in methods for seed in seeds]
            for run in names[need]:
                self.policy(run, f"claims.{need.key}")
        return names

    def policy(self, run: str, key: str = "") -> tuple[str, str]:
        """The directory of a run, or of a checkpoint that a run kept, and the file that stands for it."""
        try:
            policy = self.studies.policy(run)
        except UserError:
            raise InvalidInput("", key, f"no study has the run {run}", "methods of some study") from None
        return policy.directory, policy.file

    @cached_property
    def replayed(self) -> list[str]:
        """The runs that are replayed for token tables."""
        return list(dict.fromkeys([*self.names[Need.TOKEN_TABLES], *self.names[Need.WEIGHTING_TABLES]]))

    def table_version(self, run: str) -> int:
        """The version of a run's token table and probes."""
        return TABLE_VERSIONS[self.studies.policy(run).study.resolved_run(run).get("dtype", "float32")]

    @cached_property
    def token_pages(self) -> list[str]:
        """Pages of the first seed's rollouts, of the method that is looked into and of the one that weighs tokens."""
        runs = [*self.names[Need.TOKEN_TABLES][:1], *self.names[Need.WEIGHTING_TABLES][:1]]
        return [f"{TOKENS}/{run}/step-{step}.html" for run in runs for step in self.settings.steps]

    @cached_property
    def claims(self) -> list[str]:
        """The claims that can be measured."""
        return measurable_claims(self.settings.to_json()) if self.names else []

    @cached_property
    def left_out(self) -> list[str]:
        """The other claims, each with what it needs."""
        return claims_left_out(self.settings.to_json())

    def files_of(self, claim: str) -> list[str]:
        """The files that stand for everything that a claim is measured on."""
        forms = {
            Need.TOKEN_TABLES: f"{TOKENS}/{{}}/manifest.json",
            Need.PROBES: f"{TOKENS}/{{}}/probes.manifest.json",
            Need.WEIGHTING_TABLES: f"{TOKENS}/{{}}/manifest.json",
            Need.BENCHMARK: "results/problems/{}/manifest.json",
        }
        return [
            forms[need].format(name) if need in forms else self.policy(name)[1]
            for need in _needs(claim)
            for name in self.names[need]
        ]

    def options_of(self, claim: str) -> list[str]:
        """The options of `measure` for a claim; a kept checkpoint is named by its directory below results/runs."""
        values: dict[str, list[str]] = {}
        for need in _needs(claim):
            names = self.names[need]
            if need in (Need.TOKEN_TABLES, Need.WEIGHTING_TABLES):
                names = [f"{TOKENS}/{run}" for run in names]
            elif need in (Need.COMPARED_RUNS, Need.SELECTED_RUNS):
                names = [self.policy(run)[0].removeprefix("results/runs/") for run in names]
            if need.option:
                values.setdefault(need.option, []).extend(names)
        if Need.BENCHMARK in _needs(claim) and self.settings.benchmark_problems is not None:
            values["--benchmark-problems"] = [str(self.settings.benchmark_problems)]
        return [word for option, names in values.items() if names for word in (option, *names)]


def _needs(claim: str) -> list[Need]:
    declared = find_claim(claim)
    return [need for need in Need if need in declared.needs | declared.uses]


class DecodedRun(NamedTuple):
    """A row of the table for one seed: both models decode by a scheme (:data:`rlvr_claims.decoding.SCHEMES`).

    The method of ``run`` is the reference method's with the scheme's name behind it; ``trained`` has the trained model.
    """

    run: Run
    trained: Run
    scheme: str


@dataclass(frozen=True)
class DecodedModels:
    """The reference method's runs of a study, each of which decodes together with its base model."""

    study: Study
    settings: DecodingConfig

    def check(self) -> None:
        """Refuse what would only be found after the training runs."""
        evaluation = self.study.config.evaluation
        if self.taken is None and not self._kinds:
            accepted = "a generated benchmark, or one that decoding.problems names (docs/decoding.md)"
            raise UserError(f"decoding: needs problems that are not scored; accepted: {accepted}")
        could = [name for name in self.study.benchmarks if self._may_be_chosen_on(name)]
        if self.taken and self.taken.benchmark not in could:
            accepted = ", ".join(could) or "a benchmark of mathematics or choices that is not gated"
            raise InvalidInput("", "decoding.problems.benchmark", f"is {self.taken.benchmark!r}", accepted)
        if not self._others:
            found, accepted = "is the study's only benchmark", "one beside those reported"
            raise InvalidInput("", "decoding.problems.benchmark", found, accepted)
        if unknown := [name for name in self.settings.benchmarks or () if name not in self._others]:
            raise InvalidInput("", "decoding.benchmarks", f"has {unknown[0]!r}", ", ".join(self._others))
        if not BACKENDS[backend := evaluation.backend or "local"].in_step:
            able = ", ".join(name for name, entry in BACKENDS.items() if entry.in_step)
            raise InvalidInput("", "evaluation.backend", f"is {backend} in decoding with two models", able)
        if evaluation.stop:
            raise InvalidInput("", "evaluation.stop", "is given in decoding with two models", "none")

    # The models

    @cached_property
    def trained(self) -> list[Run]:
        """The runs of the reference method."""
        config = self.study.config
        of_reference = [run for run in self.study.trained_runs if run.method == config.reference_method]
        return [run for run in of_reference if run.seed in config.training_seeds[: self.settings.seeds]]

    @cached_property
    def decoded(self) -> dict[str, DecodedRun]:
        """Run id -> run that both models decode together."""
        rows = dict[str, DecodedRun]()
        for scheme, trained in product(SCHEMES, self.trained):
            method, title = f"{trained.method}_{scheme}", _TITLES[scheme].format(trained.title)
            name = f"{trained.model}-{method}-s{trained.seed}"
            run = trained.model_copy(update={"run": name, "method": method, "title": title})
            rows[name] = DecodedRun(run, trained, scheme)
        return rows

    @cached_property
    def sheet(self) -> list[Run]:
        """All runs that are compared: bases, the reference method's, and both together."""
        bases = [run for run in self.study.runs if run.seed is None]
        return [*bases, *self.trained, *(row.run for row in self.decoded.values())]

    @property
    def compared_by(self) -> dict[str, Any]:
        """How they are compared: these very checkpoints, with all benchmarks alike in the mean."""
        config = self.study.config
        alike = config.statistics.model_copy(update={"weighting": None})
        return {"reference_method": config.reference_method, "statistics": alike, "claim": Claim.CHECKPOINTS}

    def models(self, run: str) -> tuple[str, str]:
        """The directories of the base and of the trained model of a run, or of one that is decoded."""
        trained = self.decoded[run].trained if run in self.decoded else self.study.run(run)
        return f"results/base/{trained.base_model}", self.study.checkpoint(trained.run)

    @property
    def grades(self) -> list[str]:
        """The directories of the grades of all runs."""
        return [f"{DECODING if run.run in self.decoded else 'results'}/grades/{run.run}" for run in self.sheet]

    # The problems

    @property
    def taken(self) -> DecodingBenchmark | None:
        """The part of a benchmark that thresholds are chosen on; None where problems are drawn."""
        return self.settings.problems if isinstance(self.settings.problems, DecodingBenchmark) else None

    @cached_property
    def benchmarks(self) -> list[str]:
        """The benchmarks that are reported."""
        return [name for name in self._others if name in (self.settings.benchmarks or self._others)]

    @property
    def _others(self) -> list[str]:
        return [name for name in self.study.benchmarks if not self.taken or name != self.taken.benchmark]

    @cached_property
    def _kinds(self) -> list[dict[str, Any]]:
        entries = [benchmark.entry for benchmark in self.study.benchmarks.values()]
        kinds = [entry.kind for entry in entries if isinstance(entry, GeneratedBenchmark)]
        return [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]

    @property
    def _generated(self) -> list[str]:
        return [name for name, benchmark in self.study.benchmarks.items() if benchmark.entry.source == "generated"]

    @property
    def choosing_problems(self) -> dict[str, Any]:
        """The function that makes the problems on which thresholds are chosen, and its arguments."""
        if self.taken is not None:
            benchmark = Path(f"results/problems/{self.taken.benchmark}")
            call = "rlvr_claims.decoding.jobs:take_problems"
            return {"call": call, "arguments": {"benchmark": benchmark, "count": self.taken.count}}
        assert isinstance(self.settings.problems, DecodingProblems)
        drawn = {"kinds": self._kinds, **self.settings.problems.to_json(), "name": "decoding", "split": "evaluation"}
        without = [Path(f"results/problems/{name}/problems.jsonl") for name in self._generated]
        return {"call": "evals.problems.arithmetic:write_problems", "arguments": {**drawn, "without": without}}

    @property
    def choosing_sources(self) -> list[str]:
        """The problem sets that these are taken from, or are other problems than."""
        names = [self.taken.benchmark] if self.taken else self._generated
        return [f"results/problems/{name}/manifest.json" for name in names]

    @property
    def trained_on_or_reported(self) -> list[str]:
        """Files of problems, none of which thresholds may be chosen on; a gated benchmark's texts are in none."""
        corpora = [f"results/base/{model}/corpus.jsonl.bz2" for model in self.study.scratch_bases]
        solutions = [file for model in self.study.fine_tuned_models for file in self.study.solutions(model)]
        scored = [name for name in (self.benchmarks if self.taken else self._generated) if not self._is_gated(name)]
        files = [
            TRAINING_PROBLEMS,
            *corpora,
            *solutions,
            *(f"results/problems/{name}/problems.jsonl" for name in scored),
        ]
        return list(dict.fromkeys(files))

    @property
    def note(self) -> str:
        """The sentences under table and page that say where the thresholds are from."""
        where = "other problems of the same kinds"
        if self.taken:
            part = f"the first {self.taken.count} problems of " if self.taken.count else ""
            where = f"{part}the benchmark {self.taken.benchmark}, which is not reported here"
        return (
            f"Thresholds and gamma were chosen on {where}. Base, trained model and both together have the same random"
            " numbers."
        )

    # How they are sampled and graded

    def sampling(self, run: str) -> Sampling:
        """The settings of sampling of a run, on one GPU."""
        return self.study.sampling(self._model(run)).model_copy(update={"tensor_parallel_size": 1})

    def _model(self, run: str) -> str:
        return (self.decoded[run].run if run in self.decoded else self.study.run(run)).model

    def of_benchmark(self, benchmark: str, run: str) -> OfBenchmark:
        """The settings of sampling that a benchmark has of its own."""
        samples = self.study.config.evaluation.samples(benchmark)
        return OfBenchmark(prompt=self.study.prompt(benchmark, self._model(run)), samples_per_problem=samples)

    def of_choosing(self, run: str) -> OfBenchmark:
        """The same of the problems that thresholds are chosen on: drawn ones have the prompt of the training."""
        if self.taken is not None:
            return self.of_benchmark(self.taken.benchmark, run)
        problems = self.study.config.problems
        assert problems is not None, "a study with methods has problems"
        return OfBenchmark(prompt=problems.prompt, samples_per_problem=self.study.config.evaluation.samples_per_problem)

    @property
    def choosing_kind(self) -> str:
        """The form in which the answers to the problems are read that thresholds are chosen on."""
        return self.study.grading(self.taken.benchmark)[0] if self.taken else Kind.COMPLETION.value

    def _may_be_chosen_on(self, benchmark: str) -> bool:
        """Return whether a sweep can grade a benchmark, and its problems can be written as a set of their own."""
        return self.study.grading(benchmark)[0] in _KINDS and not self._is_gated(benchmark)

    def _is_gated(self, benchmark: str) -> bool:
        return bool(getattr(self.study.benchmarks[benchmark].entry, "gated", False))
