"""The jobs of ``snakemake decoding``: two models of the main study decode together (config/decoding.yaml)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.config.named_study import DecodingConfig
from evals.core.config.problem_sets import GeneratedBenchmark
from evals.core.errors import UserError
from evals.core.files import canonical_json
from evals.core.records import Run
from evals.core.yaml_file import read_yaml
from evals.decoding import SCHEMES
from rlvr.study.benchmarks import CONFIG
from rlvr.study.plan import Plan
from rlvr.study.rules import manifests, words
from rlvr.study.sampled import SamplingJobs

_TITLES = {
    "replacement": "{}: replacement, base driving",
    "extrapolation_base": "{}: extrapolation, base driving",
    "extrapolation_trained": "{}: extrapolation, trained driving",
}
DECODING_NOTE = (
    "Thresholds and gamma were chosen on other problems of the same kinds. Base, trained model and both together have"
    " the same random numbers."
)


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
        settings: config/decoding.yaml.
        trained: the reference method's runs.
        alone: the runs of one model: bases and the reference method's.
        decoded: run id -> run that both models decode together.
        sweeps: the sweeps that thresholds are chosen by.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.sampling = plan, SamplingJobs(plan)
        self.settings = DecodingConfig.parse(read_yaml(CONFIG / "decoding.yaml"), "config/decoding.yaml")
        config = plan.study.config
        of_reference = [run for run in plan.study.trained_runs if run.method == config.reference_method]
        self.trained = [run for run in of_reference if run.seed in config.seeds[: self.settings.seeds]]
        self.alone = [run for run in plan.study.runs if run.seed is None] + self.trained
        self.sweeps = [f"results/decoding/sweeps/{run.run}/sweep.json" for run in self.trained]
        self.scores = [f"results/decoding/scores/{benchmark}.json" for benchmark in plan.study.benchmarks]
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
        """The files that people look at, of a study that trains and has generated benchmarks."""
        if not self.plan.study.methods:
            raise UserError("snakemake decoding: needs trained models; accepted: a study that has methods")
        if not self._kinds:
            raise UserError("snakemake decoding: needs problems that are not scored; accepted: a generated benchmark")
        names = ("decoding/tables/decoding.md", "decoding/figures/replaced_tokens.png")
        return [f"results/{name}" for name in (*names, "decoding.html", "decoding.tracking.json")]

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
        settings = self.sampling.evaluation(run, benchmark)
        settings["batch_size"] = settings.pop("sampling_batch_size")
        settings.pop("tensor_parallel_size")
        base, trained = (str(Path(path).parent) for path in self.pair(run))
        settings |= {"base": base, "trained": trained, "threads": self.plan.execution["sampling_threads"]}
        return {**settings, "device": self.plan.execution["device"]}

    def sweep_options(self, run: str) -> list[str]:
        """Options of a sweep; prompts as in training, where generated problems of every kind have one form."""
        problems = self.plan.study.config.problems
        assert problems is not None, "a study with methods has problems"
        keys = ("criteria", "fractions", "extrapolation_fractions", "gammas")
        grid = {key: list(getattr(self.settings, key)) for key in keys}
        return words({**self._pair_options(run), "prompt": problems.prompt, **grid})

    def sampling_options(self, decoded: str, benchmark: str) -> list[str]:
        """Options of a run that both models decode."""
        row = self.decoded[decoded]
        prompt = self.sampling.prompt(row.trained.run, benchmark)
        return words({**self._pair_options(row.trained.run, benchmark), "prompt": prompt, "scheme": row.scheme})

    def other_benchmarks(self, decoded: str, benchmark: str) -> str:
        """The run's other benchmarks, which a job goes on with once it has loaded the models."""
        return self.sampling.other_benchmarks(self.decoded[decoded].trained.run, benchmark)

    def grades(self, benchmark: str) -> list[str]:
        """The grades of all runs of the table on a benchmark: of one model from the study, of both from here."""
        alone = [f"results/grades/{run.run}/{benchmark}" for run in self.alone]
        return alone + [f"results/decoding/grades/{run}/{benchmark}" for run in self.decoded]

    def grade_manifests(self, benchmark: str) -> list[str]:
        return manifests(self.grades(benchmark))
