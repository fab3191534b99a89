"""Which runs a study's `diagnostics` looks into; checked when they are asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from evals.core.errors import UserError
from rlvr.study.study import Study


@dataclass(frozen=True)
class Diagnosed:
    """Runs by id, all of the study's first model.

    Attributes:
        runs: of the method that is looked into, one a seed.
        weighting_runs: of the method that weighs tokens; none if the study names none.
        selected: of the two methods that train on the tokens of highest and of lowest weight; none if not named.
        compared: of the methods whose training and checkpoints are compared.
        steps: rollout steps, from 1.
        benchmark: on which base and trained model are compared.
    """

    runs: Sequence[str]
    weighting_runs: Sequence[str]
    selected: Sequence[str]
    compared: Sequence[str]
    steps: Sequence[int]
    benchmark: str

    @classmethod
    def of(cls, study: Study, known_runs: Collection[str]) -> Diagnosed:
        """What ``study`` asks for; ``known_runs`` are those of all studies side by side.

        Raises:
            UserError: the study has no `diagnostics`, or they name something that is not there.
        """
        settings = study.config.diagnostics
        if settings is None:
            raise UserError("diagnostics: is not in this study; accepted: as in config/config.yaml")
        for key in ("method", "weighting_method"):
            method = getattr(settings, key)
            if method is not None and method not in study.methods:
                raise UserError(f"diagnostics.{key}: is {method!r}; accepted: {', '.join(study.methods)}")
            if method is not None and max(settings.steps) > (last := study.training[method].steps):
                raise UserError(f"diagnostics.steps: are {list(settings.steps)}; accepted: 1 to {last}")
        if settings.benchmark not in study.benchmarks:
            accepted = ", ".join(study.benchmarks)
            raise UserError(f"diagnostics.benchmark: is {settings.benchmark!r}; accepted: {accepted}")
        weighting = settings.weighting_method
        return cls(
            _runs(study, settings.method, known_runs, "method"),
            _runs(study, weighting, known_runs, "weighting_method") if weighting else [],
            _runs_of(study, settings.selected, "selected", known_runs),
            _runs_of(study, settings.compared, "compared", known_runs),
            settings.steps,
            settings.benchmark,
        )


def _runs_of(study: Study, methods: Sequence[str] | None, key: str, known_runs: Collection[str]) -> list[str]:
    """Ids of the first model's runs of the methods under ``key``, method by method."""
    return [run for method in methods or () for run in _runs(study, method, known_runs, key)]


def _runs(study: Study, method: str, known_runs: Collection[str], key: str) -> list[str]:
    """Ids of the first model's runs of a method.

    Raises:
        UserError: no study has them.
    """
    model = next(iter(study.config.models))
    wanted = [f"{model}-{method}-s{seed}" for seed in study.config.seeds]
    if missing := [run for run in wanted if run not in known_runs]:
        raise UserError(f"diagnostics.{key}: no study has the run {missing[0]}; accepted: methods of some study")
    return wanted
