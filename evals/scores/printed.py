"""Scores and comparisons that are printed: a table for people, JSON or CSV in full precision for programs."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from evals.core.comparisons import Claim, Comparison
from evals.core.errors import InvalidInput, UserError
from evals.core.records import ALL_BENCHMARKS, Weighting, extraction_note
from evals.scores.comparison import BenchmarkCounts, Settings, compare
from evals.scores.loose_files import Reader, find_seeds
from evals.scores.score import GradedRun, ProblemId, majority_of, measure
from evals.statistics.accuracy import g_pass_at_k, pass_at_k
from evals.statistics.average import estimate_average
from evals.statistics.weighting import weighting_text, weights_of
from evals.tables import numbers
from evals.tables.layout import Column, Table, csv_text, make_table, markdown
from evals.tables.main import difference_text

Format = Literal["table", "json", "csv"]
Values = Mapping[str, Any]
FEWEST_UNEQUAL_SAMPLES = 4
"""With different numbers of samples on the sides; with 1 against 8, up to 12 % of true nulls were rejected at 5 %."""
_FEW_PROBLEMS = 20
"""Below this the correction of an interval for skewness is coarse; coverage holds (docs/evaluation.md)."""
Sides = Mapping[str, Sequence[Sequence[GradedRun]]]
"""A and B: for each seed, its files of grades."""


def print_rows(form: Format, rows: Sequence[Values], table: Table, key: str) -> None:
    """Print rows in the form asked for; ``table`` shows the same to people, ``key`` names the rows in JSON."""
    if form == "json":
        print(json.dumps({key: rows}, indent=2, ensure_ascii=False, allow_nan=False))
    elif form == "csv":
        frame = pd.DataFrame([_flat(row) for row in rows], dtype=object)
        print(csv_text(frame), end="")
    else:
        print(markdown([table]), end="")


def _flat(row: Values) -> dict[str, Any]:
    """A row of plain cells: intervals become two columns, mappings one for each key, lists their elements."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key.endswith("confidence_interval"):
            flat[f"{key}_low"], flat[f"{key}_high"] = value or (None, None)
        elif isinstance(value, dict):
            flat |= {f"{key}_{inner}": inner_value for inner, inner_value in value.items()}
        else:
            flat[key] = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat


def print_scores(
    paths: Sequence[Path],
    reader: Reader,
    k: Sequence[int],
    threshold: float,
    confidence: float,
    weighting: Weighting,
    form: Format,
) -> None:
    """Print the score of every file; a run with several benchmarks gets one more row, the mean over them.

    ``k`` is that of pass@k, maj@k and G-Pass@k, half of the samples if there is none; ``threshold`` the share of the k
    samples that has to be correct for G-Pass@k.
    """
    if not 0.5 <= confidence < 1.0:
        raise InvalidInput("--confidence", "", f"is {confidence}", "0.5 up to 1, 1 excluded")
    if not 0.0 < threshold <= 1.0:
        raise InvalidInput("--threshold", "", f"is {threshold}", "above 0, up to 1")
    graded = reader.read(paths)
    rows = [_score(run_file, k, threshold, confidence) for run_file in graded]
    for run in dict.fromkeys(run_file.run for run_file in graded):
        members = [run_file for run_file in graded if run_file.run == run]
        if len({run_file.benchmark for run_file in members}) == len(members) > 1:
            rows.append(_mean_score(run, members, confidence, weighting))
    notes = [
        "Per cent but for problems, samples and tokens. SE and interval: over problems, their samples are clusters. "
        "docs/evaluation.md says what each number means."
    ]
    if any(row["benchmark"] == ALL_BENCHMARKS for row in rows):
        notes.append(f"all: the mean over benchmarks, {weighting_text(weighting)}.")
    if any(row["confidence_interval"] is None for row in rows):
        notes.append(f"{numbers.NO_INTERVAL}: a handful of problems decides, and no interval is to be trusted.")
    if any(row["problems"] < _FEW_PROBLEMS and row["confidence_interval"] for row in rows):
        notes.append(f"Fewer than {_FEW_PROBLEMS} problems: an end of the interval may lie 4 to 8 SE from the average.")
    notes.append(extraction_note(run_file.benchmark for run_file in graded if run_file.by_last_statement))
    unverified = [str(run_file.path) for run_file in graded if not run_file.hashes]
    if unverified:
        notes.append(f"Read without a manifest that vouches for its bytes: {', '.join(unverified)}.")
    levels = sorted({level for row in rows for level in row.get("pass_at_k", {})}, key=int)
    columns = _score_columns(levels, f"{threshold:g}", f"{100 * confidence:g}")
    print_rows(form, rows, make_table("scores", "Scores", columns, rows, notes), "scores")


