"""The jobs of ``snakemake decoding``: two models of the main study decode together."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.config.decoding import DecodingBenchmark, DecodingConfig, DecodingProblems
from evals.core.config.problem_sets import GeneratedBenchmark
from evals.core.errors import InvalidInput, UserError
from evals.core.records import Run
from evals.core.sampling import OfBenchmark, Sampling
from evals.core.yaml_file import read_yaml
from evals.decoding import SCHEMES
from evals.generation.backend import BACKENDS
from evals.grading.verdict import Kind
from rlvr.stages import decode, evaluate, shown
from rlvr.stages.stage import Stage
from rlvr.study.plan import Plan, problem_set, results_of, scores_of
from rlvr.study.source_files import CONFIG

_FOLDER = "decoding/"
_PROBLEMS = Path("results/decoding/problems/manifest.json")
_KINDS = (Kind.COMPLETION.value, Kind.LAST_STATEMENT.value, Kind.CHOICE.value)
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
        self.plan = plan
        config = plan.study.config
        file = "config/decoding.yaml"
        self.settings = config.decoding or DecodingConfig.parse(read_yaml(CONFIG / "decoding.yaml"), file)
        self.taken = self.settings.problems if isinstance(self.settings.problems, DecodingBenchmark) else None
        self._others = [name for name in plan.study.benchmarks if not self.taken or name != self.taken.benchmark]
        self.benchmarks = [name for name in self._others if name in (self.settings.benchmarks or self._others)]
        of_reference = [run for run in plan.study.trained_runs if run.method == config.reference_method]
        self.trained = [run for run in of_reference if run.seed in config.training_seeds[: self.settings.seeds]]
        self.alone = [run for run in plan.study.runs if run.seed is None] + self.trained
        self.sweeps = tuple(Path(f"results/decoding/sweeps/{run.run}/sweep.json") for run in self.trained)
        self.decoded: dict[str, DecodedRun] = {}
        for scheme in SCHEMES:
            for trained in self.trained:
                method, title = f"{trained.method}_{scheme}", _TITLES[scheme].format(trained.title)
                name = f"{trained.model}-{method}-s{trained.seed}"
                run = Run(run=name, model=trained.model, method=method, seed=trained.seed, title=title)
                self.decoded[name] = DecodedRun(run, trained, scheme)
        entries = {name: benchmark.entry for name, benchmark in plan.study.benchmarks.items()}
        self._generated = [name for name, entry in entries.items() if entry.source == "generated"]
        self._kinds: list[dict[str, Any]] = []
        for entry in (benchmark.entry for benchmark in plan.study.benchmarks.values()):
            if isinstance(entry, GeneratedBenchmark) and entry.kind not in self._kinds:
                self._kinds.append(entry.kind)

    def check(self) -> None:
        """Refuse what would only be found after the trainings."""
        study, evaluation = self.plan.study, self.plan.study.config.evaluation
        if not study.methods:
            raise UserError("snakemake decoding: needs trained models; accepted: a study that has methods")
        if study.folder:
            raise InvalidInput("", "folder", f"is {study.config.folder} in snakemake decoding", "none")
        if self.taken is None and not self._kinds:
            accepted = "a generated benchmark, or one that decoding.problems names (docs/diagnostics.md)"
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
            able = ", ".join(name for name, entry in BACKENDS.items() if entry.in_step)
            raise InvalidInput("", "evaluation.backend", f"is {backend} in snakemake decoding", able)
        if evaluation.stop:
            raise InvalidInput("", "evaluation.stop", "is given in snakemake decoding", "none (docs/diagnostics.md)")

    def _refused(self, key: str, message: str, accepted: str) -> InvalidInput:
        if self.plan.study.config.decoding is not None:
            return InvalidInput("", f"decoding.{key}", message, accepted)
        return InvalidInput("config/decoding.yaml", key, message, accepted)

    def _may_be_chosen_on(self, benchmark: str) -> bool:
        """Return whether a sweep can grade a benchmark, and its problems can be written as a set of their own."""
        return self.plan.grading(benchmark).kind in _KINDS and not self._is_gated(benchmark)

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
        scored = self.benchmarks if self.taken else self._generated
        named = [name for name in scored if not self._is_gated(name)]
        return self.plan.trained_on + [f"results/problems/{name}/problems.jsonl" for name in named]

    def stages(self, note: str) -> Iterator[Stage]:
        """The stages, down to the page; ``note`` says what the numbers are evidence of."""
        yield self._choosing_problems()
        files = tuple(map(Path, self.trained_on_or_reported))
        yield decode.CheckChoosingProblems(name="problems", benchmark=_PROBLEMS, trained_on=files)
        for run in self.trained:
            yield self._sweep(run)
        yield decode.ChooseThresholds(sweeps=self.sweeps, name="chosen")
        for name, row in self.decoded.items():
            yield from self._evaluation(name, row)
        runs = [*self.alone, *(row.run for row in self.decoded.values())]
        yield shown.WriteRuns(folder=_FOLDER, sheet=tuple(run.to_json() for run in runs))
        yield from self._scores()
        yield from self._shown((self.note, note))

    def _choosing_problems(self) -> Stage:
        if self.taken is not None:
            benchmark = problem_set(self.taken.benchmark)
            return decode.TakeChoosingProblems(name="problems", benchmark=benchmark, count=self.taken.count)
        assert isinstance(self.settings.problems, DecodingProblems)
        drawn = {"kinds": self._kinds, "count": self.settings.problems.count, "seed": self.settings.problems.seed}
        without = [f"results/problems/{name}/problems.jsonl" for name in self._generated]
        content = {"name": "problems", "split": "evaluation", **drawn, "without": without}
        return decode.DrawChoosingProblems.parse(content, "decoding.problems")

    def _models(self, run: str) -> tuple[Path, Path]:
        """The manifests of the base and of the trained model of a run."""
        return self.plan.base_manifest(run), Path(self.plan.checkpoint_manifest(run))

    def _sampling(self, run: str) -> Sampling:
        """The settings of sampling of a run, on one GPU."""
        return self.plan.sampling(run).model_copy(update={"tensor_parallel_size": 1})

    def _sweep(self, run: Run) -> Stage:
        """A sweep; prompts as in training, where generated problems of every kind have one form."""
        base, trained = self._models(run.run)
        problems = self.plan.study.config.problems
        assert problems is not None, "a study with methods has problems"
        samples = self.plan.study.config.evaluation.samples_per_problem
        own, grading = OfBenchmark(prompt=problems.prompt, samples_per_problem=samples), Kind.COMPLETION.value
        if self.taken:
            own = self.plan.own_settings(run.run, self.taken.benchmark)
            grading = self.plan.grading(self.taken.benchmark).kind
        keys = ("criteria", "fractions", "extrapolation_fractions", "gammas")
        return decode.Sweep(
            decoded=run.run,
            base=str(base.parent),
            trained=str(trained.parent),
            models=(base, trained),
            problems=_PROBLEMS,
            disjoint=_PROBLEMS.with_name("disjoint.json"),
            sampling=self._sampling(run.run),
            own=own,
            grid={key: list(getattr(self.settings, key)) for key in keys},
            grading=grading,
        )

    def _evaluation(self, name: str, row: DecodedRun) -> Iterator[Stage]:
        """Samples and grades of a run that both models decode."""
        trained = row.trained.run
        base, checkpoint = self._models(trained)
        yield decode.SamplePair(
            policy=name,
            source=str(base.parent),
            checkpoint=base,
            trained=checkpoint,
            chosen=(Path("results/decoding/chosen.json"),),
            scheme=row.scheme,
            sampling=self._sampling(trained),
            **self.plan.sampled(trained, self.benchmarks),
        )
        directory = Path(f"results/decoding/samples/{name}")
        samples = {benchmark: directory / benchmark / "manifest.json" for benchmark in self.benchmarks}
        yield decode.GradePair(policy=name, samples=samples, **self.plan.graded(self.benchmarks))

    def _scores(self) -> Iterator[Stage]:
        """Scores and comparisons.

        The same policies stand on both sides of a comparison: it is about these checkpoints, not about other training
        seeds.
        """
        for benchmark in self.benchmarks:
            alone = [self.plan.grades(run.run, benchmark) for run in self.alone]
            both = [Path(f"results/decoding/grades/{name}/{benchmark}/manifest.json") for name in self.decoded]
            yield scores_of(_FOLDER, benchmark, [*alone, *both])
        config = self.plan.study.config
        yield evaluate.Comparisons(
            folder=_FOLDER,
            scores=self._score_files,
            reference_method=config.reference_method,
            statistics=config.statistics.model_copy(update={"weighting": None}),
            claim="checkpoints",
        )

    @property
    def _score_files(self) -> tuple[Path, ...]:
        return tuple(Path(f"results/{_FOLDER}scores/{benchmark}.json") for benchmark in self.benchmarks)

    def _shown(self, notes: tuple[str, ...]) -> Iterator[Stage]:
        results, chosen = results_of(_FOLDER, self._score_files), Path(f"results/{_FOLDER}chosen.json")
        table = decode.DecodingTable(**results, chosen=chosen, notes=notes)
        figure = decode.ReplacedTokensFigure(folder=_FOLDER, sweeps=self.sweeps)
        yield from (table, figure)
        drawn = Path(figure.paths()[0]).with_suffix(".svg")
        yield decode.DecodingPage(**results, chosen=chosen, figure=drawn, notes=notes)
