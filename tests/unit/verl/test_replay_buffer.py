"""Rollouts are held back until the selection is content; verl's buffer and queue are stood for by plain objects."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from rlvr.engines.verl.registered import CurrentRun
from rlvr.methods.method import compose
from tests.unit.verl.conftest import import_with_verl, make_cluster, make_run

PROMPTS, SAMPLES = 2, 4


@dataclass
class Queue:
    """Prompts in the order in which they are asked for, with the rewards of their rollouts; fewer if some failed."""

    rewards_of: Mapping[str, list[float]]
    ends: Mapping[str, int] = field(default_factory=dict)
    """The look at the queue, from 1, at which a prompt has ended; the first after it was asked for, if left out."""
    asked: list[int] = field(default_factory=lambda: [PROMPTS])
    """The number of prompts that were asked for at first, and then each time."""
    asked_at: list[int] = field(default_factory=list)
    """The look at which each of the later ones was."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The reasons of verdicts, by rollout; a mismatch where left out."""
    looks: int = 0
    cleared: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        """Those that were asked for."""
        assert sum(self.asked) <= len(self.rewards_of), "more prompts were asked for than there are"
        return list(self.rewards_of)[: sum(self.asked)]

    @property
    def ended(self) -> list[str]:
        """Those that have ended, in the order in which they did."""
        there = [prompt for prompt in self.prompts if self.ends.get(prompt, 0) <= self.looks]
        return sorted(there, key=lambda prompt: self.ends.get(prompt, 0))

    def refill(self, prompts: int) -> None:
        self.asked.append(prompts)
        self.asked_at.append(self.looks)

    def get(self, keys: list[str], **_named: Any) -> dict[str, Any]:
        """What the buffer reads of rollouts."""
        rows = [torch.tensor([0.0, self.reward(key)]) for key in keys]
        scores = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        info = [{"truncated": 0.0, "reason": self.reasons.get(key, "mismatch")} for key in keys]
        return {"rm_scores": scores, "extra_fields": [{"reward_extra_info": each} for each in info]}

    def reward(self, key: str) -> float:
        prompt, number, _ = key.split("_")
        return self.rewards_of[prompt][int(number)]


def sample(
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    method: str = "dapo_dynamic_sampling",
    longest: int = 20480,
    **training: Any,
) -> Any:
    """The batch that the buffer makes of the queue, and its metrics."""

    class Base:
        """verl's ReplayBuffer, as far as MethodReplayBuffer uses it."""

        def __init__(self) -> None:
            self.refill_fn, self.poll_interval = queue.refill, 0.0
            self.partitions: dict[str, dict[str, Any]] = defaultdict(dict)
            self.prompt_global_steps: dict[str, dict[str, int]] = defaultdict(dict)
            self.pending_keys, self.running_keys, self.failure_keys, self.finished_keys = (
                defaultdict(set) for _ in range(4)
            )

        def _sync_metadata_from_transfer_queue(self) -> None:
            queue.looks += 1
            # As verl does: rollouts in the order in which they ended, here the last of a group first.
            there = {uid: queue.rewards_of[uid] for uid in queue.ended}
            keys = [f"{uid}_{n}_0" for uid, rewards in there.items() for n in reversed(range(len(rewards)))]
            self.partitions["train"] = {key: {"response_len": 2} for key in keys}
            self.prompt_global_steps["train"] = dict.fromkeys(queue.prompts, 1)
            self.finished_keys["train"] = set(queue.ended)
            self.running_keys["train"] = set(queue.prompts) - set(queue.ended)

    def clear(keys: list[str], partition_id: str) -> None:
        queue.cleared += keys

    module = import_with_verl(monkeypatch, "replay_buffer", ReplayBuffer=Base, kv_batch_get=queue.get, kv_clear=clear)
    shape = {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES, "updates_per_step": 1}
    run = make_run(method, **shape, max_new_tokens=longest, **training)
    current = CurrentRun.of(run, make_cluster())
    monkeypatch.setattr(module, "current_run", lambda: current)
    return module.MethodReplayBuffer().sample(1, "train", PROMPTS)


