"""The functions behind jobs that need a pool, a lock or two models; tests choose their own paths."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import UserError


def status(function: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    """0, or 2 after an error in one line, as the job's process ends in which a stage calls ``function``."""
    try:
        function(*arguments, **named)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def base_model(settings: dict[str, Any], corpus: Path, checkpoint_interval: int, out: Path) -> None:
    """Train a base model on one thread."""
    from evals.generation import arithmetic

    arithmetic.set_up(1)
    from rlvr.base_model.train import BaseModelSettings, train_base_model

    train_base_model(BaseModelSettings.parse(settings, "settings"), corpus, out, checkpoint_interval, 600.0)


def grade(
    samples: Path,
    problems: Path,
    out: Path,
    kind: str = "completion",
    verifier: Path | None = None,
    workers: int | None = 1,
    time_limit: float = 5.0,
) -> None:
    """Grade a file of samples, into the directory ``out``."""
    from evals.core.single_writer import single_writer
    from evals.grading.grade_file import grade_file
    from evals.grading.pool import GradingPool

    with (
        GradingPool(workers, time_limit, 2048 * 1024**2, verifier) as pool,
        single_writer(out / ".writer", "grades into this directory"),
    ):
        grade_file(samples, problems, out, pool, kind)


def audit(samples: Path, grades: Path, problems: Path, out: Path, share: float = 1.0) -> None:
    """Audit a directory of grades."""
    from evals.audit.grade import SecondGrader, write_audit

    with SecondGrader(1) as second:
        write_audit(samples, grades, problems, out, second, share)


def sample_benchmark(models: Sequence[Any], problems: Path, settings: Any, out: Path, **pair: Any) -> None:
    """Sample a policy on one benchmark, into the directory ``out``."""
    from evals.generation.evaluate import sample_plan
    from evals.generation.plan import make_plan

    plan = make_plan(models, problems, settings).with_parameters(**pair.get("parameters", {}))
    sample_plan(plan, plan.load_backend, out, pair.get("draws"))
