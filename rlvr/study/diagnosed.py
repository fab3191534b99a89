"""The jobs of ``snakemake phenomena``: the runs that a study's `diagnostics` names, and what claims need of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evals.core.errors import InvalidInput
from rlvr.diagnostics import TABLE_VERSIONS
from rlvr.diagnostics.claims.base import CLAIMS, Need, find_claim, lacking
from rlvr.study.plan import Plan
from rlvr.study.source_files import code_of


def measurable_claims(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the claims whose needs a study's `diagnostics` meets, in order."""
    return [claim.name for claim in CLAIMS if claim.needs <= _met(settings)]


def claims_left_out(settings: Mapping[str, Any]) -> list[str]:
    """Name the other claims about a study's runs, each with what it needs."""
    of_runs = [claim for claim in CLAIMS if not claim.of_checkpoints]
    missing = {claim.title: claim.needs - _met(settings) for claim in of_runs}
    return [f"{title}: {lacking(needs)}" for title, needs in missing.items() if needs]


def _met(settings: Mapping[str, Any]) -> set[Need]:
    return {need for need in Need if need.key in settings}


@dataclass(frozen=True)
class ClaimJobs:
    """The jobs on the runs that the main study's `diagnostics` names."""

    plan: Plan

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The study's `diagnostics`; empty if it has none."""
        diagnostics = self.plan.study.config.diagnostics
        return diagnostics.to_json() if diagnostics else {}

    @cached_property
    def names(self) -> dict[Need, list[str]]:
        """The names that meet each need: of runs, all of the first model and one a seed, or of a benchmark.

        Raises:
            InvalidInput: the study has no `diagnostics`, or they name something that does not exist.
        """
        study, settings = self.plan.study, self.plan.study.config.diagnostics
        if settings is None:
            raise InvalidInput("", "diagnostics", "is not in this study", "as in config/config.yaml")
        model, known = next(iter(study.config.models)), set(self.plan.runs)
        for key in ("method", "weighting_method"):
            method = getattr(settings, key)
            if method is not None and method not in study.methods:
                raise InvalidInput("", f"diagnostics.{key}", f"is {method!r}", ", ".join(study.methods))
            if method is not None:
                run = f"{model}-{method}-s{study.config.seeds[0]}"
                if max(settings.steps) > (last := study.run_spec(run).training.least_steps):
                    raise InvalidInput("", "diagnostics.steps", f"are {list(settings.steps)}", f"1 to {last}")
        if settings.benchmark not in study.benchmarks:
            accepted = ", ".join(study.benchmarks)
            raise InvalidInput("", "diagnostics.benchmark", f"is {settings.benchmark!r}", accepted)
        seeds = study.config.seeds[: settings.seeds]
        found = {Need.BENCHMARK: [settings.benchmark]}
        for need in Need:
            if need.key and need is not Need.BENCHMARK:
                named = getattr(settings, need.key)
                methods = [named] if isinstance(named, str) else named or ()
                found[need] = [f"{model}-{method}-s{seed}" for method in methods for seed in seeds]
                if missing := [run for run in found[need] if run not in known]:
                    raise InvalidInput(
                        "", f"diagnostics.{need.key}", f"no study has the run {missing[0]}", "methods of some study"
                    )
        return found

    @property
    def claims(self) -> list[str]:
        """The claims that the study has runs for."""
        return measurable_claims(self.settings)

    @property
    def left_out(self) -> list[str]:
        """The option of table and page that names the other claims."""
        lines = claims_left_out(self.settings)
        return ["--left-out", *lines] if lines else []

    def version(self, run: str) -> int:
        """The version of a run's token table and probes."""
        return TABLE_VERSIONS[self.plan.study_of(run).resolved_run(run).get("dtype", "float32")]

    def inputs(self, claim: str) -> list[str]:
        """The manifests of everything that a claim is measured on."""
        forms = {
            Need.TOKEN_TABLES: "results/diagnostics/{}/manifest.json",
            Need.PROBES: "results/diagnostics/{}/probes.manifest.json",
            Need.WEIGHTING_TABLES: "results/diagnostics/{}/manifest.json",
            Need.BENCHMARK: "results/problems/{}/manifest.json",
        }
        return [
            forms[need].format(name) if need in forms else self.plan.checkpoint_manifest(name)
            for need in _needs(claim)
            for name in self.names[need]
        ]

    def options(self, claim: str) -> list[str]:
        """The options of the command that measures a claim; a policy along a training lies below its run."""
        found: list[str] = []
        for need in _needs(claim):
            names = self.names[need]
            if need in (Need.TOKEN_TABLES, Need.WEIGHTING_TABLES):
                names = [f"results/diagnostics/{run}" for run in names]
            elif need in (Need.COMPARED_RUNS, Need.SELECTED_RUNS):
                names = [self.plan.checkpoint(run).removeprefix("results/runs/") for run in names]
            if names and need.option:
                found += [need.option, *names]
        if Need.BENCHMARK in _needs(claim) and (count := self.settings.get("benchmark_problems")):
            found += ["--benchmark-problems", str(count)]
        return found

    def code(self, claim: str) -> list[str]:
        return code_of(f"rlvr.diagnostics.claims.{claim}")

    def rollout_pages(self) -> list[str]:
        """Pages of the first seed's rollouts, of the method that is looked into and of the one that weighs tokens."""
        runs = [*self.names[Need.TOKEN_TABLES][:1], *self.names[Need.WEIGHTING_TABLES][:1]]
        return [f"results/diagnostics/{run}/step-{step}.html" for run in runs for step in self.settings["steps"]]

    def findings(self) -> list[str]:
        return [f"results/phenomena/{claim}.json" for claim in self.claims]

    def figures(self, ending: str) -> list[str]:
        return [f"results/figures/phenomena/{claim}{ending}" for claim in self.claims]


def _needs(claim: str) -> list[Need]:
    declared = find_claim(claim)
    return [need for need in Need if need in declared.needs | declared.uses]
