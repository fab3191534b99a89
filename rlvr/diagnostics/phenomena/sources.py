"""What claims are looked at in, and what a claim's module has to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from matplotlib.figure import Figure

from evals.core.errors import UserError
from evals.core.manifest import verify_outputs
from evals.figures.style import ENDINGS, house_style, save
from evals.tables.manifests import write_output_manifest
from rlvr.diagnostics.comparison_table import KIND, read_comparison
from rlvr.diagnostics.displacements import Probed, read_displacements
from rlvr.diagnostics.moment import Moment, read_moments
from rlvr.diagnostics.phenomena.catalogue import phenomenon, phenomenon_of_checkpoints
from rlvr.diagnostics.phenomena.findings import Findings


@dataclass(frozen=True)
class Sources:
    """What claims are looked at in.

    Attributes:
        tables: directories of token tables, of runs of the method that is looked into.
        contrast_tables: the same of runs that weigh tokens (DelTA).
        steps: of the steps kept, those that are looked at; None for all.
        results: results/, for runs, samples and grades.
        runs: ids of further runs whose metrics are read.
        benchmarks: names of benchmarks, for claims about evaluation.
        comparison: directory of two checkpoints compared, for claims that are measured on nothing else.
        base_comparison: the same checkpoints compared on the base model's own responses.
    """

    tables: Sequence[Path] = ()
    contrast_tables: Sequence[Path] = ()
    steps: Sequence[int] | None = None
    results: Path = Path("results")
    runs: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    comparison: Path | None = None
    base_comparison: Path | None = None

    def files(self) -> list[Path]:
        """Files that stand for everything above: token tables and probes, runs, benchmarks."""
        compared = [directory for directory in (self.comparison, self.base_comparison) if directory is not None]
        tables = [*self.tables, *self.contrast_tables]
        probed = [directory / "probes.parquet" for directory in tables if (directory / "probes.parquet").is_file()]
        runs = [self.results / "runs" / run / "manifest.json" for run in self.runs]
        problems = [self.results / "problems" / benchmark / "problems.jsonl" for benchmark in self.benchmarks]
        return [*(directory / "tokens.parquet" for directory in [*tables, *compared]), *probed, *runs, *problems]

    def compared_tokens(self) -> dict[str, pd.DataFrame]:
        """Tokens of the comparison, "given", or of two comparisons of one pair, of "trained" and of "base" responses.

        Raises:
            UserError: a table is missing or changed, or the two are of other checkpoints.
        """
        if self.comparison is None:
            raise ValueError("no comparison was given")
        if self.base_comparison is None:
            return {"given": _verified_tokens(self.comparison)[0]}
        (trained, pair), (base, other) = map(_verified_tokens, (self.comparison, self.base_comparison))
        if pair != other:
            raise UserError(
                f"--base-comparison: {self.base_comparison} is of other checkpoints, or at another temperature, than "
                f"{self.comparison}; accepted: the same pair on the base model's own samples"
            )
        return {"trained": trained, "base": base}

    @cached_property
    def moments(self) -> list[Moment]:
        """The moments of ``tables``.

        Raises:
            UserError: a file is missing or changed.
        """
        return [moment for directory in self.tables for moment in read_moments(directory, self.steps)]

    @cached_property
    def contrast_moments(self) -> list[Moment]:
        """The moments of ``contrast_tables``."""
        return [moment for directory in self.contrast_tables for moment in read_moments(directory, self.steps)]

    @cached_property
    def displacements(self) -> dict[str, Probed]:
        """Unit of each of ``moments`` -> what probes found of it."""
        found: dict[str, Probed] = {}
        for directory in self.tables:
            found |= read_displacements(directory, self.moments_of(directory))
        return found

    def moments_of(self, directory: Path) -> list[Moment]:
        """Those of ``moments`` that lie in ``directory``."""
        place = list(self.tables).index(directory)
        run = list(dict.fromkeys(moment.run.run for moment in self.moments))[place]
        return [moment for moment in self.moments if moment.run.run == run]


def _verified_tokens(directory: Path) -> tuple[pd.DataFrame, list[Any]]:
    """The numbers of a comparison, and what tells one pair of models from another."""
    manifest = verify_outputs(directory / "manifest.json", KIND)
    weights = [digest for name, digest in manifest.inputs.items() if name.endswith(".safetensors")]
    return read_comparison(directory, text=False), [weights, manifest.parameters["temperature"]]


class Phenomenon(Protocol):
    """A claim's module."""

    find: Callable[[Sources], Findings]
    draw: Callable[[Findings], Figure]


def write_claim(name: str, sources: Sources, out: Path, figure: Path) -> None:
    """Measure a claim and draw it, and write a manifest beside each; both paths lack their endings.

    Raises:
        UserError: a source is missing or changed, or the claim cannot be measured on it.
    """
    claim = (phenomenon_of_checkpoints if sources.comparison else phenomenon)(name)
    findings = claim.find(sources)
    findings.write(out)
    with house_style():
        save(claim.draw(findings), figure)
    write_output_manifest("findings", out, (".json", ".parquet"), sources.files(), {"claim": name})
    written = out.with_name(f"{out.name}.parquet")
    write_output_manifest("figure", figure, ENDINGS, [written], {"figure": name})
