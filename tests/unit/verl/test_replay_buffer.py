"""Rollouts are held back until the selection is content; verl's buffer and queue are stood for by plain objects."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from rlvr.engines.verl.registered import CurrentRun
from tests.unit.verl.conftest import import_trainer, make_cluster, make_run

PROMPTS, SAMPLES = 2, 4


@dataclass
class Queue:
    """Rounds of sampling: of each its prompts and the rewards of their rollouts, fewer of those if some failed."""

    rounds: list[dict[str, list[float]]]
    sampled: int = 1
    cleared: list[str] = field(default_factory=list)

    @property
    def rewards(self) -> dict[str, float]:
        """Of every rollout that is there, by its name."""
        there = [prompt for found in self.rounds[: self.sampled] for prompt in found.items()]
        return {f"{uid}_{n}_0": reward for uid, rewards in there for n, reward in enumerate(rewards)}

    def refill(self, prompts: int) -> None:
        """Some more prompts: those of the next round."""
        self.sampled += 1
        assert self.sampled <= len(self.rounds), "more rounds were asked for than there are"
        assert prompts == len(self.rounds[self.sampled - 1])

    def get(self, keys: list[str], **_named: Any) -> dict[str, Any]:
        """What the buffer reads of rollouts."""
        rows = [torch.tensor([0.0, self.rewards[key]]) for key in keys]
        scores = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        return {"rm_scores": scores, "extra_fields": [{"reward_extra_info": {"truncated": 0.0}} for _ in keys]}


def sample(queue: Queue, monkeypatch: pytest.MonkeyPatch, method: str = "dapo_dynamic_sampling") -> Any:
    """The batch that the buffer makes of the queue, and its metrics."""

    class Base:
        """verl's ReplayBuffer, as far as MethodReplayBuffer uses it."""

        def __init__(self) -> None:
            self.refill_fn, self.poll_interval = queue.refill, 0.0
            self.partitions: dict[str, dict[str, Any]] = defaultdict(dict)
            self.pending_keys, self.running_keys, self.failure_keys, self.finished_keys = (
                defaultdict(set) for _ in range(4)
            )

        def _sync_metadata_from_transfer_queue(self) -> None:
            self.partitions["train"] = {key: {"response_len": 2} for key in queue.rewards}
            self.finished_keys["train"] = {uid for found in queue.rounds[: queue.sampled] for uid in found}

    def clear(keys: list[str], partition_id: str) -> None:
        queue.cleared += keys

    trainer = import_trainer(monkeypatch, ReplayBuffer=Base, kv_batch_get=queue.get, kv_clear=clear)
    run = make_run(method, prompts_per_step=PROMPTS, samples_per_prompt=SAMPLES, updates_per_step=1)
    current = CurrentRun.of(run, make_cluster())
    monkeypatch.setattr(trainer, "current_run", lambda: current)
    return trainer.MethodReplayBuffer().sample(1, "train", PROMPTS)


RIGHT, WRONG, MIXED = [1.0] * SAMPLES, [0.0] * SAMPLES, [1.0, 0.0, 0.0, 0.0]


def test_sampling_goes_on_until_enough_prompts_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue([{"a": RIGHT, "b": MIXED}, {"c": MIXED, "d": MIXED}])
    batch, metrics = sample(queue, monkeypatch)
    assert [key.split("_")[0] for key in batch.keys] == ["b"] * SAMPLES + ["c"] * SAMPLES
    assert {key.split("_")[0] for key in queue.cleared} >= {"a", "d"} and not set(batch.keys) & set(queue.cleared)
    group = torch.tensor(MIXED)
    expected = ((group - group.mean()) / (group.std() + 1e-6)).tolist()
    assert [tag["advantage"] for tag in batch.tags] == pytest.approx(expected * 2, abs=1e-6)
    # Metrics are of everything that was sampled.
    assert metrics["rlvr/reward_mean"] == pytest.approx(7 / 16) and metrics["rlvr/prompts_sampled"] == 4
    assert metrics["rlvr/groups_mixed_fraction"] == 0.75 and metrics["rlvr/sampling_rounds"] == 2
    assert metrics["rlvr/rollouts_discarded_fraction"] == 0.5


@pytest.mark.parametrize("method", ["dapo_dynamic_sampling", "dapo"])
def test_a_prompt_that_lost_a_rollout_is_replaced_and_counted(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed rollout costs its prompt, and not the run: as many more prompts are sampled, and no others."""
    queue = Queue([{"a": MIXED[:3], "b": MIXED}, {"c": MIXED}])
    batch, metrics = sample(queue, monkeypatch, method)
    assert {key.split("_")[0] for key in batch.keys} == {"b", "c"} and len(batch.keys) == PROMPTS * SAMPLES
    assert {"a_0_0", "a_1_0", "a_2_0"} <= set(queue.cleared)
    assert metrics["rlvr/prompts_failed"] == 1 and metrics["rlvr/prompts_sampled"] == 2
    assert metrics["rlvr/rollouts_discarded_fraction"] == 0 and "rlvr/reward_mean" in metrics
    group = torch.tensor(MIXED)
    expected = ((group - group.mean()) / (group.std() + 1e-6)).tolist()
    assert [tag["advantage"] for tag in batch.tags] == pytest.approx(expected * 2, abs=1e-6)


def test_without_failures_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, metrics = sample(Queue([{"a": MIXED, "b": RIGHT}]), monkeypatch, "dapo")
    assert metrics["rlvr/prompts_failed"] == 0 and "rlvr/sampling_rounds" not in metrics
    assert [key.split("_")[0] for key in batch.keys] == ["a"] * SAMPLES + ["b"] * SAMPLES


def test_dropped_rollouts_had_their_part_in_their_group_s_advantages(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue([{"a": MIXED, "b": MIXED}, {"c": RIGHT, "d": MIXED}])
    batch, metrics = sample(queue, monkeypatch, "dapo_reward_balanced")
    assert len(batch.keys) == PROMPTS * SAMPLES and metrics["rlvr/sampling_rounds"] == 2
    group = torch.tensor(MIXED)
    of_reward = {reward: float((reward - group.mean()) / (group.std() + 1e-6)) for reward in (0.0, 1.0)}
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        expected = 0.0 if key.startswith("c") else of_reward[queue.rewards[key]]
        assert tag["advantage"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", ["dapo_dynamic_sampling", "dapo"])
def test_a_run_ends_where_more_prompts_fail_than_is_stated(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"2 of 2 prompts lack .* 4 rollouts; accepted: 10% of 2 at most"):
        sample(Queue([{"a": [], "b": MIXED[:2]}]), monkeypatch, method)
    with pytest.raises(RuntimeError, match="2 of 3 prompts lack"):  # the same one after the other
        sample(Queue([{"a": MIXED[:1], "b": MIXED}, {"c": MIXED[:1]}]), monkeypatch, method)
