"""From sweeps to the choice of thresholds, the figure and the samples: the commands as a user calls them."""

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import GPTNeoXConfig, LlamaConfig, PreTrainedConfig

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, read_jsonl, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files, read_manifest
from evals.generation.checkpoint import Checkpoint
from rlvr_claims.decoding.figure import Place, draw, fraction_needed, place
from rlvr_claims.decoding.settings import (
    Decoding,
    Sweep,
    SweepPoint,
    choose,
    chosen_decoding,
    read_sweeps,
    write_choice,
)
from rlvr_claims.decoding.sweep import threshold
from rlvr_claims.decoding.table import scheme_in
from tests.claims.decoded import decode_sample, decode_sweep
from tests.stages import sample_benchmark
from tests.unit.engine.conftest import import_pretrained
from tests.unit.generation import conftest

DIFFERENCE = "log_prob_difference"


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = ["Compute 3+4 from left to right, modulo 10.", "7", "Let a=3;b=a+7. Compute b modulo 10."]
    return conftest.write_problems(tmp_path_factory.mktemp("problems"), texts)


settings_of = partial(conftest.settings_of, samples_per_problem=4, prompt="{problem}\n")


def replacement(tau: float, gamma: float = 0.0) -> dict[str, Any]:
    return {"mode": "replacement", "driver": "base", "criterion": DIFFERENCE, "tau": tau, "gamma": gamma}


GRID = {
    **{"criteria": ["log_prob_difference", "random"], "fractions": [0.1, 1.0], "extrapolation_fractions": [0.2]},
    "gammas": [0.1, 0.5],
}


def run_sweep(checkpoints: tuple[Path, Path], problems: Path, out: Path) -> dict[str, Any]:
    decode_sweep(checkpoints, problems, settings_of(), GRID, out)
    content: dict[str, Any] = read_json(out / "sweep.json")
    return content


def test_a_sweep_its_choice_and_a_sample(checkpoints: tuple[Path, Path], problems: Path, tmp_path: Path) -> None:
    out = tmp_path / checkpoints[1].name  # the sweep's name is the trained model's
    content = run_sweep(checkpoints, problems, out)
    points = {point["name"]: point for point in content["points"]}
    assert len(points) == 2 + 2 * 2 + 2 * 1 * 2
    assert points["base"]["replaced"] == points["trained"]["replaced"] == 0
    assert points["replacement-random-1"]["replaced"] == points["replacement-log_prob_difference-1"]["replaced"] == 1
    assert 0 < points["replacement-log_prob_difference-0.1"]["replaced"] < 0.6
    alike = [out / "points" / name / "samples.jsonl.bz2" for name in ("trained", "replacement-random-1")]
    own, other = ([row["text"] for row in read_jsonl(path)] for path in alike)
    assert own == other

    write_choice([out / "sweep.json"], tmp_path / "chosen.json")
    chosen = read_json(tmp_path / "chosen.json")["chosen"]
    assert set(chosen) == {"replacement", "extrapolation_base", "extrapolation_trained"}
    rule = chosen_decoding(tmp_path / "chosen.json", "extrapolation_base", checkpoints[1].name).to_json()
    decode_sample(checkpoints, problems, settings_of(), rule, tmp_path / "samples")
    used = read_manifest(tmp_path / "samples/manifest.json", "samples").parameters["decoding"]
    assert used == chosen["extrapolation_base"]["by_run"][checkpoints[1].name]
    name = f"extrapolation-base-{chosen['extrapolation_base']['fraction']}-{chosen['extrapolation_base']['gamma']}"
    assert (tmp_path / "samples/samples.jsonl.bz2").read_bytes() == (
        out / f"points/{name}/samples.jsonl.bz2"
    ).read_bytes()


def two_models(directory: Path, kind: type[PreTrainedConfig]) -> tuple[Path, Path]:
    """Two random models of an architecture, imported as base models."""
    base, trained = (
        import_pretrained(directory / str(seed), kind, num_key_value_heads=2, initializer_range=seed / 10)
        for seed in (1, 2)
    )
    return base, trained


@pytest.mark.parametrize("kind", [LlamaConfig, GPTNeoXConfig])
def test_other_families_decode_as_two_models_of_transformers_do(
    kind: type[PreTrainedConfig], problems: Path, tmp_path: Path
) -> None:
    """Other families than the laptop study's, by both backends; of GPT-NeoX the local one asks transformers."""
    pair, samples = two_models(tmp_path, kind), []
    for backend in ("local", "transformers"):
        out = tmp_path / backend
        decode_sample(pair, problems, settings_of(backend=backend), replacement(-0.1), out)
        samples.append(read_jsonl(out / "samples.jsonl.bz2"))
    assert samples[0] == samples[1] and sum(row["replaced"] for row in samples[0]) > 0


