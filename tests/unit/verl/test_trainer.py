"""The trainer before an update, on made-up batches: advantages, the rollouts that it keeps, what ends the run."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from evals.core.errors import UserError
from evals.core.manifest import Manifest
from rlvr.engines.rollouts import ROLLOUT_COLUMNS, kept_steps
from rlvr.engines.verl.launch import RUN_VARIABLE, Places
from rlvr.engines.verl.metrics import PREFIX, Display, check_rollout_kl, columns, read_steps, whole_metrics, write_step
from rlvr.engines.verl.registered import CurrentRun, Field, nested, packed_metrics, unpacked_metrics
from rlvr.methods.rollout_batch import rollout_kl
from rlvr.runs.job import METRICS_SO_FAR, PARAMETERS
from rlvr.tokens.table import read_token_table
from tests.commands import rlvr_bench
from tests.unit.verl.conftest import import_with_verl, make_cluster, make_run

show = rlvr_bench("tokens", "show")
WORDS = ["zero", "one", "two", "three", "four", "five"]
LENGTHS = [2, 3, 1]
SAMPLED = {"prompts_sampled": 8, "prompts_failed": 0}


def rows(values: torch.Tensor) -> torch.Tensor:
    """[B, T] as verl passes it on, without padding."""
    return nested([row[:length] for row, length in zip(values, LENGTHS, strict=True)])


FIRST = {"index": 4, "id": "p-7"}
BATCH = {
    "response_mask": rows(torch.ones(3, 3, dtype=torch.int64)),
    "prompts": nested([torch.tensor([2, 3]), torch.tensor([2]), torch.tensor([4])]),
    "responses": rows(torch.tensor([[1, 2, 0], [3, 4, 5], [5, 0, 0]])),
    "old_log_probs": rows(-torch.arange(9.0).reshape(3, 3)),
    "rollout_log_probs": rows(-torch.arange(9.0).reshape(3, 3)),
    "entropy": rows(torch.full((3, 3), 0.25)),
    "rm_scores": rows(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])),
    "extra_info": [SimpleNamespace(data=FIRST), FIRST, {"index": 1, "id": "p-2"}],
    Field.REWARD: torch.tensor([1.0, 0.0, 0.0]),
    Field.ADVANTAGE: torch.tensor([0.7, -0.7, 0.0]),
    Field.COUNTED: torch.tensor([True, True, True]),
    Field.ROW: torch.tensor([1, 2, 0]),
    Field.GROUP: torch.tensor([3, 3, 5]),
    Field.MINI_BATCH: torch.tensor([0, 1, 0]),
    Field.TOKEN_WEIGHTS: rows(torch.tensor([[1.0, 1.5, 0.0], [0.5, 1.0, 1.0], [1.0, 0.0, 0.0]])),
}


def update(
    step: int,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str = "delta",
    every: int | None = 4,
    top_p: float = 1.0,
    **changes: Any,
) -> Any:
    """What the trainer does of a step before its update, with ``changes`` to its batch; the fields that it hands on."""
    handed_on: dict[str, Any] = {}

    class Base:
        """verl's trainer, as far as MethodTrainer uses it."""

        tokenizer = SimpleNamespace(decode=lambda tokens, skip_special_tokens: WORDS[tokens[0]])
        train_dataset = range(16)

        def __init__(self, config: Any) -> None:
            self.global_steps = step

        def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
            return batch

    def get(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        packed = {Field.WEIGHT_METRICS: torch.tensor([list(b'{"token_weight_mean": 1.0}')], dtype=torch.uint8)}
        return {name: (BATCH | packed | changes)[name] for name in select_fields}

    def put(keys: list[str], partition_id: str, fields: dict[str, Any]) -> dict[str, Any]:
        handed_on.update(fields)
        return fields

    trainer = import_with_verl(monkeypatch, "trainer", PPOTrainer=Base, kv_batch_get=get, kv_batch_put=put)
    current = CurrentRun.of(make_run(method, top_p=top_p), make_cluster(rollouts_kept_every=every))
    monkeypatch.setattr(trainer, "current_run", lambda: current)
    monkeypatch.setenv(RUN_VARIABLE, str(directory / "run.json"))
    config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(directory / "state" / ("a" * 16))))
    batch = SimpleNamespace(keys=["x", "y", "z"], partition_id="train")
    metrics = {f"rlvr/{name}": value for name, value in {"reward_mean": 0.5, **SAMPLED}.items()}
    trainer.MethodTrainer(config)._compute_advantage(batch, metrics)
    return handed_on["advantages"]


def write_manifest(directory: Path, fingerprint: str) -> None:
    """The manifest of the training that kept them."""
    Manifest("run", {}, {}, {}, fingerprint).write(directory / "manifest.json")


