"""Decoding with two models (config/decoding.yaml): the runs of its table, derived from the main study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evals.core.config.named_study import DecodingConfig
from evals.core.config.problem_sets import GeneratedBenchmark
from evals.core.errors import UserError
from evals.core.files import canonical_json
from evals.core.records import Run
from evals.core.yaml_file import read_yaml
from evals.decoding import SCHEMES
from rlvr.study.benchmarks import CONFIG
from rlvr.study.study import Study

DECODING = CONFIG / "decoding.yaml"
_TITLES = {
    "replacement": "{}: replacement, base driving",
    "extrapolation_base": "{}: extrapolation, base driving",
    "extrapolation_trained": "{}: extrapolation, trained driving",
}


@dataclass(frozen=True)
class DecodedRun:
    """One row of the table for one seed.

    Attributes:
        run: as in the run sheet; its method is the reference method's with the scheme's name behind it.
        trained: the run whose checkpoint is the trained model; its base is the other.
        scheme: one of :data:`evals.decoding.SCHEMES`.
    """

    run: Run
    trained: Run
    scheme: str


@dataclass(frozen=True)
class DecodingStudy:
    """The runs and settings of ``snakemake decoding``.

    Attributes:
        study: the main study; its reference method's models are the trained ones.
        settings: content of config/decoding.yaml.
    """

    study: Study
    settings: DecodingConfig

    @classmethod
    def resolve(cls, study: Study) -> DecodingStudy:
        """Check the settings.

        Raises:
            UserError: they do not fit their schema.
        """
        return cls(study, DecodingConfig.parse(read_yaml(DECODING), "config/decoding.yaml"))

    def require(self) -> None:
        """Check that the study has what this needs.

        Raises:
            UserError: it trains nothing, or has no generated benchmark to draw further problems like.
        """
        if not self.study.methods:
            raise UserError("snakemake decoding: needs trained models; accepted: a study that has methods")
        if not self.kinds:
            raise UserError("snakemake decoding: needs problems that are not scored; accepted: a generated benchmark")

    @cached_property
    def kinds(self) -> list[dict[str, Any]]:
        """Families and lengths of the study's generated benchmarks."""
        entries = [benchmark.entry for benchmark in self.study.benchmarks.values()]
        kinds = [entry.kind for entry in entries if isinstance(entry, GeneratedBenchmark)]
        return [kind for place, kind in enumerate(kinds) if kind not in kinds[:place]]

    @cached_property
    def trained(self) -> list[Run]:
        """The reference method's runs."""
        reference = self.study.config.reference_method
        return [run for run in self.study.trained_runs if run.method == reference]

    @cached_property
    def decoded(self) -> Mapping[str, DecodedRun]:
        """Run id -> run that both models decode together."""
        made = {}
        for scheme in SCHEMES:
            for run in self.trained:
                method, title = f"{run.method}_{scheme}", _TITLES[scheme].format(run.title)
                name = f"{run.model}-{method}-s{run.seed}"
                made[name] = DecodedRun(
                    Run(run=name, model=run.model, method=method, seed=run.seed, title=title), run, scheme
                )
        return made

    @cached_property
    def alone(self) -> Sequence[Run]:
        """The runs of one model: bases and the reference method's."""
        return [run for run in self.study.runs if run.seed is None] + self.trained

    def run_sheet(self) -> str:
        """All runs of the table as JSON."""
        return canonical_json([run.to_json() for run in [*self.alone, *(each.run for each in self.decoded.values())]])
