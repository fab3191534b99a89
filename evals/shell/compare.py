"""Compare two policies, or two methods with several seeds each, on the same problems, paired by problem.

A and B are files or directories as `score` takes them. Several seeds of one method: the directories of its runs,
separated by commas, or a quoted pattern such as 'results/grades/tiny-dapo-s*'. One seed on each side compares these
two checkpoints; two or more on a side compare methods, whose seeds add to the uncertainty. A side with a single seed
is then taken as one given policy, as a base model is. Files belong together where they have the same problems; Holm
runs over the benchmarks, and the row `all` is their mean.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.records import ALL_BENCHMARKS
from evals.grading.verdict import Kind
from evals.scores.comparison import Claim, Settings
from evals.scores.comparison import compare as compare_tables
from evals.scores.table import BenchmarkCounts
from evals.shell.inputs import Answers, find_files, read_answers
from evals.shell.output import Format, print_rows
from evals.tables import numbers
from evals.tables.layout import Table

_SIDES = ("A", "B")


@dataclass(frozen=True)
class CompareOptions:
    """The options of ``rlvr-bench compare``.

    Attributes:
        a: file, directory, pattern, or several separated by commas.
        b: what A is compared against, likewise.
        problems: problems with their answers, for samples without grades.
        kind: how samples are read; None: choice if the problems have options, else completion.
        workers: grading processes.
        seed: of the resampling.
        resamples: bootstrap replicates.
        permutations: random sign flips.
        resample_samples: bootstrap the samples within each problem as well.
        confidence: of the intervals.
        form: what is printed.
    """

    a: str
    b: str
    problems: Sequence[Path]
    kind: Kind | None
    workers: int
    seed: int
    resamples: int
    permutations: int
    resample_samples: bool
    confidence: float
    form: Format


def compare(options: CompareOptions) -> None:
    """Print the comparison.

    Raises:
        UserError: an input is missing or malformed, or the two sides did not answer the same problems.
    """
    for name, least in (("resamples", 100), ("permutations", 100), ("seed", 0)):
        if getattr(options, name) < least:
            raise UserError(f"--{name}: is {getattr(options, name)}; accepted: {least} or more")
    if not 0.5 <= options.confidence < 1.0:
        raise UserError(f"--confidence: is {options.confidence}; accepted: 0.5 up to 1, 1 excluded")
    sides = {
        name: [
            read_answers(find_files([path]), options.problems, options.kind, options.workers)
            for path in _paths(name, text)
        ]
        for name, text in zip(_SIDES, (options.a, options.b), strict=True)
    }
    several = max(len(seeds) for seeds in sides.values()) > 1
    settings = Settings(
        "B",
        Claim.METHODS if several else Claim.CHECKPOINTS,
        confidence=options.confidence,
        seed=options.seed,
        bootstrap_resamples=options.resamples,
        permutations=options.permutations,
        resample_samples=options.resample_samples,
        given=tuple(name for name in _SIDES if len(sides[name]) == 1),
    )
    rows = compare_tables(_tables(sides), settings)["comparisons"]
    if len(rows) == 2:  # one benchmark: its mean over benchmarks is itself
        rows = rows[:1]
    kept = [{key: value for key, value in row.items() if key not in ("model", "method", "against")} for row in rows]
    print_rows(options.form, kept, _table(kept, sides, settings), "comparisons")


def _paths(side: str, text: str) -> list[Path]:
    """The seeds that an argument names."""
    paths: list[Path] = []
    for part in text.split(","):
        matches = sorted(glob.glob(part)) if glob.has_magic(part) else [part]
        if not part or not matches:
            raise UserError(f"{side}: {text}: {'names nothing' if part else 'has an empty part'}")
        paths += map(Path, matches)
    return paths


def _tables(sides: Mapping[str, Sequence[Sequence[Answers]]]) -> list[BenchmarkCounts]:
    """One table for each set of problems; every seed of either side has to have answered it once."""
    by_problems: dict[frozenset[str], list[tuple[str, int, Answers]]] = {}
    for side, seeds in sides.items():
        for seed, answers in enumerate(seeds):
            for each in answers:
                by_problems.setdefault(frozenset(each.grades), []).append((side, seed, each))
    expected = [(side, seed) for side, seeds in sides.items() for seed in range(len(seeds))]
    tables: list[BenchmarkCounts] = []
    for number, (problems, members) in enumerate(by_problems.items()):
        found = [(side, seed) for side, seed, _ in members]
        first = members[0][2]
        if sorted(found) != sorted(expected):
            lacking = [f"{side} ({sides[side][seed][0].run})" for side, seed in expected if (side, seed) not in found]
            what = f"has no counterpart in {', '.join(lacking)}" if lacking else "is there twice"
            raise UserError(f"{first.path}: with these {len(problems)} problems, {what}; both sides need the same ones")
        for _, _, each in members:
            if each.samples != first.samples:
                raise UserError(
                    f"{each.path}: has {each.samples} samples a problem where {first.path} has {first.samples}"
                )
        if len(problems) < 2:
            raise UserError(f"{first.path}: a comparison needs at least two problems")
        name = first.benchmark if first.benchmark not in {table.benchmark for table in tables} else f"{number + 1}"
        methods = {f"{side}-{seed}": ("model", side) for side, seed, _ in members}
        counts = {f"{side}-{seed}": each.counts for side, seed, each in members}
        tables.append(BenchmarkCounts(first.path, name, first.samples, len(problems), methods, counts))
    return tables


def _table(
    rows: Sequence[Mapping[str, Any]], sides: Mapping[str, Sequence[Sequence[Answers]]], settings: Settings
) -> Table:
    level = f"{100 * settings.confidence:g}"
    header = (
        "Benchmark", "Problems", "A (%)", "B (%)", f"A - B (pp), {level} %", "SE (pp)", "p", "p (Holm)", "MDE (pp)",
        "A is",
    )  # fmt: skip
    cells = [
        (
            row["benchmark"],
            str(row["problems"]),
            numbers.percent(row["method_average"]),
            numbers.percent(row["against_average"]),
            numbers.points_with_interval(row["difference"], row["confidence_interval"]),
            numbers.percent(row["standard_error"]),
            numbers.p_value(row["p_value"]),
            numbers.p_value(row["p_value_holm"]),
            numbers.percent(row["minimum_detectable_effect"]),
            row["verdict"],
        )
        for row in rows
    ]
    alone = [name for name in settings.given if settings.claim is Claim.METHODS]
    names = [f"{side}: {', '.join(seed[0].run for seed in seeds)}" for side, seeds in sides.items()]
    claim = {
        Claim.METHODS: "The claim is about methods: training seeds add to every error.",
        Claim.CHECKPOINTS: "The claim is about these two checkpoints; it says nothing about other training seeds.",
    }[settings.claim]
    notes = [
        f"{'; '.join(names)}. {claim}",
        "Paired by problem; p: the larger of sign flips and t; Holm over the benchmarks, not for all. MDE: the true "
        "difference found in 80 % of comparisons of this size. Not distinguishable is not equal.",
    ]
    if alone:
        notes.append(
            f"{alone[0]} has one run and counts as one given policy, as a base model is: its seed adds no error."
        )
    if any(row["confidence_interval"] is None for row in rows):
        notes.append(f"{numbers.NO_INTERVAL}: too few problems differ for an interval to be trusted.")
    if any(row["benchmark"] == ALL_BENCHMARKS for row in rows):
        notes.append("all: the mean over the benchmarks, each with the same weight, resampled within each.")
    return Table("comparison", "A against B", header, tuple(cells), tuple(notes))
