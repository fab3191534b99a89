"""The runs that a study's `diagnostics` names, and the inputs that claims need of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.core.errors import InvalidInput
from rlvr.diagnostics.claims.base import OPTIONS, Need, declarations, find_claim
from rlvr.study.study import Study

_CONFIGURED_BY = {
    Need.TOKEN_TABLES: "method",
    Need.PROBES: "method",
    Need.WEIGHTING_TABLES: "weighting_method",
    Need.COMPARED_RUNS: "compared",
    Need.SELECTED_RUNS: "selected",
    Need.BENCHMARK: "benchmark",
}
"""Need -> the key of `diagnostics` that meets it."""


def measurable_claims(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the claims whose needs a study's `diagnostics` meets, in order."""
    met = {need for need, key in _CONFIGURED_BY.items() if key in settings}
    return [claim.name for claim in declarations() if claim.needs <= met]


@dataclass(frozen=True)
class Diagnosed:
    """Ids of runs, all of the study's first model.

    Attributes:
        runs: runs of the diagnosed method, one a seed.
        weighting_runs: runs of the method that weights tokens; none if the study names none.
        selected: runs that train on the tokens of highest and of lowest weight; none if not named.
        compared: runs whose training and checkpoints are compared.
        steps: rollout steps, from 1.
        benchmark: the benchmark on which base and trained model are compared.
    """

    runs: Sequence[str]
    weighting_runs: Sequence[str]
    selected: Sequence[str]
    compared: Sequence[str]
    steps: Sequence[int]
    benchmark: str

    @classmethod
    def of(cls, study: Study, known_runs: Collection[str]) -> Diagnosed:
        """Find the runs that ``study`` names among ``known_runs``, the runs of all studies.

        Raises:
            InvalidInput: the study has no `diagnostics`, or they name something that does not exist.
        """
        settings = study.config.diagnostics
        if settings is None:
            raise InvalidInput("", "diagnostics", "is not in this study", "as in config/config.yaml")
        for key in ("method", "weighting_method"):
            method = getattr(settings, key)
            if method is not None and method not in study.methods:
                raise InvalidInput("", f"diagnostics.{key}", f"is {method!r}", ", ".join(study.methods))
            if method is not None and max(settings.steps) > (last := study.training[method].steps):
                raise InvalidInput("", "diagnostics.steps", f"are {list(settings.steps)}", f"1 to {last}")
        benchmark = settings.benchmark
        if benchmark not in study.benchmarks:
            raise InvalidInput("", "diagnostics.benchmark", f"is {benchmark!r}", ", ".join(study.benchmarks))
        model = next(iter(study.config.models))

        def runs(key: str) -> list[str]:
            named = getattr(settings, key)
            methods = [named] if isinstance(named, str) else named or ()
            wanted = [f"{model}-{method}-s{seed}" for method in methods for seed in study.config.seeds]
            if missing := [run for run in wanted if run not in known_runs]:
                found = f"no study has the run {missing[0]}"
                raise InvalidInput("", f"diagnostics.{key}", found, "methods of some study")
            return wanted

        return cls(
            runs("method"), runs("weighting_method"), runs("selected"), runs("compared"), settings.steps, benchmark
        )

    def manifests(self, claim: str) -> list[str]:
        """Return the manifests of everything that a claim is measured on."""
        places = {
            Need.TOKEN_TABLES: [f"diagnostics/{run}/manifest.json" for run in self.runs],
            Need.PROBES: [f"diagnostics/{run}/probes.manifest.json" for run in self.runs],
            Need.WEIGHTING_TABLES: [f"diagnostics/{run}/manifest.json" for run in self.weighting_runs],
            Need.COMPARED_RUNS: [f"runs/{run}/manifest.json" for run in self.compared],
            Need.SELECTED_RUNS: [f"runs/{run}/manifest.json" for run in self.selected],
            Need.BENCHMARK: [f"problems/{self.benchmark}/manifest.json"],
        }
        return [f"results/{place}" for need in _inputs_of(claim) for place in places[need]]

    def options(self, claim: str) -> list[str]:
        """Return the options of the command that measures a claim on these runs."""
        values = {
            Need.TOKEN_TABLES: [f"results/diagnostics/{run}" for run in self.runs],
            Need.WEIGHTING_TABLES: [f"results/diagnostics/{run}" for run in self.weighting_runs],
            Need.COMPARED_RUNS: self.compared,
            Need.SELECTED_RUNS: self.selected,
            Need.BENCHMARK: [self.benchmark],
        }
        return [word for need in _inputs_of(claim) if values.get(need) for word in (OPTIONS[need], *values[need])]


def _inputs_of(claim: str) -> Iterable[Need]:
    declaration = find_claim(claim)
    return [need for need in Need if need in declaration.needs | declaration.uses]
