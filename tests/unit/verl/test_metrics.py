"""verl's metrics under the local engine's names, and what a run shows of them while verl trains, over attempts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from evals.core.errors import UserError
from rlvr.engines.verl.launch import Places
from rlvr.engines.verl.metrics import (
    PREFIX,
    Display,
    check_rollout_kl,
    keep_metrics,
    read_metrics,
    token_metrics,
)
from rlvr.engines.verl.registered import packed_metrics, unpacked_metrics
from rlvr.runs.progress import METRICS_SO_FAR, PARAMETERS
from tests.unit.verl.conftest import make_cluster, make_run


def test_metrics_of_several_attempts_make_one_row_a_step(tmp_path: Path) -> None:
    def line(step: int, reward: float) -> str:
        data = {"rlvr/reward_mean": reward, "rlvr/token_weight_mean": 1.0, "actor/perf/max_memory_allocated_gb": 2.0}
        return (
            json.dumps({"step": step, "data": {**data, "actor/rlvr/clip_fraction": 0.1, "unknown/metric": 3.0}}) + "\n"
        )

    (tmp_path / "a").write_text(line(1, 0.1) + line(2, 0.2) + line(3, 0.3)[:20])
    (tmp_path / "b").write_text(line(2, 0.25) + line(3, 0.35))
    table = read_metrics([tmp_path / "a", tmp_path / "b"], 4)
    assert table["step"].tolist() == [1, 2, 3] and table["reward_mean"].tolist() == [0.1, 0.25, 0.35]
    assert table["token_weight_mean"].tolist() == [1.0] * 3 and table["clip_fraction"].tolist() == [0.1] * 3
    assert table["optimizer_steps"].tolist() == [4] * 3 and table["peak_memory_bytes"].tolist() == [2 << 30] * 3
    assert not any("/" in name or "unknown" in name for name in table.columns)
    assert read_metrics([], 4).empty


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_an_update_that_verl_left_out_is_an_error(tmp_path: Path, norm: float) -> None:
    rows = [json.dumps({"step": step, "data": {"actor/grad_norm": value}}) for step, value in ((1, 0.5), (2, norm))]
    (tmp_path / "a").write_text(rows[0] + "\n")
    assert read_metrics([tmp_path / "a"], 2)["grad_norm"].tolist() == [0.5]
    (tmp_path / "a").write_text("\n".join(rows))
    with pytest.raises(UserError, match=rf"step 2: grad_norm is {norm}; accepted: a finite number"):
        read_metrics([tmp_path / "a"], 2)


def test_the_learning_rate_is_that_of_the_step_and_not_of_the_next(tmp_path: Path) -> None:
    lines = [{"actor/lr": 0.5, "actor/rlvr/learning_rate": 0.0}, {"actor/lr": 1.0, "actor/rlvr/learning_rate": 0.5}]
    rows = [json.dumps({"step": number, "data": data}) for number, data in enumerate(lines, start=1)]
    (tmp_path / "a").write_text("\n".join(rows))
    assert read_metrics([tmp_path / "a"], 2)["learning_rate"].tolist() == [0.0, 0.5]


def test_the_loss_of_coupled_rollouts_is_that_of_the_whole_mini_batch(tmp_path: Path) -> None:
    # verl's own is the inner product of a gradient with log-probabilities there.
    data = {"actor/rlvr/loss": 0.25, "actor/loss": 7.0}
    for number, pairs in enumerate((data.items(), reversed(data.items()))):
        (tmp_path / str(number)).write_text(json.dumps({"step": 1, "data": dict(pairs)}) + "\n")
        assert read_metrics([tmp_path / str(number)], 2)["loss"].tolist() == [0.25]


def test_a_metric_that_only_one_method_has_reaches_the_run_s_metrics(tmp_path: Path) -> None:
    """No list of names is between a method and the file: neither for its loss nor for its token weights."""
    of_loss = {"actor/rlvr/future_weight": 1.1, "actor/rlvr/dropped_fraction": 0.0, "actor/rlvr/a_new_one": 2.0}
    sent = packed_metrics({"sequence_weight": 0.5, "another": 3.0, "of_no_token": float("nan")})
    of_weights = unpacked_metrics(sent)
    data = {**of_loss, **{PREFIX + name: value for name, value in of_weights.items()}, "actor/entropy": 9.0}
    (tmp_path / "log").write_text(json.dumps({"step": 1, "data": data}) + "\n")
    read_metrics([tmp_path / "log"], 2).to_parquet(tmp_path / "metrics.parquet")
    row = pd.read_parquet(tmp_path / "metrics.parquet").iloc[0].to_dict()
    del row["step"], row["optimizer_steps"], row["peak_memory_bytes"]
    names = {"future_weight": 1.1, "dropped_fraction": 0.0, "a_new_one": 2.0, "sequence_weight": 0.5, "another": 3.0}
    assert row == names


def test_a_policy_that_vllm_does_not_have_is_measured_and_stops_the_run() -> None:
    generator = torch.Generator().manual_seed(0)
    sampler, trainer = (torch.randn(50, generator=generator).log_softmax(0) for _ in range(2))
    tokens = torch.multinomial(sampler.exp(), 400_000, replacement=True, generator=generator).reshape(100, -1)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, -1000:] = False
    entropies = torch.zeros(tokens.shape)
    found = token_metrics(trainer[tokens], sampler[tokens], entropies, mask)
    exact = float((sampler.exp() * (sampler - trainer)).sum())
    assert exact > 0.5 and found[PREFIX + "rollout_kl"] == pytest.approx(exact, rel=0.03)
    assert token_metrics(sampler[tokens], sampler[tokens], entropies, mask)[PREFIX + "rollout_kl"] == 0.0
    check_rollout_kl(found, 3, 2 * exact, 1.0)
    with pytest.raises(RuntimeError, match=r"step 3: .* nats a token; accepted: 0\.1 at most \(cluster\.rollout_kl"):
        check_rollout_kl(found, 3, make_cluster().rollout_kl_limit, 1.0)
    with pytest.raises(RuntimeError, match="is nan nats"):
        check_rollout_kl({PREFIX + "rollout_kl": float("nan")}, 3, 0.1, 1.0)


@pytest.mark.parametrize("top_p", [0.3, 0.7, 0.95, 1.0])
def test_what_top_p_leaves_out_stops_no_run(top_p: float) -> None:
    """The same policy on both sides, but for the tokens that vLLM never draws; another one is found all the same."""
    generator = torch.Generator().manual_seed(1)
    policy, other = ((3 * torch.randn(2_000, 30, generator=generator)).log_softmax(1) for _ in range(2))
    sorted_probs, order = policy.exp().sort(dim=1, descending=True)
    kept = torch.zeros_like(policy, dtype=torch.bool).scatter(1, order, sorted_probs.cumsum(1) - sorted_probs < top_p)
    drawn_from = policy.masked_fill(~kept, -math.inf).log_softmax(1)
    tokens = torch.multinomial(drawn_from.exp(), 200, replacement=True, generator=generator)
    sampler, same, another = (log_probs.gather(1, tokens) for log_probs in (drawn_from, policy, other))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    check_rollout_kl(token_metrics(same, sampler, sampler, mask), 1, 1e-6, top_p)
    with pytest.raises(RuntimeError, match="accepted"):
        check_rollout_kl(token_metrics(another, sampler, sampler, mask), 1, 0.1, top_p)


def test_throughput_has_columns_of_its_own(tmp_path: Path) -> None:
    data = {"perf/mfu/actor": 0.31, "perf/throughput": 812.5, "perf/total_num_tokens": 5}
    (tmp_path / "a").write_text(json.dumps({"step": 1, "data": data}))
    row = read_metrics([tmp_path / "a"], 2).iloc[0]
    assert (row["model_flops_utilisation"], row["tokens_per_second_and_device"]) == (0.31, 812.5)


def log(places: Places, steps: range, reward: float) -> None:
    """Write the files that verl leaves after ``steps``."""
    lines = [json.dumps({"step": step, "data": {"rlvr/reward_mean": reward}}) for step in steps]
    places.metrics.parent.mkdir(parents=True, exist_ok=True)
    places.metrics.write_text("\n".join(lines) + "\n", encoding="utf-8")


def shown(places: Places) -> dict[int, float]:
    """Reward by step."""
    frame = pd.read_parquet(places.run / METRICS_SO_FAR)
    return dict(zip(frame["step"], frame["reward_mean"], strict=True)) if len(frame) else {}


def step_of_progress(places: Places) -> int:
    return int(json.loads((places.run / "progress.json").read_text())["step"])


def test_steps_that_a_resumed_attempt_does_again_are_not_done_yet(places: Places) -> None:
    run = make_run("dapo", steps=9)
    places.run.mkdir(parents=True)
    first = Display(run, places, {"seed": 1}, 0)
    assert shown(places) == {}
    log(places, range(1, 8), 0.1)
    first.update()
    assert shown(places) == dict.fromkeys(range(1, 8), 0.1) and step_of_progress(places) == 7
    again = Display(run, places, {"seed": 1}, 4)
    keep_metrics(places)
    assert shown(places) == dict.fromkeys(range(1, 5), 0.1)
    again.update()
    log(places, range(5, 7), 0.2)
    again.update()
    assert shown(places) == {**dict.fromkeys(range(1, 5), 0.1), 5: 0.2, 6: 0.2} and step_of_progress(places) == 6
    assert pd.read_parquet(places.run / METRICS_SO_FAR).attrs == {PARAMETERS: {"seed": 1}}


def test_a_display_that_cannot_be_written_stops_nothing(places: Places, tmp_path: Path) -> None:
    Display(make_run("dapo"), places, {}, 0)  # the run's directory is not there
    assert not list(tmp_path.rglob(METRICS_SO_FAR))
