"""The files that claims are measured on; nothing is imported for them before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_parquet
from evals.core.manifest import verify_outputs
from evals.core.record import read_rows
from evals.core.records import Problem
from evals.core.run_spec import LocalRun
from rlvr_claims.claims.base import Declaration, Need

if TYPE_CHECKING:
    import pandas as pd

    from rlvr_claims.policy import PolicySnapshot
    from rlvr_claims.probes import Probed

_LAST = 10  # rollout steps at the end of a run over which its reward and entropy are averaged; half of a shorter run
_PROBLEMS_HELP = "number of problems of the benchmark to sample, from its first; default: all"


@dataclass(frozen=True)
class RunMetrics:
    """A finished run and its metrics, a row a rollout step."""

    run: LocalRun
    metrics: pd.DataFrame

    def end(self, column: str) -> float:
        """Return the mean of a metric over the last steps."""
        return float(self.metrics[column].tail(min(_LAST, max(1, len(self.metrics) // 2))).mean())


@dataclass(frozen=True)
class Inputs:
    """The files that claims are measured on: what :class:`Need` describes.

    Attributes:
        tables: directories made by `replay`.
        weighting_tables: as --tables, for runs of DelTA.
        steps: rollout steps, from 1; default: all that were kept.
        results: results/, where runs, samples and grades lie.
        runs: further runs, whose metrics are read.
        benchmarks: benchmarks whose evaluation is used.
        comparison: directory made by `compare`, of any two checkpoints: for token_flipping and update_direction.
        base_comparison: the same checkpoints compared on the base model's samples, --comparison on the trained one's:
            adds what tells the two apart (update_direction).
    """

    tables: Sequence[Path] = ()
    weighting_tables: Sequence[Path] = ()
    steps: Sequence[int] = ()
    results: Path = Path("results")
    runs: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    benchmark_problems: Annotated[int | None, Option(help=_PROBLEMS_HELP, min=1)] = None
    comparison: Path | None = None
    base_comparison: Path | None = None

    def check(self, claim: Declaration) -> None:
        """Raise InvalidInput if anything is missing that ``claim`` needs, or given that contradicts it."""
        options = [need.option for need in Need if need in claim.needs and need.option]
        if missing := [option for option in options if not getattr(self, option[2:].replace("-", "_"))]:
            raise InvalidInput(claim.name, "", f"lacks {', '.join(missing)}")
        for name in ("tables", "weighting_tables", "runs", "benchmarks", "steps"):
            if getattr(self, name) and claim.of_checkpoints:
                option = f"--{name.replace('_', '-')}"
                raise InvalidInput(option, "", "is for replayed runs", "with --tables")
        if self.base_comparison and Need.BASE_COMPARISON not in claim.uses:
            raise InvalidInput("--base-comparison", "", f"is given for {claim.name}", "update_direction --comparison")

    def files(self) -> list[Path]:
        """Return the files that stand for all inputs: token tables and probes, runs, benchmarks."""
        compared = [directory for directory in (self.comparison, self.base_comparison) if directory is not None]
        tables = [*self.tables, *self.weighting_tables]
        probed = [directory / "probes.parquet" for directory in tables if (directory / "probes.parquet").is_file()]
        runs = [self.results / "runs" / run / "manifest.json" for run in self.runs]
        problems = [self.results / "problems" / benchmark / "problems.jsonl" for benchmark in self.benchmarks]
        return [*(directory / "tokens.parquet" for directory in [*tables, *compared]), *probed, *runs, *problems]

    def snapshots(self, need: Need = Need.TOKEN_TABLES) -> list[PolicySnapshot]:
        """Read the snapshots of ``tables`` or, for that need, of ``weighting_tables``."""
        from rlvr_claims.policy import read_snapshots

        tables = self.weighting_tables if need is Need.WEIGHTING_TABLES else self.tables
        return [snapshot for directory in tables for snapshot in read_snapshots(directory, self.steps)]

    @property
    def probed(self) -> Iterator[tuple[PolicySnapshot, Probed]]:
        """The snapshots of ``tables`` with their probes."""
        from rlvr_claims.policy import read_snapshots
        from rlvr_claims.probes import read_probes

        for directory in self.tables:
            snapshots = read_snapshots(directory, self.steps)
            yield from zip(snapshots, read_probes(directory, snapshots), strict=True)

    def problems(self) -> list[Problem]:
        """Read the benchmark's problems that are sampled."""
        path = self.results / "problems" / self.benchmarks[0] / "problems.jsonl"
        return read_rows(path, Problem)[: self.benchmark_problems]

    def read_run(self, name: str) -> RunMetrics:
        directory = self.results / "runs" / name
        return RunMetrics(LocalRun.read(directory / "run.json"), read_parquet(directory / "metrics.parquet"))

    def compared_tokens(self) -> dict[str, pd.DataFrame]:
        """Read the comparison's tokens as "given", or those of two comparisons of one pair as "trained" and "base".

        UserError if a table is missing or changed, or the two are of other checkpoints.
        """
        assert self.comparison is not None
        given, pair = _verified_tokens(self.comparison)
        if self.base_comparison is None:
            return {"given": given}
        base, other = _verified_tokens(self.base_comparison)
        if pair != other:
            raise UserError(
                f"--base-comparison: {self.base_comparison} is of other checkpoints, or at another temperature, than "
                f"{self.comparison}; accepted: the same pair on the base model's own samples"
            )
        return {"trained": given, "base": base}


def _verified_tokens(directory: Path) -> tuple[pd.DataFrame, list[Any]]:
    """The numbers of a comparison, and the identity of its pair of models."""
    from rlvr.tokens.table import COMPARISON_COLUMNS, COMPARISON_KIND, read_comparison

    manifest = verify_outputs(directory / "manifest.json", COMPARISON_KIND)
    weights = [digest for name, digest in manifest.inputs.items() if name.endswith(".safetensors")]
    columns = [name for name in (*COMPARISON_COLUMNS, "reward") if name != "text"]
    return read_comparison(directory, columns=columns), [weights, manifest.parameters["temperature"]]
