"""Hidden states that several processes hold a part of each: the same token weights as one process that holds all."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.methods.method import compose
from rlvr.methods.rollout_batch import RolloutBatch, RowShare
from rlvr.study.catalogue import load_catalogue, resolve_method


def batch(generator: torch.Generator, rollouts: int = 12, length: int = 9, width: int = 16) -> RolloutBatch:
    lengths = torch.randint(1, length + 1, (rollouts,), generator=generator)
    mask = torch.arange(length) < lengths[:, None]
    return RolloutBatch(
        advantages=torch.randn(rollouts, generator=generator).round(decimals=1),
        old_log_probs=-torch.rand(rollouts, length, generator=generator),
        entropies=torch.rand(rollouts, length, generator=generator),
        response_mask=mask,
        mini_batch_ids=torch.arange(rollouts) % 2,
        group_ids=torch.arange(rollouts) // 4,
        token_ids=torch.randint(0, 30, (rollouts, length), generator=generator),
        temperature=1.0,
        generator=torch.Generator().manual_seed(1),
        head_weight=torch.randn(30, width, generator=generator),
        hidden_states=torch.randn(int(mask.sum()), width, generator=generator),
    )


class Processes:
    """Threads that stand for processes and meet at every collective."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._spans = spans
        self._barrier = threading.Barrier(len(spans), timeout=600)
        self._slots: list[Any] = [None] * len(spans)

    def _exchange(self, rank: int, value: Tensor) -> list[Tensor]:
        self._slots[rank] = value
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        return found

    def share(self, rank: int) -> RowShare:
        return RowShare(
            *self._spans[rank],
            total=lambda value: torch.stack(self._exchange(rank, value)).sum(dim=0),
            gather=lambda value: torch.cat(self._exchange(rank, value)),
        )

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * len(self._spans)

        def one(rank: int) -> None:
            results[rank] = work(rank)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(self._spans))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


WITH_HIDDEN_STATES = sorted(
    name
    for name in load_catalogue()
    if compose(resolve_method(name, {}, load_catalogue(), "test"), longest=64).needs_hidden_states
    and name != "delta_sketched"
)


@pytest.mark.parametrize("name", WITH_HIDDEN_STATES)
def test_shares_give_the_weights_of_the_whole(name: str) -> None:
    weighting = compose(resolve_method(name, {}, load_catalogue(), "test"), longest=64).token_weights
    assert weighting is not None
    whole = batch(torch.Generator().manual_seed(7))
    expected, expected_metrics = weighting(whole)
    assert whole.hidden_states is not None
    tokens = len(whole.hidden_states)
    spans = [(0, 20), (20, 20), (20, tokens)]  # one process has nothing
    processes = Processes(spans)

    def one(rank: int) -> tuple[Tensor, dict[str, float]]:
        start, stop = spans[rank]
        assert whole.hidden_states is not None
        part = dataclasses.replace(
            whole,
            hidden_states=whole.hidden_states[start:stop],
            share=processes.share(rank),
            generator=torch.Generator().manual_seed(1),
        )
        return weighting(part)

    for weights, metrics in processes.run(one):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
        assert metrics == pytest.approx(expected_metrics, rel=1e-4, nan_ok=True)


def test_a_share_has_to_fit_its_rows() -> None:
    whole = batch(torch.Generator().manual_seed(7))
    share = RowShare(0, 3, total=lambda value: value, gather=lambda value: value)
    with pytest.raises(ValueError, match=r"expected \[3, D\]"):
        dataclasses.replace(whole, share=share)