RIGHT, WRONG, MIXED = [1.0] * SAMPLES, [0.0] * SAMPLES, [1.0, 0.0, 0.0, 0.0]


def prompts_of(batch: Any) -> list[str]:
    """The prompts of the batch's rollouts, once if they stand together."""
    prompts = [key.split("_")[0] for key in batch.keys]
    return prompts[::SAMPLES]


def advantages_of_mixed() -> list[float]:
    group = torch.tensor(MIXED)
    return list(((group - group.mean()) / (group.std() + 1e-6)).tolist())


def test_sampling_goes_on_until_enough_prompts_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue({"a": RIGHT, "b": MIXED, "c": WRONG, "d": MIXED, "e": MIXED})
    batch, metrics = sample(queue, monkeypatch)
    assert batch.keys == [f"{prompt}_{number}_0" for prompt in "bd" for number in range(SAMPLES)]
    assert {key.split("_")[0] for key in queue.cleared} >= {"a", "c"} and not set(batch.keys) & set(queue.cleared)
    assert [tag["advantage"] for tag in batch.tags] == pytest.approx(advantages_of_mixed() * 2, abs=1e-6)
    # Metrics are of everything that was sampled, which is no prompt more than it takes.
    assert metrics["rlvr/prompts_sampled"] == 4 and queue.asked == [2, 1, 1]
    assert metrics["rlvr/reward_mean"] == pytest.approx(6 / 16) and metrics["rlvr/groups_mixed_fraction"] == 0.5
    assert metrics["rlvr/rollouts_discarded_fraction"] == 0.5


def test_a_prompt_is_replaced_while_others_are_still_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue({"a": RIGHT, "b": MIXED, "c": MIXED}, ends={"b": 9})
    batch, _ = sample(queue, monkeypatch)
    assert prompts_of(batch) == ["b", "c"] and queue.asked_at == [1] and queue.looks == 9


