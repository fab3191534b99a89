"""Hidden states that are computed anew at every reading: the same token weights as those that are held."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from rlvr.methods.method import compose
from rlvr.methods.rollout_batch import RecomputedRows, Visit
from rlvr.methods.token_weights.delta import DelTA
from rlvr.study.catalogue import load_catalogue, resolve_method
from tests.unit.methods.test_shared_rows import WITH_HIDDEN_STATES, Processes, batch


class Source:
    """Gives rows in parts of uneven sizes and another order at every reading, as micro-batches would."""

    def __init__(self, rows: Tensor, seed: int) -> None:
        self._rows = rows
        self._generator = torch.Generator().manual_seed(seed)
        self.readings = 0

    def read(self, visit: Visit) -> None:
        self.readings += 1
        for part in torch.randperm(len(self._rows), generator=self._generator).split(7):
            visit(part, self._rows[part].clone())

    @property
    def recomputed(self) -> RecomputedRows:
        size, width = self._rows.shape
        return RecomputedRows((size, width), self._rows.dtype, self._rows.device, self.read)


@pytest.mark.parametrize("name", WITH_HIDDEN_STATES)
@pytest.mark.parametrize("processes", [1, 3])
def test_weights_are_those_of_rows_that_are_held(name: str, processes: int) -> None:
    weighting = compose(resolve_method(name, {}, load_catalogue(), "test"), longest=64).token_weights
    assert weighting is not None
    whole = batch(torch.Generator().manual_seed(7))
    rows = whole.hidden_states
    assert isinstance(rows, Tensor)
    expected, expected_metrics = weighting(whole)
    spans = [(0, 20), (20, 20), (20, len(rows))] if processes == 3 else [(0, len(rows))]  # one has nothing
    together = Processes(spans)

    def one(rank: int) -> tuple[Tensor, dict[str, float]]:
        part = dataclasses.replace(
            whole,
            hidden_states=Source(rows[slice(*spans[rank])], rank).recomputed,
            share=None if processes == 1 else together.share(rank),
            generator=torch.Generator().manual_seed(1),
        )
        return weighting(part)

    for weights, metrics in together.run(one):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
        assert metrics == pytest.approx(expected_metrics, rel=1e-4, nan_ok=True)


@pytest.mark.parametrize("refinements", [0, 1, 3])
def test_delta_reads_twice_for_each_centroids_and_twice_more(refinements: int) -> None:
    whole = batch(torch.Generator().manual_seed(7))
    assert isinstance(whole.hidden_states, Tensor)
    source = Source(whole.hidden_states, 1)
    DelTA(refinements=refinements)(dataclasses.replace(whole, hidden_states=source.recomputed))
    assert source.readings == 2 * refinements + 2  # a forward pass each


def test_half_precision_rows_are_read_in_float32() -> None:
    whole = batch(torch.Generator().manual_seed(7))
    assert isinstance(whole.hidden_states, Tensor)
    held = dataclasses.replace(whole, hidden_states=whole.hidden_states.bfloat16())
    assert isinstance(held.hidden_states, Tensor)
    anew = dataclasses.replace(whole, hidden_states=Source(held.hidden_states, 1).recomputed)
    torch.testing.assert_close(DelTA()(anew)[0], DelTA()(held)[0], rtol=1e-5, atol=1e-6)


def test_chosen_rows_are_numbered_anew() -> None:
    rows = torch.arange(30.0).view(10, 3)
    chosen = torch.arange(10) % 3 == 0
    found = torch.full((4, 3), -1.0)
    selected = Source(rows, 3).recomputed.select(chosen).changed(lambda at, part: part + at[:, None])

    def put(at: Tensor, part: Tensor) -> None:
        found[at] = part

    selected.read(put)
    torch.testing.assert_close(found, rows[chosen] + torch.arange(4)[:, None])
