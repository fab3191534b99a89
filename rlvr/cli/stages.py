"""The steps of a study up to its comparisons: problems, models, samples, grades, scores."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from evals.core.errors import UserError
from evals.generation import arithmetic
from evals.generation.options import SamplingOptions
from rlvr.cli.command import Commands
from rlvr.cli.options import OtherBenchmarks, Paths, ProblemDirectory, read_others

commands = Commands()

Settings = Annotated[str, Option(help="JSON, as in the study's configuration; of problems with their name")]


@commands.add("write-json")
def write_json(content: Annotated[str, Argument(help="JSON")], out: Path) -> None:
    """Write a file as it is given, such as the list of a study's runs."""
    from evals.core.files import write_text

    write_text(out, content)


@commands.add("draw-problems")
def draw_problems(
    name: Annotated[str, Option(help="prefix of the problems' ids")],
    kinds: Annotated[str, Option(help='JSON list: [{"family": "chain", "operands": 3}, ...]')],
    split: Annotated[Literal["train", "evaluation"], Option(help="side that the problems belong to")],
    count: int,
    seed: int,
    out: Path,
    without: Annotated[Paths, Option(help="JSONL files whose problems are not drawn")] = [],
) -> None:
    """Draw different problems from a seed."""
    from evals.problems.arithmetic import parse_kinds, write_problems

    write_problems(name, parse_kinds(kinds), split, count, seed, without, out)


@commands.add("read-problems")
def read_problems(settings: Settings, out: Path) -> None:
    """Read a benchmark from the Hub or from files."""
    from evals.problems.problem_set import parse_json, write_benchmark

    write_benchmark(parse_json(settings), out)


@commands.add("read-training-set")
def read_training_set(settings: Settings, out: Path) -> None:
    """Read a published training set, without its repetitions."""
    from evals.problems.problem_set import parse_json
    from evals.problems.training_set import write_training_set

    write_training_set(parse_json(settings), out)


@commands.add("check-disjoint")
def check_disjoint(
    benchmark: ProblemDirectory,
    out: Path,
    trained_on: Annotated[Paths, Option(help="JSONL files with a problem a row")] = [],
) -> None:
    """Fail if a benchmark's problem was trained on; otherwise write what was compared."""
    from evals.problems import disjoint

    disjoint.check_disjoint(benchmark, trained_on, out)


@commands.add("corpus")
def corpus(settings: Settings, count: int, out: Path) -> None:
    """Write the base model's worked solutions, of which a part is wrong."""
    from evals.core.config.base_models import Corpus
    from rlvr.base_model.corpus import write_corpus

    write_corpus(Corpus.parse_text(settings, "--settings"), count, out)


@commands.add("base-model")
def base_model(
    settings: Annotated[str, Option(help="JSON: architecture and the model's training settings")],
    corpus: Annotated[Path, Option(help="what `stage corpus` wrote")],
    threads: int,
    checkpoint_interval: int,
    out: Path,
    lock_wait_seconds: float = 600.0,
) -> None:
    """Train the base model on its corpus, or continue."""
    arithmetic.set_up(threads)
    from rlvr.base_model.train import BaseModelSettings, train_base_model

    read = BaseModelSettings.parse_text(settings, "--settings")
    train_base_model(read, corpus, out, checkpoint_interval, lock_wait_seconds)


@commands.add("import-model")
def import_model(
    model: Annotated[str, Option(help="directory, or id on the Hugging Face Hub")],
    out: Path,
    revision: Annotated[
        str | None, Option(help="commit on the Hub, 40 hexadecimal digits; none with a directory")
    ] = None,
) -> None:
    """Link or fetch a Hugging Face checkpoint, and hash it."""
    from evals.generation import checkpoint

    checkpoint.import_model(model, revision, out)


@commands.add("sample")
def sample(
    source: Annotated[Path, Option(help="directory of a run or base model")],
    problems: ProblemDirectory,
    sampling: SamplingOptions,
    out: Path,
    tensor_parallel_size: Annotated[int, Option(help="GPUs that vllm spreads the model over")] = 1,
    gpu_memory_utilization: Annotated[float, Option(help="share that vllm takes")] = 0.9,
    splits: Annotated[int, Option(help="jobs that the benchmark is divided into")] = 1,
    split: Annotated[
        int | None, Option(help="make only this part, from 1; without it: what is missing, and merge")
    ] = None,
    others: OtherBenchmarks = "{}",
) -> None:
    """Sample a checkpoint on a benchmark; goes on if killed."""
    more = {"tensor_parallel_size": tensor_parallel_size, "gpu_memory_utilization": gpu_memory_utilization}
    settings = sampling.settings(**more)
    from evals.core.single_writer import single_writer
    from evals.generation.checkpoint import Checkpoint
    from evals.generation.evaluate import sample_benchmark

    prompts = read_others(others)
    if split is not None:
        if not 1 <= split <= splits:
            raise UserError(f"--split: is {split}; accepted: 1 to {splits}")
        sample_benchmark([Checkpoint.of(source)], problems, settings, out, split - 1, splits, prompts)
        return
    with single_writer(out / ".writer", "samples into this directory"):
        sample_benchmark([Checkpoint.of(source)], problems, settings, out, None, splits, prompts)


@commands.add("grade")
def grade(
    samples: Annotated[Path, Option(help="samples.jsonl, with its manifest.json beside it")],
    problems: Path,
    out: Path,
    kind: Annotated[
        Literal["completion", "answer", "choice", "code"],
        Option(
            help="how the samples are read; code: programs, which are run in a sandbox against tests.jsonl beside the "
            "problems, with limits of their own",
        ),
    ] = "completion",
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
        GradingPool(workers, time_limit=time_limit, memory_limit=int(memory_limit * 1024**2)) as pool,
        single_writer(out / ".writer", "grades into this directory"),
    ):
        reasons = grade_file(samples, problems, out, pool, kind)
    counts = ", ".join(f"{reason.value} {reasons[reason]}" for reason in Reason if reasons[reason])
    print(f"{out}: {reasons.total()} samples graded: {counts or 'none'}", file=sys.stderr)


@commands.add("score")
def score(benchmark: str, grades: Paths, runs: Path, out: Path) -> None:
    """Score every run on one benchmark."""
    from evals.scores.score import write_scores

    write_scores(benchmark, grades, runs, out)


@commands.add("audit")
def audit(
    benchmark: str,
    grades: Paths,
    samples: Annotated[Paths, Option(help="their samples, in the same order")],
    problems: Path,
    out: Path,
    workers: Annotated[int, Option(help="processes of the second grader")] = 1,
) -> None:
    """Measure how far a benchmark's grades can be trusted, run by run (docs/grading.md)."""
    from evals.audit.run import write_audit

    write_audit(benchmark, grades, samples, problems, workers, out)


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
    controls: Annotated[str | None, Option(help='JSON: {"positive": METHOD, "negative": METHOD}')] = None,
    training: Annotated[
        Path | None, Option(help="directory of the runs, whose metrics give the methods' contrast with the reference")
    ] = None,
) -> None:
    """Compare every method with a reference method and with the base model."""
    from evals.core.records import Claim, Controls
    from evals.scores.comparison import Settings, write_comparisons

    settings = Settings(
        reference_method,
        Claim(claim),
        seed=seed,
        bootstrap_resamples=resamples,
        permutations=permutations,
        controls=None if controls is None else Controls.parse_text(controls, "--controls"),
    )
    write_comparisons(scores, settings, out, training)
