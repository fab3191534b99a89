"""The report of a study as one HTML file."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from evals.core.files import read_json, read_parquet
from evals.core.records import BASE, ProblemFile
from evals.results import Results
from evals.tables import audit, efficiency, main, numbers, paper, robust
from evals.tables.costs import cost_files
from evals.tables.layout import Table
from evals.tables.published import read_published
from rlvr.report.examples import read_examples
from rlvr.report.html import EmbeddedFigure, write_page
from rlvr.report.provenance import StudyName, read_run_manifest, read_status, run_directory
from rlvr.report.summary import findings

_FIGURES = {
    "scores": (
        "Scores of every method on every benchmark with intervals",
        "Scores. Point: mean over seeds; line: {level} % interval over problems and seeds; small ticks: the seeds; "
        "dashed line and grey band: the base model and its interval.",
    ),
    "differences": (
        "Paired differences of every method to the reference method with intervals",
        "Paired differences to {reference}. Line: {level} % interval; a method is called better or worse only where "
        "its test says so after Holm: on a benchmark over the benchmarks, for the mean over the methods.",
    ),
    "profiles": (
        "Performance profiles of every method",
        "Performance profiles. Share of a method's scores (its seeds on the benchmarks) above each threshold; band: "
        "{level} % bootstrap over seeds, each drawn once for all benchmarks. The higher curve is the better one; where "
        "curves cross, the better method depends on the benchmark or on the seed.",
    ),
    "cost_curves": (
        "Training reward of every method over tokens, optimizer steps and seconds",
        "Training reward over cost. Line: mean over seeds, linear between steps; band: from the smallest to the "
        "largest seed; grey: the other methods' means. Each curve ends where its cheapest seed ended.",
    ),
    "compute_performance": (
        "Scores on held-out problems over tokens with fitted curves",
        "Compute-performance curves R = R_0 + (A - R_0) / (1 + (C_mid / C)^B). Dots: scores of seeds on held-out "
        "problems of the training distribution; line: least squares fit, dotted beyond the training; dashed: the "
        "ceiling A; grey: the other methods' fits.",
    ),
    "training_curves": (
        "Training curves of every method",
        "Training. Line: mean over seeds at each rollout step; band: from the smallest to the largest seed; grey: the "
        "other methods' means. No smoothing.",
    ),
}
_FIGURES_OF_NAMED_STUDIES = {
    "reward_curves": (
        "Reward during training, a panel for every method",
        "Reward during training. Line: mean over seeds; band: smallest to largest seed; black: {reference}.",
    ),
    "score_curves": (
        "Scores of every method along its training",
        "Scores along the training. Line: mean over seeds; band: smallest to largest seed; dashed: the base model.",
    ),
}
_PHASES = {
    "seconds_rollout": "Rollout",
    "seconds_reward": "Reward",
    "seconds_log_probs": "Log-probs",
    "seconds_token_weights": "Token weights",
    "seconds_update": "Update",
    "seconds_step": "Whole step",
}
_OF_EVERY_ENGINE = ("seconds_rollout", "seconds_step", "tokens_generated")
"""The engine verl, for one, grades while it samples: it has no seconds of the reward."""


@dataclass(frozen=True)
class ReportFiles:
    """The files that a report is made from.

    ``study`` is the resolved study, ``results`` the directory results/ for everything that is not named here; the SVG
    files of ``figures`` are embedded.
    """

    study: Path
    scored: Results
    audits: Sequence[Path]
    results: Path
    figures: Path
    status: Path


@dataclass(frozen=True)
class NamedStudy:
    """The parts that only the report of a named study has: its heading, published numbers, and names of figures."""

    title: str
    published: Path
    figures: Sequence[str] = ()


def write_report(files: ReportFiles, notes: Sequence[str], out: Path, named: NamedStudy | None = None) -> None:
    """Write the report with its manifest; the notes say what the numbers are evidence of."""
    study = read_json(files.study)
    name = StudyName.parse(study, str(files.study)).study
    results, directory, status = files.scored, files.results, read_status(files.status)
    captions = {each: _FIGURES_OF_NAMED_STUDIES[each] for each in (named.figures if named else ())} | _FIGURES
    if "validation" not in study:
        del captions["compute_performance"]
    figures = {files.figures / f"{each}.svg": caption for each, caption in captions.items()}
    words = {"level": round(100 * results.confidence), "reference": results.drawn_against[1]}
    manifests = {run: read_run_manifest(run, directory) for run in results.runs}
    runs = [
        {
            "run": run.run,
            "result": f"base model {run.model}" if run.method == BASE else f"run {run.run}",
            "fingerprint": manifest.fingerprint,
            "created": manifest.created,
            "weights": {name: sha256 for name, sha256 in manifest.outputs.items() if name.endswith(".safetensors")},
        }
        for run, manifest in manifests.items()
    ]
    audited, *audited_by_benchmark = audit.audit_tables(audit.read_audits(files.audits, results.runs))
    costs = main.read_costs(results, directory / "costs", directory / "runs")
    falls = robust.read_falls(results, directory / "runs")
    summary, *by_benchmark = main.main_tables(results, costs, falls, notes)
    robust_table = robust.robust_table(results, falls, {row: robust.summarise(results, row) for row in falls})
    efficiency_tables, _ = efficiency.efficiency_tables(results, directory / "runs")
    examples, read = read_examples(results, directory)
    inputs = [files.study, *results.sources, *files.audits, files.status, *figures]
    for run in results.runs:
        inputs.append(run_directory(run, directory) / "manifest.json")
        inputs += cost_files(run, results.benchmarks, directory / "costs", directory / "runs")
    inputs += [*read, *([named.published] if named else [])]
    write_page(
        "report.html.jinja",
        out,
        list(dict.fromkeys(inputs)),
        notes,
        title=named.title if named else name,
        settings=json.dumps(study, indent=2, ensure_ascii=False, sort_keys=True),
        findings=findings(results),
        paper_tables=paper.paper_tables(results, read_published(named.published), named.title, []) if named else [],
        main_table=replace(summary, notes=summary.notes[len(notes) :]),
        tables_of_seeds=[robust_table, *efficiency_tables] if falls else [],
        benchmark_tables=by_benchmark,
        seed_tables=main.by_seed_tables(results),
        audit_table=audited,
        audit_tables=audited_by_benchmark,
        timing_table=_timing_table(results, directory / "runs"),
        figures=[
            EmbeddedFigure.read(path, alternative, caption.format(**words))
            for path, (alternative, caption) in figures.items()
        ],
        examples=examples,
        stale=[row for row in status if not row.current],
        status={row.result: row for row in status},
        runs=runs,
        others=[row for row in status if row.result not in {run["result"] for run in runs}],
        problem_sets=[ProblemFile.of(path.parent) for path in sorted((directory / "problems").glob("*/manifest.json"))],
    )


def _timing_table(results: Results, training: Path) -> Table:
    """Mean seconds of a step's phases and generated tokens a second, over the steps and seeds of every trained method.

    A phase that the engine does not measure is a dash.
    """
    rows = []
    for condition in results.conditions:
        if condition.method == BASE:
            continue
        paths = [training / run.run / "metrics.parquet" for run in condition.runs]
        steps = pd.concat([read_parquet(path, _OF_EVERY_ENGINE) for path in paths])
        means = [steps[phase].mean() if phase in steps else None for phase in _PHASES]
        seconds = [numbers.NOTHING if pd.isna(mean) else f"{mean:.3f}" for mean in means]
        rate = steps["tokens_generated"].sum() / steps["seconds_rollout"].sum()
        rows.append((condition.title, *seconds, numbers.whole(float(rate))))
    header = ("Method", *_PHASES.values(), "Tokens/s in rollout")
    return Table("timing", "Seconds of a training step, mean over steps and seeds", header, tuple(rows))
