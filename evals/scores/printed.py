"""Scores and comparisons that are printed: a table for people, JSON or CSV in full precision for programs."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from evals.core.comparisons import Claim, Comparison
from evals.core.errors import InvalidInput, UserError, check_option
from evals.core.records import ALL_BENCHMARKS, Weighting, extraction_note
from evals.scores.comparison import BenchmarkCounts, Settings, compare
from evals.scores.loose_files import Reader, find_seeds
from evals.scores.score import GradedRun, ProblemId, majority_of, measure
from evals.statistics.accuracy import g_pass_at_k, pass_at_k
from evals.statistics.difference import Arm, estimate_average
from evals.statistics.suite import Suite, weighting_text, weights_of
from evals.tables import numbers
from evals.tables.differences import tested_columns
from evals.tables.layout import Column, Table, csv_text, make_table, markdown, table_of_texts

Format = Literal["table", "json", "csv"]
Values = Mapping[str, Any]
FEWEST_UNEQUAL_SAMPLES = 4
"""With different numbers of samples on the sides; with 1 against 8, up to 12 % of true nulls were rejected at 5 %."""
_FEW_PROBLEMS = 20
"""Below this the correction of an interval for skewness is coarse; coverage holds (docs/evaluation.md)."""
Sides = Mapping[str, Sequence[Sequence[GradedRun]]]  # A and B: for each seed, its files of grades


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
    check_option("confidence", confidence, 0.5 <= confidence < 1.0, "0.5 up to 1, 1 excluded")
    check_option("threshold", threshold, 0.0 < threshold <= 1.0, "above 0, up to 1")
    graded = reader.read(paths)
    rows = [_score(run_file, k, threshold, confidence) for run_file in graded]
    for run in dict.fromkeys(run_file.run for run_file in graded):
        members = [run_file for run_file in graded if run_file.run == run]
        if len({run_file.benchmark for run_file in members}) == len(members) > 1:
            rows.append(_mean_score(run, members, confidence, weighting))
    is_mean = any(row["benchmark"] == ALL_BENCHMARKS for row in rows)
    lacks_interval = any(row["confidence_interval"] is None for row in rows)
    has_few = any(row["problems"] < _FEW_PROBLEMS and row["confidence_interval"] for row in rows)
    unverified = ", ".join(str(run_file.path) for run_file in graded if not run_file.hashes)
    notes = [
        "Per cent but for problems, samples and tokens. SE and interval: over problems, their samples are clusters. "
        "docs/evaluation.md says what each number means.",
        is_mean and f"all: the mean over benchmarks, {weighting_text(weighting)}.",
        lacks_interval and f"{numbers.NO_INTERVAL}: a handful of problems decides, and no interval is to be trusted.",
        has_few and f"Fewer than {_FEW_PROBLEMS} problems: an end of the interval may lie 4 to 8 SE from the average.",
        extraction_note(run_file.benchmark for run_file in graded if run_file.by_last_statement),
        unverified and f"Read without a manifest that vouches for its bytes: {unverified}.",
    ]
    levels = sorted({level for row in rows for level in row.get("pass_at_k", {})}, key=int)
    settings = levels, f"{threshold:g}", f"{100 * confidence:g}"
    texts = {number: _score_texts(row, *settings) for number, row in enumerate(rows)}
    print_rows(form, rows, table_of_texts("scores", "Scores", texts, notes), "scores")


def _score(graded: GradedRun, k: Sequence[int], threshold: float, confidence: float) -> dict[str, Any]:
    n, counts, rows = graded.samples, graded.counts, graded.rows()
    levels = k or [max(1, n // 2)]
    found = f"{' '.join(map(str, levels))}; {graded.path} has {n} samples a problem"
    check_option("k", found, min(levels) >= 1 and max(levels) <= n, f"1..{n}")
    row = {"run": graded.run, "benchmark": graded.benchmark, "file": str(graded.path), "verified": bool(graded.hashes)}
    row |= {"problems": len(graded.grades), "samples_per_problem": n, "confidence": confidence}
    row |= measure(rows, confidence)
    row["pass_at_k"] = {str(level): float(pass_at_k(counts, n, level)) for level in levels}
    of_threshold = {level: float(g_pass_at_k(counts, n, level, threshold)) for level in levels}
    row["g_pass_at_k"] = {f"{level}_{threshold:g}": value for level, value in of_threshold.items()}
    if not graded.has_answers:
        row["no_answer_rate"] = None
    row["majority_at_k"] = {str(level): majority_of(rows, level) if graded.has_answers else None for level in levels}
    return row


def _mean_score(run: str, members: Sequence[GradedRun], confidence: float, weighting: Weighting) -> dict[str, Any]:
    """The mean over benchmarks; its interval is stratified by benchmark."""
    for member in members:
        if len(member.grades) < 2:
            raise UserError(f"{member.path}: has one problem; a mean over benchmarks needs two or more in each")
    samples = [member.samples for member in members]
    rates = [np.array([member.counts]) / member.samples for member in members]
    weights = weights_of(weighting, {member.benchmark: len(member.grades) for member in members})
    average = estimate_average(Arm(rates, samples, is_fixed=True), Suite(weights), confidence)
    problems, alike = sum(len(member.grades) for member in members), samples[0] if len(set(samples)) == 1 else None
    row: dict[str, Any] = {"run": run, "benchmark": ALL_BENCHMARKS, "weighting": weighting, "problems": problems}
    row |= {"samples_per_problem": alike, "confidence": confidence, "average_at_k": average.value}
    return row | {"standard_error": average.standard_error, "confidence_interval": average.confidence_interval}


def _score_texts(row: Values, levels: Sequence[str], threshold: str, confidence: str) -> dict[str, str]:
    def at(name: str, key: str, ending: str = "", heading: str = "") -> dict[str, str]:
        found = row.get(key, {})
        return {f"{name}@{level}{heading}": numbers.percent(found.get(f"{level}{ending}")) for level in levels}

    not_judged = row["timeout_rate"] + row["unparsable_rate"] if "timeout_rate" in row else None
    return {
        "Run": row["run"],
        "Benchmark": row["benchmark"],
        "Problems": str(row["problems"]),
        "n": str(row["samples_per_problem"] or "mixed"),
        f"avg@n, {confidence} %": numbers.percent_with_interval(row["average_at_k"], row["confidence_interval"]),
        "SE": numbers.percent(row.get("standard_error")),
        "Sampling SE": numbers.percent(row.get("sampling_standard_error")),
        **at("pass", "pass_at_k"),
        **at("maj", "majority_at_k"),
        **at("G-Pass", "g_pass_at_k", f"_{threshold}", f" ({threshold})"),
        "Truncated": numbers.percent(row.get("truncation_rate")),
        "No answer": numbers.percent(row.get("no_answer_rate")),
        "Not judged": numbers.percent(not_judged),
        "Tokens": numbers.decimal(row.get("mean_tokens")),
    }


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
            names = [
                sorted(one.benchmark for one in others if one.grades.keys() == problems) for others in seeds.values()
            ]
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


def _comparison_table(rows: Sequence[Comparison], sides: Sides, settings: Settings) -> Table:
    difference, *tests = tested_columns(f"A - B (pp), {100 * settings.confidence:g} %", lambda row: row)
    columns: list[Column[Comparison]] = [
        Column("Benchmark", attrgetter("benchmark")),
        Column("Problems", attrgetter("problems")),
        Column("A (%)", attrgetter("method_average"), numbers.percent),
        Column("B (%)", attrgetter("against_average"), numbers.percent),
        difference,
        Column("SE (pp)", attrgetter("standard_error"), numbers.percent),
        *tests,
        Column("A is", lambda row: row.verdict.value),
    ]
    names = [f"{side}: {', '.join(seed[0].run for seed in seeds)}" for side, seeds in sides.items()]
    claim = "methods: training seeds add to every error."
    if settings.claim is Claim.CHECKPOINTS:
        claim = "these two checkpoints; it says nothing about other training seeds."
    graded = [file for seeds in sides.values() for seed in seeds for file in seed]
    samples = sorted({file.samples for file in graded})
    counts, is_of_methods = ", ".join(map(str, samples)), settings.claim is Claim.METHODS
    given = f"{''.join(settings.given[:1])} has one run and counts as one given policy, as a base model is"
    lacks_interval = any(row.confidence_interval is None for row in rows)
    notes = [
        f"{'; '.join(names)}. The claim is about {claim}",
        "Paired by problem; p: the larger of sign flips and t; Holm over the benchmarks. MDE: the true difference "
        "found in 80 % of comparisons of this size, before Holm. Not distinguishable is not equal.",
        settings.given and is_of_methods and f"{given}: its seed adds no error.",
        len(samples) > 1 and f"Samples a problem differ ({counts}): a problem's accuracy counts, not how many.",
        extraction_note(file.benchmark for file in graded if file.by_last_statement),
        samples[0] == 1 and is_of_methods and numbers.ONE_SAMPLE_NOTE.strip(),
        lacks_interval and f"{numbers.NO_INTERVAL}: too few problems differ for an interval to be trusted.",
        any(row.benchmark == ALL_BENCHMARKS for row in rows)
        and f"all: the mean over the benchmarks, {weighting_text(settings.weighting)}, resampled within each. It is "
        "one comparison: nothing is corrected for other methods that are compared with B.",
    ]
    return make_table("comparison", "A against B", columns, rows, notes)
