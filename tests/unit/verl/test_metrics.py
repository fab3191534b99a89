"""verl's metrics under the local engine's names, and what a run shows of them while verl trains, over attempts."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from rlvr.engines.verl.launch import Places
from rlvr.engines.verl.metrics import PREFIX, Display, check_rollout_kl, columns, read_steps, whole_metrics, write_step
from rlvr.engines.verl.registered import packed_metrics, unpacked_metrics
from rlvr.methods.rollout_batch import rollout_kl
from rlvr.runs.progress import METRICS_SO_FAR, PARAMETERS
from tests.unit.verl.conftest import make_cluster, make_run


def test_columns_are_what_this_package_measured_and_some_of_what_verl_did() -> None:
    data = {"rlvr/reward_mean": 0.25, "actor/rlvr/clip_fraction": 0.1, "actor/perf/max_memory_allocated_gb": 2.0}
    data |= {"perf/mfu/actor": 0.31, "perf/throughput": 812.5, "timing_s/ref": 0.5, "rlvr/of_no_token": math.nan}
    assert columns({**data, "unknown/metric": 3.0, "actor/entropy": 9.0, "actor/lr": 0.5}) == {
        "reward_mean": 0.25,
        "clip_fraction": 0.1,
        "model_flops_utilisation": 0.31,
        "tokens_per_second_and_device": 812.5,
        "seconds_reference": 0.5,
        "peak_memory_bytes": 2 << 30,
    }


def test_the_loss_of_coupled_rollouts_is_that_of_the_whole_mini_batch() -> None:
    # verl's own is the inner product of a gradient with log-probabilities there.
    data = {"actor/rlvr/loss": 0.25, "actor/loss": 7.0}
    assert columns(data) == columns(dict(reversed(data.items()))) == {"loss": 0.25}
    assert columns({"actor/loss": 7.0}) == {"loss": 7.0}


def test_a_metric_that_only_one_method_has_reaches_the_run_s_metrics(tmp_path: Path) -> None:
    """No list of names is between a method and the file: neither for its loss nor for its token weights."""
    sent = packed_metrics({"sequence_weight": 0.5, "another": 3.0, "of_no_token": float("nan")})
    of_weights = {PREFIX + name: value for name, value in unpacked_metrics(sent).items()}
    write_step(tmp_path, 1, columns({"actor/rlvr/future_weight": 1.1, "actor/rlvr/a_new_one": 2.0, **of_weights}))
    names = {"step": 1, "future_weight": 1.1, "a_new_one": 2.0, "sequence_weight": 0.5, "another": 3.0}
    assert whole_metrics(tmp_path, 1).iloc[0].to_dict() == names


def divergence(trainer: Tensor, sampler: Tensor) -> float:
    return rollout_kl(trainer.flatten(), sampler.flatten())


def test_a_policy_that_vllm_does_not_have_is_measured_and_stops_the_run() -> None:
    generator = torch.Generator().manual_seed(0)
    sampler, trainer = (torch.randn(50, generator=generator).log_softmax(0) for _ in range(2))
    tokens = torch.multinomial(sampler.exp(), 300_000, replacement=True, generator=generator)
    measured = divergence(trainer[tokens], sampler[tokens])
    exact = float((sampler.exp() * (sampler - trainer)).sum())
    assert exact > 0.5 and measured == pytest.approx(exact, rel=0.03)
    check_rollout_kl(measured, 3, 2 * exact, 1.0)
    with pytest.raises(RuntimeError, match=r"step 3: .* nats a token; accepted: 0\.1 at most \(cluster\.rollout_kl"):
        check_rollout_kl(measured, 3, make_cluster().rollout_kl_limit, 1.0)
    with pytest.raises(RuntimeError, match="is nan nats"):
        check_rollout_kl(float("nan"), 3, 0.1, 1.0)


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
    check_rollout_kl(divergence(same, sampler), 1, 1e-6, top_p)
    with pytest.raises(RuntimeError, match="accepted"):
        check_rollout_kl(divergence(another, sampler), 1, 0.1, top_p)


def log(places: Places, steps: range, reward: float) -> None:
    """What the trainer notes of ``steps``: each before its update, and when it is done."""
    for step in steps:
        write_step(places.state, step, {"reward_mean": reward})
        write_step(places.state, step, {"reward_mean": reward, "seconds_step": 1.0})


def shown(places: Places) -> dict[int, float]:
    """Reward by step."""
    frame = pd.read_parquet(places.run / METRICS_SO_FAR)
    return dict(zip(frame["step"], frame["reward_mean"], strict=True)) if len(frame) else {}


def step_of_progress(places: Places) -> int:
    return int(json.loads((places.run / "progress.json").read_text())["step"])


def test_a_step_in_progress_is_not_done_yet_and_a_resumed_attempt_replaces_what_was_after_it(places: Places) -> None:
    run = make_run("dapo", steps=9)
    places.run.mkdir(parents=True)
    first = Display(run, places, {"seed": 1}, 0)
    assert shown(places) == {}
    log(places, range(1, 8), 0.1)
    write_step(places.state, 8, {"reward_mean": 0.1})
    first.update()
    assert shown(places) == dict.fromkeys(range(1, 8), 0.1) and step_of_progress(places) == 7
    again = Display(run, places, {"seed": 1}, 4)
    assert shown(places) == dict.fromkeys(range(1, 5), 0.1)
    log(places, range(5, 7), 0.2)
    assert len(read_steps(places.state, 9)) == 6
    again.update()
    assert shown(places) == {**dict.fromkeys(range(1, 5), 0.1), 5: 0.2, 6: 0.2} and step_of_progress(places) == 6
    assert pd.read_parquet(places.run / METRICS_SO_FAR).attrs == {PARAMETERS: {"seed": 1}}


def test_a_display_that_cannot_be_written_stops_nothing(places: Places, tmp_path: Path) -> None:
    Display(make_run("dapo"), places, {}, 0)  # the run's directory is not there
    assert not list(tmp_path.rglob(METRICS_SO_FAR))
