"""The steps of a study up to its comparisons: problems, models, samples, grades, scores."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from evals.core.errors import UserError
from evals.core.files import parse_json
from evals.generation import arithmetic
from evals.generation.settings import EvaluationSettings
from rlvr.cli.command import Commands
from rlvr.cli.options import (
    Device,
    OtherBenchmarks,
    Paths,
    ProblemDirectory,
    VerifierFiles,
    read_others,
    the_verifier,
)

commands = Commands()


@commands.add("write-json")
def write_json(content: Annotated[str, Argument(help="JSON")], out: Path) -> None:
    """Write a file as it is given, such as the list of a study's runs."""
    from evals.core.files import write_text

    write_text(out, content)


commands.call("draw-problems", "evals.problems.arithmetic:write_problems")
commands.call("read-problems", "evals.problems.problem_set:write_benchmark", options={"content": "settings"})
commands.call("take-problems", "evals.problems.problem_set:take_problems")
commands.call("read-training-set", "evals.problems.training_set:write_training_set", options={"content": "settings"})
commands.call("check-disjoint", "evals.problems.disjoint:check_disjoint")
commands.call("try-verifier", "evals.grading.trial:try_verifier")
commands.call("corpus", "rlvr.base_model.corpus:write_corpus")
commands.call("import-model", "evals.generation.checkpoint:import_model")
commands.call("reach-server", "evals.generation.served:write_service")


@commands.add("base-model")
def base_model(
    settings: Annotated[str, Option(help="JSON: architecture and the model's training settings")],
    corpus: Annotated[Path, Option(help="what `stage corpus` wrote")],
    threads: int,
    checkpoint_interval: int,
    out: Path,
    lock_wait_seconds: float = 600.0,
) -> None:
    """Train the base model on its corpus, or continue. Exits with status 143 after a SIGTERM, with the state saved."""
    arithmetic.set_up(threads)
    from rlvr.base_model.train import BaseModelSettings, train_base_model
    from rlvr.runs.termination import exit_if_interrupted

    read = BaseModelSettings.parse_text(settings, "--settings")
    with exit_if_interrupted():
        train_base_model(read, corpus, out, checkpoint_interval, lock_wait_seconds)


@commands.add("fine-tune")
def fine_tune(
    settings: Annotated[str, Option(help="JSON: prompt, optimizer, length, dtype and prompt form")],
    base: Annotated[Path, Option(help="directory of an imported model")],
    solutions: Annotated[Paths, Option(help="JSON lines with problem and solution")],
    threads: int,
    out: Path,
    device: Device = "cpu",
    checkpoint_interval: int = 100,
    lock_wait_seconds: float = 600.0,
) -> None:
    """Train an existing model on worked solutions, or continue."""
    content = parse_json(settings, "--settings")
    arithmetic.set_up(threads, device == "cpu" and content.get("dtype") == "float32")
    from rlvr.engines.local import fine_tune as tuning
    from rlvr.runs.termination import exit_if_interrupted

    read = tuning.FineTuningSettings.parse(content, "--settings")
    with exit_if_interrupted():
        tuning.fine_tune(read, base, solutions, out, device, checkpoint_interval, lock_wait_seconds)


@commands.add("sample")
def sample(
    source: Annotated[Path, Option(help="directory of a run or base model")],
    problems: ProblemDirectory,
    settings: EvaluationSettings,
    out: Path,
    splits: Annotated[int, Option(help="jobs that the benchmark is divided into")] = 1,
    split: Annotated[
        int | None, Option(help="make only this part, from 1; without it: what is missing, and merge")
    ] = None,
    others: OtherBenchmarks = "{}",
) -> None:
    """Sample a checkpoint on a benchmark; goes on if killed."""
    settings.choose_code_paths()
    from evals.core.single_writer import single_writer
    from evals.generation.checkpoint import Checkpoint
    from evals.generation.evaluate import sample_benchmark

    own = read_others(others)
    if split is not None:
        if not 1 <= split <= splits:
            raise UserError(f"--split: is {split}; accepted: 1 to {splits}")
        sample_benchmark([Checkpoint.of(source)], problems, settings, out, split - 1, splits, own)
        return
    with single_writer(out / ".writer", "samples into this directory"):
        sample_benchmark([Checkpoint.of(source)], problems, settings, out, None, splits, own)


@commands.add("grade")
def grade(
    samples: Annotated[Path, Option(help="samples.jsonl, with its manifest.json beside it")],
    problems: Path,
    out: Path,
    kind: Annotated[
        Literal["completion", "answer", "choice", "code", "verifier"],
        Option(
            help="how the samples are read; code: programs, which are run in a sandbox against tests.jsonl beside the "
            "problems, with limits of their own; verifier: by the function of --verifier",
        ),
    ] = "completion",
    verifier: VerifierFiles = [],
    workers: int | None = None,
    time_limit: float = 5.0,
    memory_limit: float = 2048.0,
) -> None:
    """Grade a study's samples. Rules: docs/grading.md."""
    from evals.core.single_writer import single_writer
    from evals.grading.grade_file import grade_file
    from evals.grading.pool import GradingPool
    from evals.grading.verdict import Reason

    with (
        GradingPool(workers, time_limit, memory_limit * 1024**2, the_verifier(verifier)) as pool,
        single_writer(out / ".writer", "grades into this directory"),
    ):
        reasons = grade_file(samples, problems, out, pool, kind)
    counts = ", ".join(f"{reason.value} {reasons[reason]}" for reason in Reason if reasons[reason])
    print(f"{out}: {reasons.total()} samples graded: {counts or 'none'}", file=sys.stderr)


commands.call("choose-best", "rlvr.engines.best:choose_best")
commands.call("score", "evals.scores.score:write_scores")
commands.call("audit", "evals.audit.run:write_audit")


@commands.add("compare")
def compare(
    scores: Paths,
    reference_method: str,
    out: Path,
    claim: Annotated[
        Literal["methods", "checkpoints"],
        Option(help="what is compared: methods, with their seeds as a sample, or these very checkpoints"),
    ] = "methods",
    seed: int = 0,
    resamples: int = 10_000,
    permutations: int = 100_000,
    weighting: str = "benchmarks",
    controls: Annotated[str | None, Option(help='JSON: {"positive": METHOD, "negative": METHOD}')] = None,
    training: Annotated[
        Path | None, Option(help="directory of the runs, whose metrics give the methods' contrast with the reference")
    ] = None,
) -> None:
    """Compare every method with a reference method and with the base model."""
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