def test_a_kept_step_is_a_token_table_of_what_the_update_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1, 9):
        update(step, tmp_path, monkeypatch)
    write_manifest(tmp_path, "a" * 64)
    kept = dict(kept_steps(tmp_path))
    assert list(kept) == [1, 4, 8]
    stored = pd.read_parquet(kept[4] / "tokens.parquet")
    assert {name: str(kind) for name, kind in stored.dtypes.items()} == ROLLOUT_COLUMNS
    table = read_token_table(kept[4])
    assert set(table["run"]) == {"qwen3_8b-delta-s1"} and set(table["step"]) == {4}
    assert table["text"].tolist() == ["one", "two", "three", "four", "five", "five"]
    assert table["problem"].tolist() == ["p-7"] * 5 + ["p-2"]
    assert table["sample"].tolist() == [0, 0, 1, 1, 1, 0] and table["position"].tolist() == [0, 1, 0, 1, 2, 0]
    assert table["reward"].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert table["weight"].tolist() == [1.0, 1.5, 0.5, 1.0, 1.0, 1.0]
    assert table["old_log_prob"].tolist() == [0.0, -1.0, -3.0, -4.0, -5.0, -6.0]
    assert table["side"].tolist() == [1, 1, -1, -1, -1, 0] and table["mini_batch"].tolist() == [0, 0, 1, 1, 1, 0]

    assert show([str(kept[4]), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert all(word in page for word in ("p-7", "three", "weight 0.500, log-prob -3.0000 → – (–)"))
    assert "show-weight" in page and "show-gate" not in page and "nan" not in page

    write_manifest(tmp_path, "b" * 64)
    assert list(kept_steps(tmp_path)) == [], "another training"


def test_keeping_rollouts_changes_no_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("delta", "dapo"):
        kept, plain = (update(1, tmp_path / method, monkeypatch, method, every) for every in (4, None))
        torch.testing.assert_close(torch.cat(kept.unbind()), torch.cat(plain.unbind()), rtol=0, atol=0)
    write_manifest(tmp_path / "dapo", "a" * 64)
    assert read_token_table(dict(kept_steps(tmp_path / "dapo"))[1])["weight"].tolist() == [1.0] * 6


def test_a_step_that_is_not_asked_for_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update(3, tmp_path, monkeypatch)
    update(4, tmp_path, monkeypatch, every=None)
    assert not (tmp_path / "rollouts").exists()
    with pytest.raises(UserError, match="no such file"):
        list(kept_steps(tmp_path))


def test_rollouts_of_another_policy_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halved = -torch.arange(9.0).reshape(3, 3) + math.log(2.0)  # 0.19 nats from the trainer's, which have half the mass
    with pytest.raises(RuntimeError, match=r"step 3: .* 0\.193 nats"):
        update(3, tmp_path, monkeypatch, rollout_log_probs=rows(halved))
    update(3, tmp_path, monkeypatch, top_p=0.5, rollout_log_probs=rows(halved))


def test_the_trainer_ends_a_run_whose_reward_no_longer_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It notes the reward of every step; a step that is done again after a kill replaces what was noted."""

    class Base:
        total_training_steps, train_dataset = 8, range(16)

        def __init__(self, config: Any) -> None:
            self.config = config

    trainer = import_with_verl(monkeypatch, "trainer", PPOTrainer=Base)
    run = make_run("dapo", early_stop={"window": 1, "patience": 2})
    monkeypatch.setattr(trainer, "current_run", lambda: CurrentRun.of(run, make_cluster()))

    def attempt(first: int, rewards: list[float]) -> Any:
        verl = trainer.MethodTrainer(
            SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(tmp_path), save_freq=5))
        )
        for step, reward in enumerate(rewards, first):
            verl.global_steps = step
            verl._measure({f"rlvr/{name}": value for name, value in SAMPLED.items()}, {"reward_mean": reward})
        return verl

    assert attempt(1, [0.25, 0.5, 0.25, 0.25]).total_training_steps == 4
    verl = attempt(3, [0.75, 0.5])
    assert (verl.total_training_steps, verl.config.trainer.save_freq) == (8, 5)
    verl = attempt(5, [0.75])
    assert (verl.total_training_steps, verl.config.trainer.save_freq) == (5, 1), "the step that ends it is saved"
    assert [step["reward_mean"] for step in read_steps(tmp_path, 8)] == [0.25, 0.5, 0.75, 0.5, 0.75]


def trainer_of(method: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The trainer of a method, with a made-up one of verl under it."""
    stock = {"__init__": lambda *_: None, "train_dataset": range(64), "_update_actor": lambda _, batch, metrics: batch}
    trainer = import_with_verl(monkeypatch, "trainer", PPOTrainer=type("Base", (), stock))
    monkeypatch.setattr(trainer, "current_run", lambda: CurrentRun.of(make_run(method), make_cluster()))
    return trainer.MethodTrainer(SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(directory))))


