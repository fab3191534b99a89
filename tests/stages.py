"""The functions behind the stages of a study, called by words as a person would: ``--scores a.json b.json --out X``.

A stage itself is carried out from its file, below results/. Tests of what it calls choose their own paths.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin

from pydantic import TypeAdapter

from evals.core.errors import InvalidInput, UserError
from evals.core.files import parse_json

FUNCTIONS = {
    "draw-problems": "evals.problems.arithmetic:write_problems",
    "read-problems": "evals.problems.problem_set:write_benchmark",
    "take-problems": "evals.problems.problem_set:take_problems",
    "read-training-set": "evals.problems.training_set:write_training_set",
    "check-disjoint": "evals.problems.disjoint:check_disjoint",
    "try-verifier": "evals.grading.trial:try_verifier",
    "corpus": "rlvr.base_model.corpus:write_corpus",
    "import-model": "evals.generation.checkpoint:import_model",
    "choose-best": "rlvr.engines.best:choose_best",
    "score": "evals.scores.score:write_scores",
    "table main": "evals.tables.main:write_main_table",
    "table by_seed": "evals.tables.by_seed:write_by_seed_table",
    "table robust": "evals.tables.robust:write_robust_table",
    "table efficiency": "evals.tables.efficiency:write_efficiency_table",
    "table checkpoints": "evals.tables.checkpoints:write_checkpoints_table",
    "table audit": "evals.tables.audit:write_audit_table",
    "table paper_vs_ours": "evals.tables.published:write_paper_vs_ours_table",
    "table phenomena": "rlvr.diagnostics.claims.findings:write_table",
    "table decoding": "evals.decoding.table:write_table",
    "figure scores": "evals.figures.results:write_scores_figure",
    "figure differences": "evals.figures.results:write_differences_figure",
    "figure profiles": "evals.figures.results:write_profiles_figure",
    "figure cost_curves": "evals.figures.efficiency:write_cost_curves",
    "figure compute_performance": "evals.figures.efficiency:write_compute_performance",
    "figure training_curves": "rlvr.report.curves:write_training_curves",
    "figure reward_curves": "rlvr.report.curves:write_reward_curves",
    "figure score_curves": "rlvr.report.curves:write_score_curves",
    "figure validation_curves": "rlvr.report.curves:write_validation_curves",
    "figure replaced_tokens": "evals.decoding.figure:write_figure",
    "page phenomena": "rlvr.report.pages:write_phenomena_page",
    "page responses": "rlvr.report.responses:write_responses_page",
    "page rollouts": "rlvr.report.rollouts:write_rollouts_page",
    "page decoding": "rlvr.report.pages:write_decoding_page",
    "report": "rlvr.report.page:write_report",
    "track": "rlvr.report.mlflow.projection:track",
    "decode choose": "evals.decoding.choose:write_choice",
}
_RESULTS = ("scores", "comparisons", "runs")
_NAMES = {"settings": "content", "note": "notes", "results": "directory"}
"""Words -> the parameters that they stand for, where a function has no parameter of their name."""


def stage(*first: str) -> Callable[[Sequence[object]], int]:
    """A stage's function with its first words given; takes the others, returns 0, or 2 after an error in one line."""

    def run(words: Sequence[object]) -> int:
        rest = [*first, *map(str, words)]
        name = next(known for known in (" ".join(rest[:2]), rest[0]) if known in FUNCTIONS or known in _OWN)
        try:
            _call(_OWN.get(name) or _imported(FUNCTIONS[name]), rest[len(name.split()) :])
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0

    return run


def _imported(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function)


def _call(function: Callable[..., Any], words: Sequence[str]) -> None:
    given: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            given[key.replace("-", "_")] = [value] if equals else []
        else:
            given[list(given)[-1]].append(word)
    parameters = inspect.signature(function, eval_str=True).parameters
    arguments: dict[str, Any] = {}
    if "results" in parameters and set(_RESULTS) <= given.keys() and "scores" not in parameters:
        from evals.results import read_results

        files = {key: list(map(Path, given.pop(key))) for key in _RESULTS}
        arguments["results"] = read_results(files["runs"][0], files["scores"], files["comparisons"][0])
    for key, values in given.items():
        name = key if key in parameters and key not in arguments else _NAMES.get(key, key)
        if name not in parameters and "given" in parameters:
            arguments[name] = _guessed(values)
            continue
        arguments[name] = _value(parameters[name].annotation, values, f"--{key}")
    function(**arguments)


def _guessed(values: Sequence[str]) -> Any:
    """A value of sampling: a number where it looks like one."""
    try:
        return json.loads(values[0])
    except ValueError:
        return values[0]


def _value(kind: Any, values: Sequence[str], source: str) -> Any:
    if hasattr(kind, "parse_text"):
        return kind.parse_text(values[0], source)
    if kind is str:
        return values[0]
    structured = get_origin(kind) in (Mapping, dict) or (get_origin(kind) is not None and "Mapping" in str(kind))
    if structured:
        return parse_json(values[0], source)
    if get_origin(kind) in (Sequence, list, tuple) or "Sequence" in str(kind):
        return TypeAdapter(kind).validate_python(list(values))
    return TypeAdapter(kind).validate_python(values[0] if values else True)


