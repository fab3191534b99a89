"""Simulated studies: one method under two names, and methods that differ by what a study promises to find."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evals.core.manifest import write_output_manifest
from evals.core.records import ALL_BENCHMARKS
from evals.scores.comparison import BenchmarkCounts, Settings, compare
from evals.scores.simulation import simulate_null, simulate_promises
from tests.commands import rlvr_bench
from tests.unit.synthetic_results import Study

SETTINGS = Settings("dapo", bootstrap_resamples=200, permutations=500)
main = rlvr_bench()


def study(seeds: int, seed_sd: float = 0.15, methods: tuple[str, ...] = ("dapo",)) -> list[BenchmarkCounts]:
    """Two benchmarks of 20 problems with 16 samples; every seed of every method has strengths of its own."""
    generator = np.random.default_rng(5)
    runs = [(method, seed) for method in methods for seed in range(seeds)]
    strength = {run: generator.normal(0, seed_sd) for run in runs}
    benchmarks = []
    for name in ("a", "b"):
        difficulty = generator.normal(0, 1.5, 20)
        own = {method: generator.normal(0, 0.3, 20) for method in methods}
        counts = {}
        for method, seed in runs:
            logits = difficulty + own[method] + strength[method, seed] + generator.normal(0, 0.2, 20)
            counts[f"{method}-s{seed}"] = generator.binomial(16, 1 / (1 + np.exp(-logits))).tolist()
        names = {f"{method}-s{seed}": ("tiny", method) for method, seed in runs}
        benchmarks.append(BenchmarkCounts(Path(name), name, 16, names, counts))
    return benchmarks


def test_one_method_under_two_names_gets_no_more_verdicts_than_it_may() -> None:
    found = simulate_null(study(8), "tiny", "dapo", 4, 60, SETTINGS)
    assert (found.pool, found.seeds, found.verdicts.of) == (8, 4, 60)
    assert found.verdicts.share <= 0.06 and found.verdicts.low <= 0.05
    assert found.found.share >= 0.7  # the same studies with a difference of the promised size


def test_studies_with_the_promised_difference_find_it() -> None:
    (promise,) = simulate_promises(study(5, methods=("dapo", "other")), "dapo", 400, SETTINGS)
    assert promise.method == "other" and 0.01 < promise.effect < 0.3
    assert 0.75 <= promise.found.share <= 0.9


def test_the_promise_is_that_of_the_comparison_whatever_the_weights_of_the_benchmarks() -> None:
    settings = replace(SETTINGS, weighting={"a": 9.0, "b": 1.0})
    benchmarks = study(5, methods=("dapo", "other"))
    (promise,) = simulate_promises(benchmarks, "dapo", 400, settings)
    (row,) = [row for row in compare(benchmarks, settings).comparisons if row.benchmark == ALL_BENCHMARKS]
    assert promise.effect == row.minimum_detectable_effect
    assert promise.effect > 1.1 * simulate_promises(benchmarks, "dapo", 2, SETTINGS)[0].effect
    assert 0.75 <= promise.found.share <= 0.9


def test_the_command_writes_json_and_refuses_more_seeds_than_there_are(
    editable_study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in editable_study.scores:
        write_output_manifest("scores", path.with_suffix(""), [".json"], [], {})
    scores = sorted(map(str, editable_study.scores[0].parent.glob("*.json")))  # with manifests, as a shell gives them
    assert any(path.endswith(".manifest.json") for path in scores)
    arguments = ["simulate", "--scores", *scores, "--reference-method", "dapo"]
    assert main([*arguments, "--studies", "5", "--out", str(tmp_path / "simulated.json")]) == 0
    content = json.loads((tmp_path / "simulated.json").read_text())
    assert content["one_method_under_two_names"] == []  # two runs cannot be divided into two methods
    assert [row["method"] for row in content["minimum_detectable_effects"]] == ["grpo", "delta"]
    assert main([*arguments, "--seeds", "2"]) == 2
    message = "error: --seeds: is 2; accepted: at least 2, and at most half of the 2 runs of dapo on tiny"
    assert capsys.readouterr().err.strip() == message
