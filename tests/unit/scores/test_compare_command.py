"""Comparisons: rows, verdicts, determinism, and what must stop it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evals.core.comparisons import Claim, Controls
from evals.core.manifest import verify_outputs
from evals.scores.comparison import Settings, verdict, write_comparisons
from evals.statistics.resampling import holm
from tests.stages import status
from tests.statistics.arms import estimate_difference
from tests.unit.synthetic_results import score_row, write_scores_file

SAMPLES = 32
Counts = Mapping[tuple[str, int | None], np.ndarray]


def write_scores(root: Path, benchmark: str, counts: Counts, model: str = "tiny") -> Path:
    rows = [
        score_row(
            {"run": f"{model}-{method}" + ("" if seed is None else f"-s{seed}")}
            | {"model": model, "method": method, "seed": seed},
            values,
            SAMPLES,
        )
        for (method, seed), values in counts.items()
    ]
    return write_scores_file(root / "scores" / f"{benchmark}.json", rows, SAMPLES)


def study(key: int, gains: Mapping[str, float], seeds: int = 3, problems: int = 30) -> Counts:
    """Counts of a base model and of methods that add ``gains`` to its accuracy."""
    generator = np.random.default_rng(key)
    base = generator.uniform(0.1, 0.5, problems)
    counts: dict[tuple[str, int | None], np.ndarray] = {("base", None): generator.binomial(SAMPLES, base)}
    for method, gain in gains.items():
        for seed in range(1, seeds + 1):
            moved = np.clip(base + gain + generator.normal(0.0, 0.01), 0.0, 1.0)
            counts[method, seed] = generator.binomial(SAMPLES, moved)
    return counts


def compare(root: Path, reference: str = "dapo", training: Path | None = None, **given: Any) -> int:
    paths = sorted((root / "scores").glob("*.json"))  # manifests too, as a shell's * gives them

    def write() -> None:
        settings = Settings(reference, **{"bootstrap_resamples": 500, "permutations": 1000, **given})
        write_comparisons(paths, settings, root / "comparisons.json", training)

    return status(write)


def rows_of(root: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    content = json.loads((root / "comparisons.json").read_text())
    return {(row["method"], row["against"], row["benchmark"]): row for row in content["comparisons"]}


GAINS = {"dapo": 0.2, "grpo": 0.2, "delta": 0.4, "poor": 0.02}


def test_every_method_meets_the_reference_and_the_base_on_every_benchmark_and_on_all(tmp_path: Path) -> None:
    for key, benchmark in enumerate(("easy", "hard")):
        write_scores(tmp_path, benchmark, study(key, GAINS))
    assert compare(tmp_path) == 0
    rows = rows_of(tmp_path)
    expected = {(method, "dapo") for method in GAINS if method != "dapo"} | {(method, "base") for method in GAINS}
    assert set(rows) == {(*pair, name) for pair in expected for name in ("easy", "hard", "all")}
    for name in ("easy", "hard", "all"):
        assert rows["delta", "dapo", name]["verdict"] == "better"
        assert rows["poor", "dapo", name]["verdict"] == "worse"
        assert rows["grpo", "dapo", name]["verdict"] == "not distinguishable"
        assert rows["dapo", "base", name]["verdict"] == "better"
    easy, hard, both = (rows["delta", "dapo", name] for name in ("easy", "hard", "all"))
    assert both["difference"] == pytest.approx((easy["difference"] + hard["difference"]) / 2)
    assert both["difference"] == pytest.approx(both["method_average"] - both["against_average"])
    for against in ("dapo", "base"):
        family = [row for (_, reference, name), row in rows.items() if (reference, name) == (against, "all")]
        adjusted = holm([row["p_value"] for row in family]).tolist()
        assert [row["p_value_holm"] for row in family] == adjusted != [row["p_value"] for row in family]
    assert max(easy["p_value"], hard["p_value"]) <= max(easy["p_value_holm"], hard["p_value_holm"])
    assert min(easy["p_value_holm"], hard["p_value_holm"]) == 2 * min(easy["p_value"], hard["p_value"])
    assert (both["problems"], both["seeds"], both["against_seeds"]) == (60, 3, 3)
    assert easy["confidence_interval"][0] < easy["difference"] < easy["confidence_interval"][1]
    assert easy["minimum_detectable_effect"] > 2.8 * easy["standard_error"]


def test_controls_are_named_beside_the_comparisons(tmp_path: Path) -> None:
    write_scores(tmp_path, "easy", study(1, GAINS))
    controls = {"positive": "poor", "negative": "grpo"}
    assert compare(tmp_path, controls=Controls(**controls)) == 0
    assert json.loads((tmp_path / "comparisons.json").read_text())["controls"] == controls


def test_one_base_model_alone_has_nothing_to_be_compared(tmp_path: Path) -> None:
    write_scores(tmp_path, "easy", study(1, {}))
    assert compare(tmp_path, reference="base") == 0
    assert rows_of(tmp_path) == {}


def write_models(root: Path, benchmark: str, key: int, gains: Mapping[str, float]) -> None:
    """Scores of base models on the same problems, and nothing else."""
    rows = []
    for model, gain in gains.items():
        counts = study(key, {"trained": gain})["trained", 1]
        rows += json.loads(write_scores(root, benchmark, {("base", None): counts}, model).read_text())["scores"]
    write_scores_file(root / "scores" / f"{benchmark}.json", rows, SAMPLES)


def test_base_models_are_compared_with_each_other_corrected_over_their_pairs(tmp_path: Path) -> None:
    for key, benchmark in enumerate(("easy", "hard")):
        write_models(tmp_path, benchmark, key, {"small": 0.0, "medium": 0.05, "large": 0.4})
    assert compare(tmp_path, reference="base") == 0
    rows = json.loads((tmp_path / "comparisons.json").read_text())["comparisons"]
    on_all = {(row["model"], row["against_model"]): row for row in rows if row["benchmark"] == "all"}
    assert set(on_all) == {("medium", "small"), ("large", "small"), ("large", "medium")}
    assert {row["benchmark"] for row in rows} == {"easy", "hard", "all"}
    row = on_all["large", "small"]
    scores = [json.loads((tmp_path / "scores" / f"{name}.json").read_text())["scores"] for name in ("easy", "hard")]
    assert row["verdict"] == "better" and row["problems"] == 60
    rates = [{each["model"]: np.mean(each["correct_counts"]) / SAMPLES for each in score} for score in scores]
    assert row["difference"] == pytest.approx(np.mean([rate["large"] - rate["small"] for rate in rates]))
    expected = holm([each["p_value"] for each in on_all.values()])
    assert [each["p_value_holm"] for each in on_all.values()] == pytest.approx(expected)


def test_weights_of_benchmarks_decide_the_mean_over_them_alone(tmp_path: Path) -> None:
    """Problems alike is what one benchmark of all problems would give; a weight for each is taken as it is."""
    short, long = study(1, GAINS, problems=20), study(2, GAINS, problems=60)
    write_scores(tmp_path, "short", short)
    write_scores(tmp_path, "long", long)
    assert compare(tmp_path) == 0
    alike = rows_of(tmp_path)
    assert json.loads((tmp_path / "comparisons.json").read_text())["weighting"] == "benchmarks"
    assert compare(tmp_path, weighting="problems") == 0
    by_problems = rows_of(tmp_path)
    assert compare(tmp_path, weighting={"long": 1.0, "short": 3.0}) == 0
    own = rows_of(tmp_path)
    assert json.loads((tmp_path / "comparisons.json").read_text())["weighting"] == {"long": 1, "short": 3}
    parts = [by_problems["delta", "dapo", name]["difference"] for name in ("short", "long")]
    for rows, weights in ((alike, (1, 1)), (by_problems, (20, 60)), (own, (3, 1))):
        row = rows["delta", "dapo", "all"]
        assert row["difference"] == pytest.approx(np.average(parts, weights=weights))
        assert row["difference"] == pytest.approx(row["method_average"] - row["against_average"])
        assert rows["delta", "dapo", "short"]["p_value"] == alike["delta", "dapo", "short"]["p_value"]


def test_the_same_seed_gives_the_same_bytes_and_other_rows_do_not_matter(tmp_path: Path) -> None:
    counts = study(1, GAINS)
    for root in ("one", "two"):
        write_scores(tmp_path / root, "easy", counts)
        assert compare(tmp_path / root) == 0
    first, second = ((tmp_path / root / "comparisons.json").read_bytes() for root in ("one", "two"))
    assert first == second
    fewer = {key: values for key, values in counts.items() if key[0] in ("base", "dapo", "grpo")}
    write_scores(tmp_path / "fewer", "easy", fewer)
    assert compare(tmp_path / "fewer") == 0
    row = ("grpo", "dapo", "easy")
    assert rows_of(tmp_path / "fewer")[row] == rows_of(tmp_path / "one")[row]
    assert compare(tmp_path / "one", seed=5) == 0
    assert (tmp_path / "one" / "comparisons.json").read_bytes() != first


def test_more_methods_take_the_verdict_of_a_p_value_that_only_a_single_comparison_bears(tmp_path: Path) -> None:
    few = study(1, {"dapo": 0.2, "delta": 0.27})
    many = few | study(1, {"dapo": 0.2, "delta": 0.27, **{f"equal_{number}": 0.2 for number in range(6)}})
    found = []
    for counts, name in ((few, "few"), (many, "many")):
        write_scores(tmp_path / name, "easy", counts)
        assert compare(tmp_path / name) == 0
        found.append(rows_of(tmp_path / name)["delta", "dapo", "all"])
    alone, among_seven = found
    assert alone["p_value"] == alone["p_value_holm"] == among_seven["p_value"] <= 0.05
    assert among_seven["p_value_holm"] >= 6 * alone["p_value"] > 0.05
    assert (alone["verdict"], among_seven["verdict"]) == ("better", "not distinguishable")
    assert alone["confidence_interval"] == among_seven["confidence_interval"]


def test_models_of_one_study_are_one_family_and_compared_within_themselves(tmp_path: Path) -> None:
    path = write_scores(tmp_path, "easy", study(4, {"dapo": 0.2, "grpo": 0.2}))
    scores = json.loads(path.read_text())["scores"]
    twins = [{**row, "run": f"twin-{row['run']}", "model": "twin"} for row in scores if row["method"] != "base"]
    write_scores_file(path, scores + twins, SAMPLES)
    assert compare(tmp_path) == 0
    rows = json.loads((tmp_path / "comparisons.json").read_text())["comparisons"]
    assert {row["model"] for row in rows if row["against"] == "base"} == {"tiny"}  # the twin has no base scores
    family = [row for row in rows if (row["against"], row["benchmark"]) == ("dapo", "all")]
    assert [row["model"] for row in family] == ["tiny", "twin"]
    assert family[0]["p_value"] == family[1]["p_value"]
    assert {row["p_value_holm"] for row in family} == {min(1.0, 2 * family[0]["p_value"])}


def test_one_seed_supports_no_verdict_about_a_method_but_one_about_the_checkpoint(tmp_path: Path) -> None:
    write_scores(tmp_path, "easy", study(2, GAINS, seeds=1))
    assert compare(tmp_path) == 0
    row = rows_of(tmp_path)["delta", "dapo", "easy"]
    assert row["verdict"] == "not distinguishable"
    unknown = ("standard_error", "confidence_interval", "p_value", "p_value_holm", "minimum_detectable_effect")
    assert [row[key] for key in unknown] == [None] * 5
    assert compare(tmp_path, claim=Claim.CHECKPOINTS) == 0
    assert rows_of(tmp_path)["delta", "dapo", "easy"]["verdict"] == "better"
    assert json.loads((tmp_path / "comparisons.json").read_text())["claim"] == "checkpoints"


def test_unequal_seeds_drown_a_difference_that_problems_alone_would_confirm(tmp_path: Path) -> None:
    counts = dict(study(3, {"dapo": 0.2, "unstable": 0.2}))
    for seed, shift in ((1, -6), (2, 2), (3, 10)):
        counts["unstable", seed] = np.clip(counts["unstable", seed] + shift, 0, SAMPLES)
    write_scores(tmp_path, "easy", counts)
    assert compare(tmp_path, claim=Claim.CHECKPOINTS) == 0
    assert rows_of(tmp_path)["unstable", "dapo", "easy"]["verdict"] == "better"
    assert compare(tmp_path) == 0
    row = rows_of(tmp_path)["unstable", "dapo", "easy"]
    assert row["verdict"] == "not distinguishable"
    assert row["p_value"] > 0.05
    assert row["confidence_interval"][0] < 0.0 < row["confidence_interval"][1]


def test_methods_that_differ_on_a_handful_of_problems_get_no_interval(tmp_path: Path) -> None:
    same: dict[tuple[str, int | None], np.ndarray] = {("base", None): np.zeros(30, int)} | {
        (method, seed): np.zeros(30, int) for method in ("dapo", "grpo") for seed in (1, 2, 3)
    }
    for seed in (1, 2, 3):
        same["grpo", seed] = np.array([30 - seed, 29, 31, 28, 27 + seed] + [0] * 25)
    write_scores(tmp_path, "easy", same)
    assert compare(tmp_path) == 0
    rows = rows_of(tmp_path)
    assert rows["grpo", "dapo", "easy"]["confidence_interval"] is None
    assert rows["grpo", "dapo", "easy"]["p_value"] >= 2 / 2**5
    assert rows["dapo", "base", "easy"]["p_value"] == 1.0
    assert {row["verdict"] for row in rows.values()} == {"not distinguishable"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": "dpao"}, "reference_method: dpao has no scores for tiny; it has base, dapo, grpo"),
        ({"permutations": 10}, "--permutations: is 10; accepted: 100 or more"),
        ({"seed": -1}, "--seed: is -1; accepted: 0 or more"),
        ({"weighting": {"hard": 1.0}}, "--weighting: has weights of hard; accepted: of easy"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    options: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scores(tmp_path, "easy", study(5, {"dapo": 0.2, "grpo": 0.2}))
    assert compare(tmp_path, **options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_run_missing_from_one_benchmark_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scores(tmp_path, "easy", study(6, {"dapo": 0.2, "grpo": 0.2}))
    write_scores(tmp_path, "hard", study(7, {"dapo": 0.2, "grpo": 0.2}, seeds=2))
    assert compare(tmp_path) == 2
    assert "hard.json: run tiny-dapo-s3 is in only one of it and" in capsys.readouterr().err


def test_tampered_scores_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scores(tmp_path, "easy", study(8, {"dapo": 0.2}))
    path.write_text(path.read_text().replace("32", "31", 1))
    assert compare(tmp_path) == 2
    assert "bytes differ" in capsys.readouterr().err


def test_the_manifest_verifies_and_the_command_needs_no_torch(tmp_path: Path) -> None:
    write_scores(tmp_path, "easy", study(9, {"dapo": 0.2, "grpo": 0.2}))
    assert compare(tmp_path) == 0
    manifest = verify_outputs(tmp_path / "comparisons.manifest.json", "comparisons")
    assert list(manifest.inputs) == [(tmp_path / "scores" / "easy.json").as_posix()]
    assert manifest.parameters["permutations"] == 1000
    code = "import sys, evals.scores.comparison, evals.scores.score; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("interval", "p_value", "expected"),
    [
        ((0.01, 0.2), 0.04, "better"),
        ((-0.2, -0.01), 0.04, "worse"),
        ((-0.01, 0.2), 0.04, "not distinguishable"),
        ((0.0, 0.2), 0.04, "not distinguishable"),
        ((0.01, 0.2), 0.06, "not distinguishable"),
        ((0.01, 0.2), 0.05, "better"),
        (None, 0.04, "better"),
        ((0.01, 0.2), None, "not distinguishable"),
    ],
)
def test_both_make_a_verdict(interval: tuple[float, float] | None, p_value: float | None, expected: str) -> None:
    difference = -0.1 if expected == "worse" else 0.1
    assert verdict(difference, interval, p_value, 1 - 0.95) == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_an_interval_reaches_as_far_as_the_bootstrap_on_its_skewed_side(tmp_path: Path, sign: int) -> None:
    """A few problems that differ a lot: the bootstrap's interval is longer than the t interval on their side."""
    control = np.full(30, 16)
    treatment = control + sign * np.array([0] * 20 + [1] * 6 + [2, 2, 14, 16])
    counts = {("base", None): control, **{("dapo", seed): control for seed in (1, 2)}}
    counts |= {("delta", seed): treatment for seed in (1, 2)}
    write_scores(tmp_path, "easy", counts)
    assert compare(tmp_path) == 0
    row = rows_of(tmp_path)["delta", "dapo", "easy"]
    difference = estimate_difference([np.array([treatment, treatment]) / 32], [np.array([control, control]) / 32])
    low, high = (float(bound) for bound in difference.interval(0.95))
    found = row["confidence_interval"]
    if sign > 0:
        assert found[0] == pytest.approx(low) and found[1] > high + 0.001
    else:
        assert found[1] == pytest.approx(high) and found[0] < low - 0.001