def test_two_llamas_in_bfloat16_are_each_themselves_at_the_ends(problems: Path, tmp_path: Path) -> None:
    """Where nothing is replaced it is the base as evaluation samples it; where everything is, the trained model."""
    pair, out = two_models(tmp_path, LlamaConfig), tmp_path / "sweep"
    decode_sweep(pair, problems, settings_of(dtype="bfloat16"), GRID, out)
    for model, point in zip(pair, ("base", "replacement-random-1"), strict=True):
        sample_benchmark([Checkpoint.of(model)], problems, settings_of(dtype="bfloat16"), tmp_path / point)
        own, found = (
            [row["text"] for row in read_jsonl(directory / "samples.jsonl.bz2")]
            for directory in (tmp_path / point, out / "points" / point)
        )
        assert own == found
    points = {point["name"]: point for point in read_json(out / "sweep.json")["points"]}
    assert 0 < points["replacement-log_prob_difference-0.1"]["replaced"] < 0.6


def test_a_sweep_that_was_cut_off_goes_on(checkpoints: tuple[Path, Path], problems: Path, tmp_path: Path) -> None:
    whole = run_sweep(checkpoints, problems, tmp_path / "sweep")
    states = sorted((tmp_path / "sweep/points").glob("*/state/*/samples.jsonl"))
    times = {path: path.stat().st_mtime_ns for path in states[:-1]}
    states[-1].write_bytes(states[-1].read_bytes()[:-20])
    before = sha256_file(tmp_path / "sweep/sweep.json")
    (tmp_path / "sweep/sweep.json").unlink()
    assert run_sweep(checkpoints, problems, tmp_path / "sweep") == whole
    assert sha256_file(tmp_path / "sweep/sweep.json") == before
    assert {path: path.stat().st_mtime_ns for path in states[:-1]} == times


def test_what_was_sampled_otherwise_is_not_taken(
    checkpoints: tuple[Path, Path], problems: Path, tmp_path: Path
) -> None:
    """Another tau, or base and trained changed over, is another fingerprint."""
    prints = set()
    for pair, tau in ((checkpoints, -0.1), (checkpoints, -0.2), (checkpoints[::-1], -0.1)):
        decode_sample(pair, problems, settings_of(), replacement(tau), tmp_path / "out")
        prints.add(read_manifest(tmp_path / "out/manifest.json", "samples").fingerprint)
    assert len(prints) == len(list((tmp_path / "out/state").iterdir())) == 3