def _write_json(content: str, out: Path) -> None:
    from evals.core.files import write_text

    write_text(out, content)


def _base_model(settings: dict[str, Any], corpus: Path, threads: int, checkpoint_interval: int, out: Path) -> None:
    from evals.generation import arithmetic

    arithmetic.set_up(threads)
    from rlvr.base_model.train import BaseModelSettings, train_base_model

    train_base_model(BaseModelSettings.parse(settings, "--settings"), corpus, out, checkpoint_interval, 600.0)


def _grade(
    samples: Path,
    problems: Path,
    out: Path,
    kind: str = "completion",
    verifier: Sequence[Path] = (),
    workers: int | None = None,
    time_limit: float = 5.0,
    memory_limit: float = 2048.0,
) -> None:
    from evals.core.single_writer import single_writer
    from evals.grading.grade_file import grade_file
    from evals.grading.pool import GradingPool

    if len(verifier) > 1:
        raise InvalidInput("--verifier", "", f"names {len(verifier)} files", "one")
    pool = GradingPool(workers, time_limit, memory_limit * 1024**2, verifier[0] if verifier else None)
    with pool, single_writer(out / ".writer", "grades into this directory"):
        grade_file(samples, problems, out, pool, kind)


def _audit(samples: Path, grades: Path, problems: Path, out: Path, workers: int = 1) -> None:
    from evals.audit.run import SecondGrader, write_audit

    with SecondGrader(workers) as second:
        write_audit(samples, grades, problems, out, second)


def _compare(
    scores: Sequence[Path],
    reference_method: str,
    out: Path,
    claim: str = "methods",
    seed: int = 0,
    resamples: int = 10_000,
    permutations: int = 100_000,
    weighting: str = "benchmarks",
    controls: str | None = None,
    training: Path | None = None,
) -> None:
    from evals.core.comparisons import Claim, Controls
    from evals.scores.comparison import Settings, write_comparisons
    from evals.statistics.weighting import parse_weighting

    settings = Settings(
        reference_method,
        Claim(claim),
        seed=seed,
        bootstrap_resamples=resamples,
        permutations=permutations,
        weighting=parse_weighting(weighting),
        controls=None if controls is None else Controls.parse_text(controls, "--controls"),
    )
    write_comparisons(scores, settings, out, training)


def sample_benchmark(models: Sequence[Any], problems: Path, settings: Any, out: Path, **pair: Any) -> None:
    """Sample a policy on one benchmark, into the directory ``out``."""
    from evals.generation.evaluate import sample_plan
    from evals.generation.plan import make_plan

    plan = make_plan(models, problems, settings).with_parameters(**pair.get("parameters", {}))
    sample_plan(plan, plan.load_backend, out, pair.get("draws"))


def _pair(base: Path, trained: Path, given: dict[str, Any]) -> tuple[Any, Any]:
    from evals.decoding.pair import read_pair
    from evals.generation.settings import EvaluationSettings

    settings = EvaluationSettings.parse(given, "")
    settings.choose_code_paths()
    return settings, read_pair(base, trained, settings.dtype)


def _decode_sample(
    base: Path,
    trained: Path,
    problems: Path,
    out: Path,
    decoding: Mapping[str, Any] = {},
    chosen: Sequence[Path] = (),
    scheme: str = "",
    **given: Any,
) -> None:
    from functools import partial

    from evals.decoding.choose import chosen_decoding
    from evals.decoding.pair import identities, pair_draw
    from evals.decoding.settings import Decoding

    rule = chosen_decoding(chosen[0], scheme, trained.name) if chosen else Decoding.parse(decoding, "")
    settings, pair = _pair(base, trained, given)
    parameters = {**identities(pair), "decoding": rule.to_json()}
    draws = partial(pair_draw, rule, settings)
    sample_benchmark(pair, problems, settings, out, draws=draws, parameters=parameters)


def _decode_sweep(
    base: Path,
    trained: Path,
    problems: Path,
    out: Path,
    criteria: Sequence[str],
    fractions: Sequence[float],
    extrapolation_fractions: Sequence[float] = (),
    gammas: Sequence[float] = (),
    kind: str = "completion",
    **given: Any,
) -> None:
    from evals.decoding.settings import Grid
    from evals.decoding.sweep import sample_grid
    from evals.grading.pool import GradingPool
    from evals.grading.verdict import Kind

    lists = {"criteria": criteria, "fractions": fractions, "gammas": gammas}
    grid = Grid.parse({**lists, "extrapolation_fractions": extrapolation_fractions}, "")
    settings, pair = _pair(base, trained, given)
    with GradingPool(1) as pool:
        sample_grid(pair, problems, settings, grid, Kind(kind), pool, out)


def write_job(path: Path, kind: str, **fields: Any) -> Path:
    """The file of a stage, for a machine with two processes that grade."""
    from evals.core.files import write_json

    machine = {"device": "cpu", "sampling_threads": 1, "grading_workers": 2}
    write_json(path, {"stage": kind, "machine": machine, **fields})
    return path


_OWN: dict[str, Callable[..., Any]] = {
    "write-json": _write_json,
    "base-model": _base_model,
    "grade": _grade,
    "audit": _audit,
    "compare": _compare,
    "decode sample": _decode_sample,
    "decode sweep": _decode_sweep,
}
