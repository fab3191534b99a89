"""The jobs of ``snakemake phenomena``: the runs that a study's `diagnostics` names, and what claims need of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput
from rlvr.diagnostics import TABLE_VERSIONS
from rlvr.diagnostics.claims.base import CLAIMS, Need, find_claim, lacking
from rlvr.stages import diagnose
from rlvr.stages.stage import Stage
from rlvr.study.plan import Plan
from rlvr.study.source_files import REPOSITORY, as_input


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
        if study.folder:
            raise InvalidInput("", "folder", f"is {study.config.folder} in snakemake phenomena", "none")
        model, known = next(iter(study.config.models)), set(self.plan.runs)
        for key in ("method", "weighting_method"):
            method = getattr(settings, key)
            if method is not None and method not in study.methods:
                raise InvalidInput("", f"diagnostics.{key}", f"is {method!r}", ", ".join(study.methods))
            if method is not None:
                run = f"{model}-{method}-s{study.config.training_seeds[0]}"
                if max(settings.steps) > (last := study.run_spec(run).training.least_steps):
                    raise InvalidInput("", "diagnostics.steps", f"are {list(settings.steps)}", f"1 to {last}")
        if settings.benchmark not in study.benchmarks:
            accepted = ", ".join(study.benchmarks)
            raise InvalidInput("", "diagnostics.benchmark", f"is {settings.benchmark!r}", accepted)
        seeds = study.config.training_seeds[: settings.seeds]
        measured_on = {Need.BENCHMARK: [settings.benchmark]}
        for need in Need:
            if need.key and need is not Need.BENCHMARK:
                named = getattr(settings, need.key)
                methods = [named] if isinstance(named, str) else named or ()
                measured_on[need] = [f"{model}-{method}-s{seed}" for method in methods for seed in seeds]
                if missing := [run for run in measured_on[need] if run not in known]:
                    raise InvalidInput(
                        "", f"diagnostics.{need.key}", f"no study has the run {missing[0]}", "methods of some study"
                    )
        return measured_on

    def version(self, run: str) -> int:
        """The version of a run's token table and probes."""
        return TABLE_VERSIONS[self.plan.study_of(run).resolved_run(run).get("dtype", "float32")]

    def stages(self, notes: tuple[str, ...]) -> Iterator[Stage]:
        """The stages, down to the page; ``notes`` say what the numbers are evidence of."""
        for run in dict.fromkeys([*self.names[Need.TOKEN_TABLES], *self.names[Need.WEIGHTING_TABLES]]):
            version, manifest = self.version(run), Path(f"results/diagnostics/{run}/manifest.json")
            yield diagnose.TokenTable(
                replayed=run,
                table_version=version,
                trained=Path(f"results/runs/{run}/manifest.json"),
                steps=tuple(self.settings["steps"]),
            )
            yield diagnose.Probes(replayed=run, table_version=version, table=manifest)
        pages_of_tokens = list(self._pages_of_tokens())
        yield from pages_of_tokens
        rollouts = tuple(Path(page.paths()[0]) for page in pages_of_tokens)
        claims = measurable_claims(self.settings)
        for claim in claims:
            yield self._claim(claim)
        findings = tuple(Path(f"results/phenomena/{claim}.json") for claim in claims)
        drawn = tuple(Path(f"results/figures/phenomena/{claim}.svg") for claim in claims)
        left_out = tuple(claims_left_out(self.settings))
        shared: dict[str, Any] = {"findings": findings, "notes": notes, "left_out": left_out}
        yield diagnose.ClaimsTable(**shared)
        yield diagnose.ClaimsPage(**shared, study=self.plan.study.config.study, drawn=drawn, rollouts=rollouts)

    def _pages_of_tokens(self) -> Iterator[Stage]:
        """Pages of the first seed's rollouts, of the method that is looked into and of the one that weighs tokens."""
        for run in [*self.names[Need.TOKEN_TABLES][:1], *self.names[Need.WEIGHTING_TABLES][:1]]:
            for step in self.settings["steps"]:
                yield diagnose.TokensPage(
                    replayed=run,
                    step=step,
                    table=Path(f"results/diagnostics/{run}/manifest.json"),
                    problems=Path("results/problems/train/problems.jsonl"),
                    template=Path(as_input(REPOSITORY / "rlvr/diagnostics/templates/coloured_text.html.jinja")),
                )

    def _claim(self, claim: str) -> Stage:
        forms = {
            Need.TOKEN_TABLES: "results/diagnostics/{}/manifest.json",
            Need.PROBES: "results/diagnostics/{}/probes.manifest.json",
            Need.WEIGHTING_TABLES: "results/diagnostics/{}/manifest.json",
            Need.BENCHMARK: "results/problems/{}/manifest.json",
        }
        declared = find_claim(claim)
        needs = [need for need in Need if need in declared.needs | declared.uses]
        files = [
            forms[need].format(name) if need in forms else self.plan.checkpoint_manifest(name)
            for need in needs
            for name in self.names[need]
        ]
        count = self.settings.get("benchmark_problems") if Need.BENCHMARK in needs else None
        return diagnose.MeasureClaim(
            claim=claim,
            measured_on=tuple(map(Path, files)),
            names=self._names_of_inputs(needs),
            benchmark_problems=count,
        )

    def _names_of_inputs(self, needs: list[Need]) -> dict[str, tuple[str, ...]]:
        """What a claim is given, by the names of its inputs; a policy along a training lies below its run."""
        names: dict[str, tuple[str, ...]] = {}
        for need in needs:
            values = tuple(self.names[need])
            if need in (Need.TOKEN_TABLES, Need.WEIGHTING_TABLES):
                values = tuple(f"results/diagnostics/{run}" for run in values)
            elif need in (Need.COMPARED_RUNS, Need.SELECTED_RUNS):
                values = tuple(self.plan.checkpoint(run).removeprefix("results/runs/") for run in values)
            if values and need in _INPUTS:
                names[_INPUTS[need]] = (*names.get(_INPUTS[need], ()), *values)
        return names


_INPUTS = {
    Need.TOKEN_TABLES: "tables",
    Need.WEIGHTING_TABLES: "weighting_tables",
    Need.COMPARED_RUNS: "runs",
    Need.SELECTED_RUNS: "runs",
    Need.BENCHMARK: "benchmarks",
}
"""The needs that a claim is given by name, and the names of its inputs."""
