"""The jobs of ``snakemake decoding``: two models of the main study decode together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.config.named_study import DecodingBenchmark, DecodingConfig
from evals.core.config.problem_sets import GeneratedBenchmark
from evals.core.errors import InvalidInput, UserError
from evals.core.files import canonical_json
from evals.core.records import Run
from evals.core.yaml_file import read_yaml
from evals.decoding import SCHEMES
from evals.generation.backend import BACKENDS
from evals.grading.verdict import Kind
from rlvr.study.benchmarks import CONFIG
from rlvr.study.plan import Plan
from rlvr.study.rules import manifests, words
from rlvr.study.sampled import SamplingJobs, structured_as_json

_KINDS = (Kind.COMPLETION.value, Kind.CHOICE.value)
"""The kinds of grading that a sweep has."""
_TITLES = {
    "replacement": "{}: replacement, base driving",
    "extrapolation_base": "{}: extrapolation, base driving",
    "extrapolation_trained": "{}: extrapolation, trained driving",
}


@dataclass(frozen=True)
class DecodedRun:
    """A row of the table for one seed: both models decode by a scheme (:data:`evals.decoding.SCHEMES`).

    The method of ``run`` is the reference method's with the scheme's name behind it; ``trained`` has the trained model.
    """

    run: Run
    trained: Run
    scheme: str


class DecodingJobs:
    """The jobs on the checkpoints of the main study's reference method and on their base models.

    Attributes:
        settings: the study's `decoding`, or config/decoding.yaml.
        taken: the problems of the study's benchmark that thresholds are chosen on; None where they are drawn.
        benchmarks: those that are reported.
        trained: the reference method's runs.
        alone: the runs of one model: bases and the reference method's.
        decoded: run id -> run that both models decode together.
        sweeps: the sweeps that thresholds are chosen by.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.sampling = plan, SamplingJobs(plan)
        config = plan.study.config
        file = "config/decoding.yaml"
        self.settings = config.decoding or DecodingConfig.parse(read_yaml(CONFIG / "decoding.yaml"), file)
        self.taken = self.settings.problems if isinstance(self.settings.problems, DecodingBenchmark) else None
        self._others = [name for name in plan.study.benchmarks if not self.taken or name != self.taken.benchmark]
        self.benchmarks = [name for name in self._others if name in (self.settings.benchmarks or self._others)]
        of_reference = [run for run in plan.study.trained_runs if run.method == config.reference_method]
        self.trained = [run for run in of_reference if run.seed in config.seeds[: self.settings.seeds]]
        self.alone = [run for run in plan.study.runs if run.seed is None] + self.trained
        self.sweeps = [f"results/decoding/sweeps/{run.run}/sweep.json" for run in self.trained]
        self.scores = [f"results/decoding/scores/{benchmark}.json" for benchmark in self.benchmarks]
        self.decoded: dict[str, DecodedRun] = {}
        for scheme in SCHEMES:
            for trained in self.trained:
                method, title = f"{trained.method}_{scheme}", _TITLES[scheme].format(trained.title)
                name = f"{trained.model}-{method}-s{trained.seed}"
                run = Run(run=name, model=trained.model, method=method, seed=trained.seed, title=title)
                self.decoded[name] = DecodedRun(run, trained, scheme)
        self._kinds: list[dict[str, Any]] = []
        for entry in (benchmark.entry for benchmark in plan.study.benchmarks.values()):
            if isinstance(entry, GeneratedBenchmark) and entry.kind not in self._kinds:
                self._kinds.append(entry.kind)

    def targets(self) -> list[str]:
        """The files that people look at; UserError if the study cannot be decoded with these settings."""
        self._check()
        names = ("decoding/tables/decoding.md", "decoding/figures/replaced_tokens.png")
        return [f"results/{name}" for name in (*names, "decoding.html")]

    def _check(self) -> None:
        """Refuse what would only be found after the trainings."""
        study, evaluation = self.plan.study, self.plan.study.config.evaluation
        if not study.methods:
            raise UserError("snakemake decoding: needs trained models; accepted: a study that has methods")
        if self.taken is None and not self._kinds:
            accepted = "a generated benchmark, or one that decoding.problems names (docs/decoding.md)"
            raise UserError(f"snakemake decoding: needs problems that are not scored; accepted: {accepted}")
        could = [name for name in study.benchmarks if self._may_be_chosen_on(name)]
        if self.taken and self.taken.benchmark not in could:
            accepted = ", ".join(could) or "a benchmark of mathematics or choices that is not gated"
            raise self._refused("problems.benchmark", f"is {self.taken.benchmark!r}", accepted)
        if not self._others:
            raise self._refused("problems.benchmark", "is the study's only benchmark", "one beside those reported")
        if unknown := [name for name in self.settings.benchmarks or () if name not in self._others]:
            raise self._refused("benchmarks", f"has {unknown[0]!r}", ", ".join(self._others))
        if not BACKENDS[backend := evaluation.backend or "local"].in_step:
            able = ", ".join(name for name, each in BACKENDS.items() if each.in_step)
            raise InvalidInput("", "evaluation.backend", f"is {backend} in snakemake decoding", able)
        if evaluation.stop:
            raise InvalidInput("", "evaluation.stop", "is given in snakemake decoding", "none (docs/decoding.md)")

    def _refused(self, key: str, found: str, accepted: str) -> InvalidInput:
        if self.plan.study.config.decoding is not None:
            return InvalidInput("", f"decoding.{key}", found, accepted)
        return InvalidInput("config/decoding.yaml", key, found, accepted)

    def _may_be_chosen_on(self, benchmark: str) -> bool:
        """Return whether a sweep can grade a benchmark, and its problems can be written as a set of their own."""
        return self.sampling.grading_kind(benchmark) in _KINDS and not self._is_gated(benchmark)

    def _is_gated(self, benchmark: str) -> bool:
        return bool(getattr(self.plan.study.benchmarks[benchmark].entry, "gated", False))

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

    @property
    def trained_on_or_reported(self) -> list[str]:
        """Files of problems, none of which thresholds may be chosen on; a gated benchmark's texts are in none."""
        scored = self.benchmarks if self.taken else self.plan.generated
        named = [name for name in scored if not self._is_gated(name)]
        return self.plan.trained_on + [f"results/problems/{name}/problems.jsonl" for name in named]

    def kinds(self) -> str:
        """Families and lengths of the problems that thresholds are chosen on: those of the generated benchmarks."""
        return canonical_json(self._kinds)

    def run_sheet(self) -> str:
        """All runs of the table."""
        return canonical_json([run.to_json() for run in [*self.alone, *(each.run for each in self.decoded.values())]])

    def pair(self, run: str) -> list[str]:
        """Manifests of the base and of the trained model of a run."""
        return [self.plan.base_manifest(run), self.plan.checkpoint_manifest(run)]

    def pair_of_decoded(self, decoded: str) -> list[str]:
        """Manifests of base and trained model of a run that both decode."""
        return self.pair(self.decoded[decoded].trained.run)

    def _pair_options(self, run: str, benchmark: str = "") -> dict[str, Any]:
        """Models and sampling."""
        settings = structured_as_json(self.sampling.evaluation(run, benchmark))
        settings["batch_size"] = settings.pop("sampling_batch_size")
        settings.pop("tensor_parallel_size")
        base, trained = (str(Path(path).parent) for path in self.pair(run))
        settings |= {"base": base, "trained": trained, "threads": self.plan.execution["sampling_threads"]}
        return {**settings, "device": self.plan.execution["device"]}

    def sweep_options(self, run: str) -> list[str]:
        """Options of a sweep; prompts as in training, where generated problems of every kind have one form."""
        keys = ("criteria", "fractions", "extrapolation_fractions", "gammas")
        grid = {key: list(getattr(self.settings, key)) for key in keys}
        if self.taken:
            benchmark = self.taken.benchmark
            own = {"prompt": self.sampling.prompt(run, benchmark), "kind": self.sampling.grading_kind(benchmark)}
            return words({**self._pair_options(run, benchmark), **own, **grid})
        problems = self.plan.study.config.problems
        assert problems is not None, "a study with methods has problems"
        return words({**self._pair_options(run), "prompt": problems.prompt, **grid})

    def sampling_options(self, decoded: str, benchmark: str) -> list[str]:
        """Options of a run that both models decode."""
        row = self.decoded[decoded]
        prompt = self.sampling.prompt(row.trained.run, benchmark)
        return words({**self._pair_options(row.trained.run, benchmark), "prompt": prompt, "scheme": row.scheme})

    def other_benchmarks(self, decoded: str, benchmark: str) -> str:
        """The other reported benchmarks, which a job goes on with once it has loaded the models."""
        others = [name for name in self.benchmarks if name != benchmark]
        return self.sampling.own_settings(self.decoded[decoded].trained.run, others)

    def grades(self, benchmark: str) -> list[str]:
        """The grades of all runs of the table on a benchmark: of one model from the study, of both from here."""
        alone = [f"results/grades/{run.run}/{benchmark}" for run in self.alone]
        return alone + [f"results/decoding/grades/{run}/{benchmark}" for run in self.decoded]

    def grade_manifests(self, benchmark: str) -> list[str]:
        return manifests(self.grades(benchmark))
