"""Verdicts at the best learning rate of each method: which rate a seed has, and what is compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evals.core.config.sections import Statistics
from evals.core.errors import UserError
from evals.core.files import write_parquet
from evals.core.records import Way
from evals.scores.designs import write_rates_table
from tests.unit.scores.test_compare_command import write_scores
from tests.unit.synthetic_results import vouch_for

RATES = {
    "dapo": {"dapo": 0.2, "dapo_rate_half": 0.1, "dapo_rate_twice": 0.4},
    "grpo": {"grpo": 0.2, "grpo_rate_half": 0.1, "grpo_rate_twice": 0.4},
}
TITLES = {"dapo": "DAPO", "grpo": "GRPO"}
SHEET = [
    Way(name=name, method=method, title=TITLES[method], rates={"tiny": rate})
    for method, names in RATES.items()
    for name, rate in names.items()
]
STATISTICS = Statistics(seed=1, resamples=200, permutations=200)


def study(root: Path, held_out: dict[str, list[int]], solved: dict[str, int], seeds: int = 3) -> Path:
    """Runs of 30 problems, so many of 32 samples of each right; held-out problems right of 10, by name and seed."""
    generator = np.random.default_rng(1)
    counts: dict[Any, np.ndarray] = {("base", None): np.full(30, 4)}
    for name, level in solved.items():
        for seed in range(1, seeds + 1):
            counts[name, seed] = np.clip(level + generator.integers(-3, 4, 30), 0, 32)
            rows = [
                {"step": step, "correct_counts": [right], "samples_per_problem": 10}
                for step, right in ((0, 0), (4, held_out[name][seed - 1]))
            ]
            directory = root / "runs" / f"tiny-{name}-s{seed}"
            write_parquet(directory / "validation.parquet", pd.DataFrame(rows))
            write_parquet(directory / "metrics.parquet", pd.DataFrame({"reward_mean": [0.5, 0.5]}))
            vouch_for(directory / "metrics.parquet", "run", parameters={"method": {}})
    return write_scores(root, "easy", counts)


def written(root: Path, scores: Path) -> tuple[pd.DataFrame, str]:
    write_rates_table([scores], root / "runs", SHEET, "dapo", STATISTICS, root / "rates")
    return pd.read_csv(root / "rates.csv").set_index("method"), (root / "rates.md").read_text()


def test_a_method_is_judged_at_the_rate_that_the_other_seeds_chose(tmp_path: Path) -> None:
    """GRPO is worse at the common rate, and better at twice as much; each seed of its is the best at another rate."""
    held_out = {name: [5, 5, 5] for of_method in RATES.values() for name in of_method}
    held_out |= {"grpo": [9, 2, 2], "grpo_rate_half": [1, 1, 1], "grpo_rate_twice": [1, 8, 8]}
    solved = {
        "dapo": 16,
        "dapo_rate_half": 2,
        "dapo_rate_twice": 30,
        "grpo": 10,
        "grpo_rate_half": 1,
        "grpo_rate_twice": 22,
    }
    frame, text = written(tmp_path, study(tmp_path, held_out, solved))
    # Seed 1 has the rate of seeds 2 and 3. Those have the one of seed 1 and each other: 9 + 2 against 1 + 8.
    assert frame.loc["grpo", "seeds_by_rate"] == "0.1: 0, 0.2: 2, 0.4: 1"
    assert frame.loc["dapo", "seeds_by_rate"] == "0.1: 0, 0.2: 3, 0.4: 0", "of equals the study's own"
    assert frame.loc["grpo", "average_at_best"] == pytest.approx((22 + 10 + 10) / 3 / 32, abs=0.02)
    assert frame.loc["grpo", "difference"] == pytest.approx(-6 / 32, abs=0.03)
    held_out["grpo"] = [2, 2, 2]
    frame, text = written(tmp_path, study(tmp_path, held_out, solved))
    assert frame.loc["grpo", "verdict_2"] == "not distinguishable", "seed 1 alone would choose otherwise"
    held_out["grpo_rate_twice"] = [6, 8, 8]
    frame, text = written(tmp_path, study(tmp_path, held_out, solved))
    assert frame.loc["grpo", ["verdict_1", "verdict_2"]].tolist() == ["worse", "better"]
    assert frame.loc["dapo", ["verdict_1", "verdict_2"]].tolist() == ["reference", "reference"]
    assert "GRPO: worse at the study's rate, but better where both have their best; most seeds chose a rate at" in text


def test_the_reference_has_its_best_rate_too(tmp_path: Path) -> None:
    held_out = {name: [5 + name.endswith("twice")] * 3 for of_method in RATES.values() for name in of_method}
    solved = {name: 24 if name == "dapo_rate_twice" else 12 for of_method in RATES.values() for name in of_method}
    frame, text = written(tmp_path, study(tmp_path, held_out, solved))
    assert frame.loc["grpo", ["verdict_1", "verdict_2"]].tolist() == ["not distinguishable", "worse"]
    assert "DAPO: most seeds chose a rate at the end of those tried, one beyond may be better." in text


def test_one_seed_cannot_choose(tmp_path: Path) -> None:
    names = [name for of_method in RATES.values() for name in of_method]
    scores = study(tmp_path, {name: [5] for name in names}, dict.fromkeys(names, 9), seeds=1)
    with pytest.raises(UserError, match="tiny has one seed; accepted: 2 or more"):
        written(tmp_path, scores)