def _score(graded: GradedRun, k: Sequence[int], threshold: float, confidence: float) -> dict[str, Any]:
    """The score of one file."""
    n, counts, rows = graded.samples, graded.counts, graded.rows()
    levels = k or [max(1, n // 2)]
    if min(levels) < 1 or max(levels) > n:
        message = f"is {' '.join(map(str, levels))}; {graded.path} has {n} samples a problem"
        raise InvalidInput("--k", "", message, f"1..{n}")
    of_answers = {"no_answer_rate": None, "majority_at_k": dict.fromkeys(map(str, levels))}
    majorities = {"majority_at_k": {str(level): majority_of(rows, level) for level in levels}}
    return {
        "run": graded.run,
        "benchmark": graded.benchmark,
        "file": str(graded.path),
        "verified": bool(graded.hashes),
        "problems": len(graded.grades),
        "samples_per_problem": n,
        "confidence": confidence,
        **measure(rows, confidence),
        "pass_at_k": {str(level): float(pass_at_k(counts, n, level)) for level in levels},
        "g_pass_at_k": {
            f"{number}_{threshold:g}": float(g_pass_at_k(counts, n, number, threshold)) for number in levels
        },
        **(majorities if graded.has_answers else of_answers),
    }


def _mean_score(run: str, members: Sequence[GradedRun], confidence: float, weighting: Weighting) -> dict[str, Any]:
    """The mean over benchmarks; its interval is stratified by benchmark."""
    for member in members:
        if len(member.grades) < 2:
            raise UserError(f"{member.path}: has one problem; a mean over benchmarks needs two or more in each")
    samples = [member.samples for member in members]
    rates = [np.array([member.counts]) / member.samples for member in members]
    weights = weights_of(weighting, {member.benchmark: len(member.grades) for member in members})
    average = estimate_average(rates, samples, is_fixed=True, confidence=confidence, weights=weights)
    return {
        "run": run,
        "benchmark": ALL_BENCHMARKS,
        "weighting": weighting,
        "problems": sum(len(member.grades) for member in members),
        "samples_per_problem": samples[0] if len(set(samples)) == 1 else None,
        "confidence": confidence,
        "average_at_k": average.value,
        "standard_error": average.standard_error,
        "confidence_interval": average.confidence_interval,
    }


def _score_columns(levels: Sequence[str], threshold: str, confidence: str) -> list[Column[Values]]:
    def with_interval(row: Values) -> str:
        return numbers.percent_with_interval(row["average_at_k"], row["confidence_interval"])

    def not_judged(row: Values) -> float | None:
        return row["timeout_rate"] + row["unparsable_rate"] if "timeout_rate" in row else None

    def of_levels(header: str, key: str, ending: str = "") -> list[Column[Values]]:
        def column(level: str) -> Column[Values]:
            return Column(header.format(k=level), lambda row: row.get(key, {}).get(f"{level}{ending}"), numbers.percent)

        return [column(level) for level in levels]

    return [
        Column("Run", lambda row: row["run"]),
        Column("Benchmark", lambda row: row["benchmark"]),
        Column("Problems", lambda row: row["problems"]),
        Column("n", lambda row: row["samples_per_problem"] or "mixed"),
        Column(f"avg@n, {confidence} %", lambda row: row, with_interval),
        Column("SE", lambda row: row["standard_error"], numbers.percent),
        Column("Sampling SE", lambda row: row.get("sampling_standard_error"), numbers.percent),
        *of_levels("pass@{k}", "pass_at_k"),
        *of_levels("maj@{k}", "majority_at_k"),
        *of_levels(f"G-Pass@{{k}} ({threshold})", "g_pass_at_k", f"_{threshold}"),
        Column("Truncated", lambda row: row.get("truncation_rate"), numbers.percent),
        Column("No answer", lambda row: row.get("no_answer_rate"), numbers.percent),
        Column("Not judged", not_judged, numbers.percent),
        Column("Tokens", lambda row: row.get("mean_tokens"), numbers.decimal),
    ]


def print_comparison(a: str, b: str, reader: Reader, settings: Settings, form: Format) -> None:
    """Print how two policies, or two methods with several seeds each, compare.

    ``a`` and ``b``, what A is compared against, are files, directories or patterns, separated by commas, one for each
    seed. The claim follows from the number of seeds.
    """
    sides = {side: [reader.read([path]) for path in find_seeds(side, text)] for side, text in (("A", a), ("B", b))}
    _check_seeds(sides)
    given = tuple(side for side, seeds in sides.items() if len(seeds) == 1)
    claim = Claim.CHECKPOINTS if len(given) == len(sides) else Claim.METHODS
    settings = dataclasses.replace(settings, reference_method="B", claim=claim, given=given)
    rows = compare(_benchmarks(sides, settings.resample_samples), settings).comparisons
    if len(rows) == 2:  # one benchmark: its mean over benchmarks is itself
        rows = rows[:1]
    shown = [row.model_dump(mode="json", exclude={"model", "method", "against", "against_model"}) for row in rows]
    print_rows(form, shown, _comparison_table(rows, sides, settings), "comparisons")


def _check_seeds(sides: Sides) -> None:
    """Refuse a side that has one run as two of its seeds: seeds without variance would make any difference certain."""
    for side, seeds in sides.items():
        for one, another in combinations(seeds, 2):
            for other, file in product(one, another):
                if other.path.resolve() == file.path.resolve():
                    raise UserError(f"{side}: {file.path} is given twice; accepted: every seed's own run, once")
                # Two policies that never answer are no copies.
                if other.grades == file.grades and any(grade.answer for row in file.rows() for grade in row):
                    message = f"{file.path} has the same grades, answer by answer, as {other.path}"
                    raise UserError(f"{side}: {message}: one run is one seed; accepted: every seed's own run")


def _benchmarks(sides: Sides, resample_samples: bool) -> list[BenchmarkCounts]:
    """The counts on each set of problems; every seed of either side has to have answered it once.

    Two benchmarks may number their problems alike; if all sides have them they are told apart by their names.
    """
    by_problems: dict[tuple[frozenset[ProblemId], str], dict[tuple[str, int], GradedRun]] = {}
    seeds = {(side, seed): files for side in sides for seed, files in enumerate(sides[side])}
    for seed, files in seeds.items():
        for file in files:
            problems = frozenset(file.grades)
            names = [_names_of(problems, others) for others in seeds.values()]
            name = file.benchmark if all(each_side == names[0] for each_side in names) else ""
            members = by_problems.setdefault((problems, name), {})
            if seed in members:
                message = f"{file.benchmark} has the problem ids of {members[seed].benchmark}, so it is there twice"
                raise UserError(f"{file.path}: {message}; accepted: benchmarks of the same names on both sides")
            members[seed] = file
    benchmarks: list[BenchmarkCounts] = []
    for number, ((problems, _), members) in enumerate(by_problems.items(), start=1):
        first = next(iter(members.values()))
        lacking = [f"{side} ({files[0].run})" for (side, seed), files in seeds.items() if (side, seed) not in members]
        if lacking:
            message = f"with these {len(problems)} problems, has no counterpart in {', '.join(lacking)}"
            raise UserError(f"{first.path}: {message}; both sides need the same ones")
        for file in members.values():
            if file.by_last_statement != first.by_last_statement:
                raise UserError(f"{file.path}: has another extraction than {first.path}; accepted: the same")
            fewest = min(file.samples, first.samples)
            if file.samples != first.samples and (resample_samples or fewest < FEWEST_UNEQUAL_SAMPLES):
                message = f"has {file.samples} samples a problem where {first.path} has {first.samples}"
                accepted = f"as many, or without --resample-samples {FEWEST_UNEQUAL_SAMPLES} or more each"
                raise InvalidInput(str(file.path), "", message, accepted)
        if len(problems) < 2:
            raise UserError(f"{first.path}: a comparison needs at least two problems")
        name = f"{number}" if first.benchmark in {file.benchmark for file in benchmarks} else first.benchmark
        methods = {f"{side}-{seed}": ("model", side) for side, seed in members}
        files_of = {f"{side}-{seed}": file for (side, seed), file in members.items()}
        samples = {run: file.samples for run, file in files_of.items()}
        counts = {run: file.counts for run, file in files_of.items()}
        stated = first.by_last_statement
        benchmarks.append(BenchmarkCounts(first.path, name, samples, methods, counts, by_last_statement=stated))
    return benchmarks


def _names_of(problems: frozenset[ProblemId], files: Sequence[GradedRun]) -> list[str]:
    """The benchmarks that have these problem ids, by name."""
    return sorted(file.benchmark for file in files if file.grades.keys() == problems)


def _comparison_table(rows: Sequence[Comparison], sides: Sides, settings: Settings) -> Table:
    level = f"{100 * settings.confidence:g}"
    columns: list[Column[Comparison]] = [
        Column("Benchmark", lambda row: row.benchmark),
        Column("Problems", lambda row: row.problems),
        Column("A (%)", lambda row: row.method_average, numbers.percent),
        Column("B (%)", lambda row: row.against_average, numbers.percent),
        Column(f"A - B (pp), {level} %", lambda row: row, difference_text),
        Column("SE (pp)", lambda row: row.standard_error, numbers.percent),
        Column("p", lambda row: row.p_value, numbers.p_value),
        Column("p (Holm)", lambda row: row.p_value_holm, numbers.p_value),
        Column("MDE (pp)", lambda row: row.minimum_detectable_effect, numbers.percent),
        Column("A is", lambda row: row.verdict.value),
    ]
    names = [f"{side}: {', '.join(seed[0].run for seed in seeds)}" for side, seeds in sides.items()]
    claim = {
        Claim.METHODS: "The claim is about methods: training seeds add to every error.",
        Claim.CHECKPOINTS: "The claim is about these two checkpoints; it says nothing about other training seeds.",
    }[settings.claim]
    samples = sorted({file.samples for seeds in sides.values() for files in seeds for file in files})
    notes = [
        f"{'; '.join(names)}. {claim}",
        "Paired by problem; p: the larger of sign flips and t; Holm over the benchmarks. MDE: the true difference "
        "found in 80 % of comparisons of this size, before Holm. Not distinguishable is not equal.",
    ]
    if settings.given and settings.claim is Claim.METHODS:
        given = f"{settings.given[0]} has one run and counts as one given policy, as a base model is"
        notes.append(f"{given}: its seed adds no error.")
    if len(samples) > 1:
        notes.append(
            f"Samples a problem differ ({', '.join(map(str, samples))}): a problem's accuracy counts, not how many."
        )
    graded = [file for seeds in sides.values() for seed in seeds for file in seed]
    notes.append(extraction_note(file.benchmark for file in graded if file.by_last_statement))
    if samples[0] == 1 and settings.claim is Claim.METHODS:
        notes.append(numbers.ONE_SAMPLE_NOTE.strip())
    if any(row.confidence_interval is None for row in rows):
        notes.append(f"{numbers.NO_INTERVAL}: too few problems differ for an interval to be trusted.")
    if any(row.benchmark == ALL_BENCHMARKS for row in rows):
        notes.append(
            f"all: the mean over the benchmarks, {weighting_text(settings.weighting)}, resampled within each. It is "
            "one comparison: nothing is corrected for other methods that are compared with B."
        )
    return make_table("comparison", "A against B", columns, rows, notes)
