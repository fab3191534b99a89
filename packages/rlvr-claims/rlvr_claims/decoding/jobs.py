"""The long jobs of decoding. Code paths of arithmetic are chosen before numpy and torch are imported."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput
from evals.core.files import read_jsonl, sha256_file, write_json
from evals.core.manifest import verify_outputs
from evals.core.sampling import OfBenchmark, Sampling, SamplingMachine
from evals.generation.settings import EvaluationSettings
from evals.problems.problem_set import write_problem_set
from rlvr_claims.decoding.settings import Decoding, Grid


def sweep(
    models: tuple[Path, Path],
    problems: Path,
    sampling: Sampling,
    benchmark: OfBenchmark,
    machine: SamplingMachine,
    grid: Grid,
    kind: str,
    out: Path,
) -> None:
    """Sample and grade the ways of decoding of a grid, what is missing of them, into ``out``.

    ``models`` are directories of the base and of the trained model, ``problems`` is that of the problems that
    thresholds are chosen on, with settings of their own in ``benchmark``; ``kind`` is how answers are read.
    """
    settings = EvaluationSettings.of(sampling, benchmark, machine)
    settings.choose_code_paths()
    from evals.core.single_writer import single_writer
    from evals.grading.pool import GradingPool
    from evals.grading.verdict import Kind
    from rlvr_claims.decoding.sweep import read_pair, sample_grid

    with single_writer(out / ".writer", "sweeps into this directory"), GradingPool(1) as pool:
        sample_grid(read_pair(*models, settings.dtype), problems, settings, grid, Kind(kind), pool, out)


def decode(
    models: tuple[Path, Path],
    sampling: Sampling,
    benchmarks: Mapping[Path, OfBenchmark],
    machine: SamplingMachine,
    decoding: Decoding | tuple[Path, str],
    out: Path,
) -> None:
    """Sample two models together on benchmarks, what is missing of it, each into a directory of its name in ``out``.

    ``benchmarks`` is directory of problems -> settings of its own; ``decoding`` the way of decoding, or for a run of
    the sweeps the file of chosen ones and a scheme.
    """
    settings = {problems: EvaluationSettings.of(sampling, own, machine) for problems, own in benchmarks.items()}
    first = next(iter(settings.values()))
    first.choose_code_paths()
    from evals.generation.evaluate import sample_benchmarks
    from rlvr_claims.decoding.draw import PairDraw
    from rlvr_claims.decoding.settings import chosen_decoding
    from rlvr_claims.decoding.sweep import identities, read_pair

    way = decoding if isinstance(decoding, Decoding) else chosen_decoding(*decoding, models[1].name)
    pair = read_pair(*models, first.dtype)
    parameters = {**identities(pair), "decoding": way.to_json()}
    sample_benchmarks(pair, settings, out, partial(PairDraw, way, first), parameters)


def take_problems(benchmark: Path, out: Path, count: int | None = None) -> None:
    """Take the first ``count`` problems of a benchmark, or all, as a set of their own to choose settings on."""
    manifest, path = verify_outputs(benchmark / "manifest.json", "problems"), benchmark / "problems.jsonl"
    if manifest.parameters.get("gated", False) or len(manifest.outputs) > 1:
        complaint = "is gated" if manifest.parameters.get("gated", False) else "has tests beside its problems"
        raise InvalidInput(str(benchmark), "", complaint, "a benchmark of mathematics or choices that is not gated")
    rows = read_jsonl(path)
    if count is not None and not 0 < count <= len(rows):
        raise InvalidInput(str(path), "", f"has {len(rows)} problems, and {count} are to be taken")
    taken, source = rows[:count], sha256_file(path)
    content = {"name": out.name, "taken_from": source, "count": len(taken)}
    write_problem_set(out, taken, content, {str(path): source}, {"rows": len(taken)})


def compare_decoded(
    runs: Sequence[Mapping[str, Any]],
    benchmarks: Sequence[str],
    grades: Sequence[Path],
    settings: Mapping[str, Any],
    out: Path,
) -> None:
    """Score and compare base models, trained models, and both together; the run sheet and scores lie beside ``out``.

    ``grades``: the directories of all ``runs``, the rows of the sheet.
    """
    from evals.scores.comparison import compare_study
    from evals.scores.score import write_all_scores

    sheet, scores = out.with_name("runs.json"), out.with_name("scores")
    write_json(sheet, runs)
    write_all_scores(benchmarks, grades, sheet, scores)
    compare_study([scores / f"{name}.json" for name in benchmarks], [], settings, None, out)