def test_a_push_without_extrapolation_is_refused(
    checkpoints: tuple[Path, Path], problems: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^.*gamma is 1\.0 with mode replacement.*$"):
        decode_sample(checkpoints, problems, settings_of(), replacement(0.0, gamma=1.0), tmp_path)


def test_two_vocabularies_are_refused(checkpoints: tuple[Path, Path], problems: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoints[1], other)
    content = json.loads((other / "tokenizer.json").read_text())
    token = next(token for token in content["model"]["vocab"] if token == "7")
    content["model"]["vocab"]["seven"] = content["model"]["vocab"].pop(token)
    (other / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        UserError, match="their tokenizers differ in 2 tokens, such as '7'; accepted: two models of one"
    ):
        decode_sample((checkpoints[0], other), problems, settings_of(), replacement(0.0), tmp_path / "out")


def test_logits_of_two_widths_are_refused(checkpoints: tuple[Path, Path], problems: Path, tmp_path: Path) -> None:
    """Models of two sizes can share a tokenizer, and fill their tables of embeddings up differently."""
    wider = Path(shutil.copytree(checkpoints[1], tmp_path / "wider"))
    config = read_json(wider / "config.json")
    write_json(wider / "config.json", {**config, "vocab_size": config["vocab_size"] + 8})
    with pytest.raises(UserError, match=f"vocab_size: is {config['vocab_size'] + 8}, and that of"):
        decode_sample((checkpoints[0], wider), problems, settings_of(), replacement(0.0), tmp_path / "out")


def test_thresholds_are_the_quantiles_asked_for() -> None:
    generator = np.random.default_rng(0)
    values = {criterion: generator.normal(size=10_000) for criterion in (DIFFERENCE, "entropy")}
    for fraction in (0.01, 0.2, 0.7):
        below, above = (threshold(criterion, fraction, values) for criterion in values)
        assert np.mean(values[DIFFERENCE] <= below) == pytest.approx(fraction, abs=2e-3)
        assert np.mean(values["entropy"] >= above) == pytest.approx(fraction, abs=2e-3)
        assert threshold("random", fraction, values) == fraction
    assert threshold(DIFFERENCE, 1, values) == math.inf
    assert threshold("entropy", 1, values) == -math.inf


def point(name: str, decoding: Decoding, fraction: float | None, replaced: float, counts: list[int]) -> SweepPoint:
    return SweepPoint(
        name=name,
        decoding=decoding,
        fraction=fraction,
        replaced=replaced,
        average=sum(counts) / (4 * len(counts)),
        correct_counts=tuple(counts),
        mean_tokens=5.0,
    )


def made(averages: dict[float, list[int]]) -> Sweep:
    never = Decoding.alone("base")
    points = [point("base", never, None, 0.0, [1, 2, 0]), point("trained", never, None, 0.0, [3, 4, 3])]
    for fraction, counts in averages.items():
        decoding = Decoding(mode="replacement", driver="base", criterion=DIFFERENCE, tau=-1 - fraction)
        points.append(point(f"replacement-{fraction}", decoding, fraction, fraction / 2, counts))
    return Sweep(base="b", trained="t", problem_ids=("x", "y", "z"), samples_per_problem=4, points=tuple(points))


def test_the_choice_is_the_best_mean_over_sweeps_and_never_everything() -> None:
    sweeps = {
        "a": made({0.1: [4, 0, 0], 0.2: [2, 2, 1], 0.3: [2, 2, 2], 1.0: [4, 4, 4]}),
        "b": made({0.1: [0, 0, 0], 0.2: [2, 2, 2], 0.3: [2, 2, 1], 1.0: [4, 4, 4]}),
    }
    chosen = choose(sweeps).chosen["replacement"]
    assert (chosen.fraction, chosen.gamma) == (0.2, 0.0)  # as good as 0.3, and fewer tokens
    assert chosen.average == pytest.approx(11 / 24)
    assert chosen.by_run["b"].tau == -1.2


def write_sweep(directory: Path, sweep: Sweep) -> Path:
    write_json(directory / "sweep.json", sweep.to_json())
    outputs = hash_files(directory, directory / "sweep.json")
    Manifest("decoding_sweep", {}, outputs, {}, "x").write(directory / "manifest.json")
    return directory / "sweep.json"


def test_changed_sweeps_and_sweeps_of_other_points_are_refused(tmp_path: Path) -> None:
    first = write_sweep(tmp_path / "a", made({0.1: [4, 0, 0]}))
    assert read_sweeps([first]) == {"a": made({0.1: [4, 0, 0]})}
    other = write_sweep(tmp_path / "b", made({0.2: [4, 0, 0]}))
    with pytest.raises(InvalidInput) as caught:
        read_sweeps([first, other])
    assert caught.value.source == str(other) and caught.value.key == "points"
    first.write_text(first.read_text().replace('"samples_per_problem": 4', '"samples_per_problem": 5'))
    with pytest.raises(UserError, match="its bytes differ"):
        read_sweeps([first])


def test_places_are_means_over_sweeps_with_intervals_over_problems() -> None:
    found = place([made({0.1: [4, 0, 0]}), made({0.1: [2, 4, 2]})], "replacement-0.1")
    means = np.array([0.75, 0.5, 0.25])
    assert found.average == pytest.approx(means.mean())
    reach = 4.302652729911275 * means.std(ddof=1) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    assert found.high - found.average == pytest.approx(min(reach, 1 - means.mean()))
    assert found.replaced == pytest.approx(0.05)


def test_the_fraction_needed_is_read_off_between_points() -> None:
    places = [Place(x, y, 0, 1) for x, y in ((0.1, 0.2), (0.3, 0.6), (0.5, 0.5), (1.0, 0.9))]
    assert fraction_needed(places, 0.5) == pytest.approx(0.25)
    assert fraction_needed(places, 0.1) == pytest.approx(0.1)
    assert fraction_needed(places, 0.75) == pytest.approx(0.8125)
    assert fraction_needed(places, 0.95) is None


def test_the_figure_states_its_finding_its_sizes_and_both_models() -> None:
    figure = draw([made({0.1: [1, 2, 1], 0.5: [4, 4, 4]}), made({0.1: [1, 2, 1], 0.5: [4, 4, 4]})])
    (axes,) = figure.axes
    assert "log-prob difference: 20 %" in axes.get_title(loc="left")
    (legend,) = figure.legends
    assert "n = 3 problems" in legend.get_title().get_text()
    assert "2 trained models" in legend.get_title().get_text()
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["trained model alone", "base model alone", "log-prob difference"]


def test_schemes_are_read_off_methods() -> None:
    assert scheme_in("dapo_extrapolation_trained") == "extrapolation_trained"
    assert scheme_in("dapo_replacement") == "replacement"
    assert scheme_in("dapo") is scheme_in("replacement") is None
