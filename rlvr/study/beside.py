"""The jobs that are made beside a study when they are asked for: decoding with two models, and the papers' claims."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evals.core.files import canonical_json
from rlvr.study.decoding import DecodingStudy
from rlvr.study.diagnosed import Diagnosed, measurable_claims
from rlvr.study.plan import Plan, directories, manifests, words

DECODING_NOTE = (
    "Thresholds and gamma were chosen on other problems of the same kinds. Base, trained model and both together have"
    " the same random numbers."
)


@dataclass(frozen=True)
class DecodingJobs:
    """The jobs of ``snakemake decoding``.

    Attributes:
        plan: the jobs of the study.
        decoding: config/decoding.yaml on that study.
    """

    plan: Plan
    decoding: DecodingStudy

    @property
    def sweeps(self) -> list[str]:
        """The sweeps that thresholds are chosen by."""
        return [f"results/decoding/sweeps/{run.run}/sweep.json" for run in self.decoding.trained]

    @property
    def scores(self) -> list[str]:
        """The scores of all runs of the table."""
        return [f"results/decoding/scores/{benchmark}.json" for benchmark in self.plan.study.benchmarks]

    def targets(self) -> list[str]:
        """The files that people look at.

        Raises:
            UserError: decoding does not go with the study.
        """
        self.decoding.require()
        names = ("decoding/tables/decoding.md", "decoding/figures/replaced_tokens.png")
        return [f"results/{name}" for name in (*names, "decoding.html", "decoding.tracking.json")]

    def kinds(self) -> str:
        """Families and lengths of the problems that thresholds are chosen on."""
        return canonical_json(self.decoding.kinds)

    def pair(self, run: str) -> list[str]:
        """Manifests of the base and of the trained model of a run."""
        base = f"{self.plan.study.run(run).model}-base"
        return [self.plan.checkpoint_manifest(base), self.plan.checkpoint_manifest(run)]

    def pair_of_decoded(self, decoded: str) -> list[str]:
        """Manifests of base and trained model of a run that both decode."""
        return self.pair(self.decoding.decoded[decoded].trained.run)

    def _pair_options(self, run: str) -> dict[str, Any]:
        """Models and sampling."""
        settings = self.plan.evaluation(run)
        settings["batch_size"] = settings.pop("sampling_batch_size")
        settings.pop("tensor_parallel_size")
        base, trained = directories(self.pair(run))
        settings |= {"base": base, "trained": trained, "threads": self.plan.execution["sampling_threads"]}
        return {**settings, "device": self.plan.execution["device"]}

    def sweep_options(self, run: str) -> list[str]:
        """Options of a sweep; prompts as in training, where generated problems of every kind have one form."""
        problems = self.plan.study.config.problems
        assert problems is not None, "a study with methods has problems"
        keys = ("criteria", "fractions", "extrapolation_fractions", "gammas")
        grid = {key: list(getattr(self.decoding.settings, key)) for key in keys}
        return words({**self._pair_options(run), "prompt": problems.prompt, **grid})

    def sampling_options(self, decoded: str, benchmark: str) -> list[str]:
        """Options of a run that both models decode."""
        row = self.decoding.decoded[decoded]
        prompt = self.plan.prompt(row.trained.run, benchmark)
        return words({**self._pair_options(row.trained.run), "prompt": prompt, "scheme": row.scheme})

    def run_sheet(self) -> str:
        """All runs of the table."""
        return self.decoding.run_sheet()

    def grades(self, benchmark: str) -> list[str]:
        """The grades of all runs of the table on a benchmark: of one model from the study, of both from here."""
        alone = [f"results/grades/{run.run}/{benchmark}" for run in self.decoding.alone]
        return alone + [f"results/decoding/grades/{run}/{benchmark}" for run in self.decoding.decoded]

    def grade_manifests(self, benchmark: str) -> list[str]:
        """The manifests of the grades."""
        return manifests(self.grades(benchmark))


@dataclass(frozen=True)
class ClaimJobs:
    """The jobs of ``snakemake phenomena``, on the runs that the study's ``diagnostics`` names.

    Attributes:
        plan: the jobs of the study.
    """

    plan: Plan

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The study's ``diagnostics``; empty if it has none."""
        diagnostics = self.plan.study.config.diagnostics
        return diagnostics.to_json() if diagnostics else {}

    @cached_property
    def diagnosed(self) -> Diagnosed:
        """The runs that are looked into.

        Raises:
            UserError: the study names something that is not there.
        """
        return Diagnosed.of(self.plan.study, self.plan.runs)

    @property
    def claims(self) -> list[str]:
        """The claims that the study has runs for."""
        return measurable_claims(self.settings)

    def inputs(self, claim: str) -> list[str]:
        """The files that a claim is measured on."""
        kept = {f"results/runs/{run}/manifest.json": self.plan.checkpoint_manifest(run) for run in self.plan.earlier}
        return [kept.get(path, path) for path in self.diagnosed.manifests(claim)]

    def options(self, claim: str) -> list[str]:
        """The options of the command that measures a claim; a policy along a training lies below its run."""
        below = {run: each.directory.removeprefix("results/runs/") for run, each in self.plan.earlier.items()}
        return [below.get(word, word) for word in self.diagnosed.options(claim)]

    def rollout_pages(self) -> list[str]:
        """Pages of the first seed's rollouts, of the method that is looked into and of the one that weighs tokens."""
        runs = [*self.diagnosed.runs[:1], *self.diagnosed.weighting_runs[:1]]
        return [f"results/diagnostics/{run}/step-{step}.html" for run in runs for step in self.diagnosed.steps]

    def findings(self) -> list[str]:
        """The findings on all claims that the study has runs for."""
        return [f"results/phenomena/{claim}.json" for claim in self.claims]

    def figures(self, ending: str) -> list[str]:
        """The figures of these claims."""
        return [f"results/figures/phenomena/{claim}{ending}" for claim in self.claims]