@pytest.mark.parametrize("method", ["dapo_dynamic_sampling", "dapo"])
def test_the_batch_does_not_depend_on_which_prompt_ends_first(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = {"a": RIGHT, "b": MIXED, "c": MIXED, "d": MIXED}
    found = [sample(Queue(rewards, ends), monkeypatch, method)[0] for ends in ({}, {"a": 7, "b": 5}, {"b": 9, "c": 2})]
    assert all(batch.keys == found[0].keys and batch.tags == found[0].tags for batch in found)


def test_a_batch_is_filled_up_once_enough_prompts_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{number:02}" for number in range(10 * PROMPTS)]
    rewards = {name: MIXED if name == "p07" else WRONG for name in names} | {"p05": WRONG[1:], "more": MIXED}
    batch, metrics = sample(Queue(rewards, ends={"p03": 30}), monkeypatch)
    assert prompts_of(batch) == ["p07", "more"] and metrics["rlvr/prompts_failed"] == 1
    batch, metrics = sample(Queue({**rewards, "more": WRONG}, ends={"p03": 30}), monkeypatch)
    assert prompts_of(batch) == ["p00", "p07"] and metrics["rlvr/prompts_sampled"] == 10 * PROMPTS
    assert {tag["advantage"] for tag in batch.tags[:SAMPLES]} == {0.0}


@pytest.mark.parametrize("method", ["dapo_dynamic_sampling", "dapo"])
def test_a_prompt_that_lost_a_rollout_is_replaced_and_counted(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed rollout costs its prompt, and not the run: as many more prompts are sampled, and no others."""
    queue = Queue({"a": MIXED[:3], "b": MIXED, "c": MIXED}, ends={"b": 5})
    batch, metrics = sample(queue, monkeypatch, method)
    assert prompts_of(batch) == ["b", "c"] and len(batch.keys) == PROMPTS * SAMPLES and queue.asked == [2, 1]
    assert {"a_0_0", "a_1_0", "a_2_0"} <= set(queue.cleared)
    assert metrics["rlvr/prompts_failed"] == 1 and metrics["rlvr/prompts_sampled"] == 2
    assert metrics["rlvr/rollouts_discarded_fraction"] == 0 and "rlvr/reward_mean" in metrics
    assert [tag["advantage"] for tag in batch.tags] == pytest.approx(advantages_of_mixed() * 2, abs=1e-6)


@pytest.mark.parametrize("name", ["dapo", "dapo_overlong", "rloo", "reinforce_plus_plus_baseline"])
def test_advantages_are_those_of_the_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = sample(Queue({"a": MIXED, "b": RIGHT}), monkeypatch, name, longest=2)
    rewards, groups = torch.tensor(MIXED + RIGHT), torch.tensor([0, 1]).repeat_interleave(SAMPLES)
    expected = compose(make_run(name).method).advantages(rewards, groups, torch.full((2 * SAMPLES,), 2), longest=2)
    assert [tag["advantage"] for tag in batch.tags] == pytest.approx(expected.tolist())
    assert bool(expected.abs().sum() > 0)


def test_dropped_rollouts_had_their_part_in_their_group_s_advantages(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue({"a": MIXED, "b": MIXED, "c": RIGHT, "d": MIXED})
    batch, metrics = sample(queue, monkeypatch, "dapo_reward_balanced")
    # A method that judges the rollouts together samples whole rounds.
    assert len(batch.keys) == PROMPTS * SAMPLES and metrics["rlvr/prompts_sampled"] == 4 and queue.asked == [2, 2]
    of_reward = {0.0: advantages_of_mixed()[1], 1.0: advantages_of_mixed()[0]}
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        expected = 0.0 if key.startswith("c") else of_reward[queue.reward(key)]
        assert tag["advantage"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", ["dapo_dynamic_sampling", "dapo"])
def test_a_run_ends_where_more_prompts_fail_than_is_stated(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"2 of 2 prompts lack .* 4 rollouts; accepted: 10% at most"):
        sample(Queue({"a": [], "b": MIXED[:2]}), monkeypatch, method)
    with pytest.raises(RuntimeError, match="2 of 3 prompts lack"):  # the same one after the other
        sample(Queue({"a": MIXED[:1], "b": MIXED, "c": MIXED[:1]}), monkeypatch, method)


@pytest.mark.parametrize("worth", ["wrong", "left_out"])
def test_unjudged_responses_are_worth_what_the_run_says(monkeypatch: pytest.MonkeyPatch, worth: str) -> None:
    queue = Queue({"a": MIXED, "b": RIGHT}, reasons={"a_3_0": "timeout", "b_1_0": "verifier_failed"})
    batch, metrics = sample(queue, monkeypatch, "dapo", unjudged=worth)
    assert metrics["rlvr/unjudged_timeout"] == metrics["rlvr/unjudged_verifier_failed"] == 1
    assert metrics["rlvr/unjudged_memory"] == 0
    advantages = dict(zip(batch.keys, [tag["advantage"] for tag in batch.tags], strict=True))
    if worth == "wrong":
        assert [advantages[f"a_{number}_0"] for number in range(4)] == pytest.approx(advantages_of_mixed(), abs=1e-6)
    else:
        judged = torch.tensor(MIXED[:3])
        expected = ((judged - judged.mean()) / (judged.std() + 1e-6)).tolist()
        assert [advantages[f"a_{number}_0"] for number in range(4)] == pytest.approx([*expected, 0.0], abs=1e-6)
        rewards = {key: tag["reward"] for key, tag in zip(batch.keys, batch.tags, strict=True)}
        assert rewards["a_3_0"] == pytest.approx(1 / 3)


def test_a_group_with_one_response_that_nobody_judged_is_not_mixed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue({"a": [1.0, 1.0, 1.0, 0.0], "b": MIXED, "c": MIXED}, reasons={"a_3_0": "memory"})
    batch, _ = sample(queue, monkeypatch, unjudged="left_out")
    assert prompts_of(batch) == ["b", "c"]