def test_too_many_unjudged_responses_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verl = trainer_of("dapo", tmp_path, monkeypatch)
    sampled = {"rlvr/prompts_sampled": 128, "rlvr/prompts_failed": 0}
    for step, timeouts in ((1, 10), (2, 3)):  # of 128 prompts with 16 responses each a step, a tenth is 409 of both
        verl.global_steps = step
        metrics = {**sampled, "rlvr/unjudged_timeout": timeouts}
        verl._measure(metrics, {"reward_mean": 0.5})
        assert metrics["rlvr/training_passes"] == 2 * step
    verl.global_steps = 3
    with pytest.raises(UserError, match=r"step 3: the grader failed on 813 of 6144 responses \(timeout 813\)"):
        verl._measure({**sampled, "rlvr/unjudged_timeout": 800}, {"reward_mean": 0.5})


def test_an_entropy_bonus_follows_the_steps_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the local engine's: it grows by 0.005 after a step below the target, 0.2, and counts at most there."""
    coefficients = []
    for step, entropy in enumerate((0.1, 0.1, 0.3, 0.15), start=1):
        verl = trainer_of("dapo_entropy_target", tmp_path, monkeypatch)  # each time another process
        verl.global_steps = step
        metrics = {f"rlvr/{name}": value for name, value in SAMPLED.items()}
        verl._measure(metrics, {"reward_mean": 0.5, "entropy": entropy})
        batch = SimpleNamespace(extra_info={})
        verl._update_actor(batch, metrics)
        assert batch.extra_info[Field.ENTROPY_COEFFICIENT] == metrics["rlvr/entropy_coefficient"]
        coefficients.append(metrics["rlvr/entropy_coefficient"])
    assert coefficients == pytest.approx([0.0, 0.005, 0.0, 0.005])


def test_a_divergence_is_taken_from_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which rollouts were sampled, whatever the batch's order is."""
    old = -torch.arange(9.0).reshape(3, 3)
    apart = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.1, 0.1], [2.0, 0.0, 0.0]])
    values = {"ref_log_prob": rows(old - 100 * apart), Field.GROUP: torch.tensor([0, 0, 0])}
    found = update(1, tmp_path, monkeypatch, "grpo_kl_in_reward", **values)
    penalised = torch.tensor([1.0 - 0.001 * 40, 0.0 - 0.001 * 30, 0.0 - 0.001 * 20])  # log-ratios count to 20
    expected = (penalised - penalised.mean()) / (penalised.std() + 1e-6)
    torch.testing.assert_close(torch.stack([row[0] for row in found.unbind()]), expected)
    without = update(1, tmp_path, monkeypatch, "grpo_no_kl", **values)
    assert [row[0].item() for row in without.unbind()] == pytest.approx([0.7, -0.7, 0.0])


def test_what_is_left_out_has_no_part_in_a_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens keep their places, as verl needs them, and are true nowhere."""
    mask = rows(torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]]))
    entropy = rows(torch.tensor([[0.25, 0.25, 0.0], [9.0, 9.0, 9.0], [0.25, 0.0, 0.0]]))
    found = update(1, tmp_path, monkeypatch, "dapo", response_mask=mask, entropy=entropy).unbind()
    assert [len(row) for row in found] == LENGTHS and not found[1].any() and bool(found[0].all())
    assert read_steps(tmp_path / "state" / ("a" * 16), 1)[0]["entropy"] == 0.25
    write_manifest(tmp_path, "a" * 64)
    assert set(pd.read_parquet(dict(kept_steps(tmp_path))[1] / "tokens.parquet")["reward"]) == {1.0, 0.0}
    assert len(read_token_table(dict(kept_steps(tmp_path))[1])) == 3


def test_the_mask_of_what_is_left_out_is_put_to_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put: dict[str, Any] = {}

    class Base:
        global_steps = 1
        actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0]})

        def __init__(self, config: Any) -> None:
            pass

    def kv_batch_put(keys: list[str], partition_id: str, fields: dict[str, Any]) -> None:
        put.update(fields)

    run = make_run("dapo", prompts_per_step=2, samples_per_prompt=2, updates_per_step=2, unjudged="left_out")
    trainer = import_with_verl(monkeypatch, "trainer", PPOTrainer=Base, kv_batch_put=kv_batch_put)
    monkeypatch.setattr(trainer, "current_run", lambda: CurrentRun.of(run, make_cluster()))
    order: list[int] = []
    tags = [{"reward": 1.0, "advantage": 0.5, "counted": row != 2, "response_len": row + 1} for row in range(4)]
    batch = SimpleNamespace(
        keys=["a_0_0", "a_1_0", "b_0_0", "b_1_0"], tags=tags, partition_id="train", extra_info={}, reorder=order.extend
    )
    config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(tmp_path)))
    trainer.MethodTrainer(config)._balance_batch(batch, {})
    masks = dict(zip(order, (row.tolist() for row in put["response_mask"].unbind()), strict=True))
    assert masks == {0: [1], 1: [1, 1], 2: [0, 0, 0], 3: [1] * 4}


# verl's metrics under the local engine's names, and what a run shows of them while verl trains, over attempts.


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
