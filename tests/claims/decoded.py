"""Sample two models together, as the workflow does."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from evals.grading.pool import GradingPool
from evals.grading.verdict import Kind
from rlvr_claims.decoding.draw import PairDraw
from rlvr_claims.decoding.settings import Decoding, Grid
from rlvr_claims.decoding.sweep import identities, read_pair, sample_grid
from tests.stages import sample_benchmark


def decode_sample(models: tuple[Path, Path], problems: Path, settings: Any, rule: Mapping[str, Any], out: Path) -> None:
    """Sample a base and a trained model together by a rule of decoding."""

    decoding, pair = Decoding.parse(rule, ""), read_pair(*models, settings.dtype)
    settings.choose_code_paths()
    parameters = {**identities(pair), "decoding": decoding.to_json()}
    draws = partial(PairDraw, decoding, settings)
    sample_benchmark(pair, problems, settings, out, draws=draws, parameters=parameters)


def decode_sweep(models: tuple[Path, Path], problems: Path, settings: Any, grid: Mapping[str, Any], out: Path) -> None:
    """Sample a base and a trained model together at every point of a grid."""

    settings.choose_code_paths()
    with GradingPool(1) as pool:
        pair = read_pair(*models, settings.dtype)
        sample_grid(pair, problems, settings, Grid.parse(grid, ""), Kind.COMPLETION, pool, out)
