"""The loss of a mini-batch, whatever its method has in it, is the same however ranks and micro-batches cut it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evals.core.random import generator_for, random_projection
from rlvr.engines.verl.gathering import (
    AllRollouts,
    HeadInputs,
    MiniBatchLoss,
    Ranks,
    fields_of_tokens,
    rank_layout,
    whole_groups_fraction,
)
from rlvr.engines.verl.registered import CurrentRun, Field, nested
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.assignments import QueryPreserved, RandomSplit, mini_batch_ids
from rlvr.methods.losses.base import Tokens
from rlvr.methods.method import Method, compose
from rlvr.study.catalogue import load_catalogue
from tests.unit.verl.conftest import make_cluster, make_run, run_content

METHODS = {name: compose(run_content(name)["method"], longest=6) for name in load_catalogue()}
DIVISIBLE = [name for name, method in METHODS.items() if method.loss.coupling == "rollout"]
ROLLOUTS, LENGTH, COEFFICIENT = 8, 6, 0.3


class MiniBatch:
    """Rollouts of ragged lengths, with rubbish at padding, in groups of four."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)

        def drawn(scale: float) -> Tensor:
            return scale * torch.randn(ROLLOUTS, LENGTH, generator=generator, dtype=torch.float64)

        lengths = torch.randint(1, LENGTH + 1, (ROLLOUTS, 1), generator=generator)
        self.mask = torch.arange(LENGTH) < lengths
        self.groups = torch.arange(ROLLOUTS) // 4
        old = -torch.rand(ROLLOUTS, LENGTH, generator=generator, dtype=torch.float64)
        self.given = {
            "old_log_probs": old,
            "advantages": drawn(1.0)[:, :1].expand(-1, LENGTH).clone(),
            "rollout_log_probs": old + drawn(0.4),
            "ref_log_prob": old + drawn(0.6),
        }
        self.current = {"log_probs": old + drawn(0.5), "entropy": drawn(1.0).abs()}
        for values in (*self.given.values(), *self.current.values()):
            values[~self.mask] = torch.nan
        self.current = {name: values.requires_grad_() for name, values in self.current.items()}

    def loss(self, method: Method) -> MiniBatchLoss:
        return MiniBatchLoss(method, Normaliser.of(self.mask, self.groups), torch.Generator(), COEFFICIENT)

    def of_model(self, method: Method) -> dict[str, Tensor]:
        """What verl's model gives in an update: entropies where the method has a bonus for them."""
        names = ["log_probs"] if method.entropy_bonus is None else ["log_probs", "entropy"]
        return {name: self.current[name] for name in names}


def rows_at(values: Mapping[str, Tensor], part: Tensor) -> dict[str, Tensor]:
    return {name: each[part] for name, each in values.items()}


@pytest.mark.parametrize("name", DIVISIBLE)
def test_parts_add_up_to_what_the_local_engine_computes_of_the_mini_batch(name: str) -> None:
    """All of the method: ratios, corrections of the sampler, the divergence, the bonus, and its own aggregation."""
    method, batch = METHODS[name], MiniBatch()
    of_model = batch.of_model(method)
    tokens = Tokens(
        of_model["log_probs"],
        batch.given["old_log_probs"],
        batch.given["advantages"],
        batch.mask,
        batch.groups,
        torch.Generator(),
        batch.given["rollout_log_probs"],
        batch.given["ref_log_prob"],
        of_model.get("entropy"),
        COEFFICIENT,
    )
    values, metrics = method.token_loss(tokens)
    normaliser = Normaliser.of(batch.mask, batch.groups)
    expected = method.aggregation(values, batch.mask, normaliser, batch.groups)
    slopes = torch.autograd.grad(expected, list(of_model.values()))
    given = {field: batch.given[field] for field in fields_of_tokens(method)}
    total, means = torch.zeros((), dtype=torch.float64), dict.fromkeys(metrics, 0.0)
    for part in torch.arange(ROLLOUTS).split(3):
        of_part = rows_at(of_model, part), rows_at(given, part), batch.mask[part], batch.groups[part]
        value, shares = batch.loss(method)(*of_part)
        total = total + value
        means = {metric: means[metric] + share for metric, share in shares.items()}
    torch.testing.assert_close(total, expected)
    for found, slope in zip(torch.autograd.grad(total, list(of_model.values())), slopes, strict=True):
        torch.testing.assert_close(found, slope)
    tokens_of_all = int(batch.mask.sum())
    assert means == pytest.approx(
        {metric: float(of_tokens.detach()[batch.mask].sum()) / tokens_of_all for metric, of_tokens in metrics.items()}
    )


def test_a_loss_is_given_what_its_method_asks_for_and_no_more() -> None:
    assert fields_of_tokens(METHODS["dapo"]) == ["old_log_probs", "advantages"]
    assert fields_of_tokens(METHODS["grpo"]) == ["old_log_probs", "advantages", "ref_log_prob"]
    assert fields_of_tokens(METHODS["grpo_kl_in_reward"]) == fields_of_tokens(METHODS["dapo"])
    for name, method in METHODS.items():
        assert ("rollout_log_probs" in fields_of_tokens(method)) == (method.correction is not None), name


@pytest.mark.parametrize(
    ("name", "field"), [("dapo_tis", "rollout_log_probs"), ("grpo", "ref_log_prob"), ("dapo_entropy_bonus", "entropy")]
)
def test_each_of_them_changes_the_loss(name: str, field: str) -> None:
    losses = []
    for shift in (0.0, 0.5):
        batch = MiniBatch()
        for values in (batch.given, batch.current):
            if field in values:
                values[field] = (values[field] + shift * torch.arange(LENGTH)).detach()
        method = METHODS[name]
        value, _ = batch.loss(method)(batch.of_model(method), batch.given, batch.mask, batch.groups)
        losses.append(float(value.detach()))
    assert abs(losses[0] - losses[1]) > 1e-6


# What a rank sees of the whole batch, and what it takes back; without verl and without other processes.


def test_values_of_all_ranks_stand_in_the_ranks_order_and_own_rows_come_back() -> None:
    first = {"lengths": torch.tensor([2, 1]), "mask": torch.ones(3).bool(), "values": torch.tensor([1.0, 2.0, 3.0])}
    second = {"lengths": torch.tensor([3]), "mask": torch.ones(3).bool(), "values": torch.tensor([4.0, 5.0, 6.0])}
    rollouts = AllRollouts([first, second], 1)
    padded = rollouts.padded("values")
    assert padded.tolist() == [[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [4.0, 5.0, 6.0]]
    assert rollouts.mask.sum(dim=1).tolist() == [2, 1, 3]
    assert [row.tolist() for row in rollouts.own(padded).unbind()] == [[4.0, 5.0, 6.0]]
    assert [row.tolist() for row in AllRollouts([first, second], 0).own(padded).unbind()] == [[1.0, 2.0], [3.0]]


def test_a_rank_alone_needs_no_other() -> None:
    alone = Ranks(None, 0, 1, torch.device("cpu"))
    found = alone.gather(nested([torch.ones(2), torch.ones(3)]), rewards=torch.tensor([1.0, 0.0]))
    assert found.joined("lengths").tolist() == [2, 3] and found.joined("rewards").tolist() == [1.0, 0.0]
    assert alone.share([5]) is None
    left_out = alone.gather(nested([torch.zeros(2), torch.ones(3)]), values=torch.arange(5.0))
    assert left_out.mask.tolist() == [[False] * 3, [True] * 3]
    assert [row.tolist() for row in left_out.own(left_out.padded("values")).unbind()] == [[0.0, 1.0], [2.0, 3.0, 4.0]]
    share = Ranks(None, 1, 2, torch.device("cpu")).share([5, 7])
    assert share is not None and (share.start, share.stop) == (5, 12)


# Hidden states: where they stand, and what is made of them while verl's engine computes in bfloat16.

WIDTH = 256


def current_run(method: str, seed: int = 1) -> CurrentRun:
    return CurrentRun.of(make_run(method).model_copy(update={"seed": seed}), make_cluster())


def vectors() -> Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(3)).bfloat16()


def see(inputs: HeadInputs, rows: list[int], responses: list[Tensor]) -> None:
    """A padded micro-batch of the rollouts at ``rows``: a prompt of one token, then what predicts the responses."""
    sequences = [torch.cat([response, torch.zeros(1, WIDTH)]).to(response.dtype) for response in responses]
    inputs.see(None, (torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True),))
    micro_batch = {
        "input_ids": nested([torch.zeros(len(sequence)) for sequence in sequences]),
        "responses": nested([torch.zeros(len(response)) for response in responses]),
        Field.ROW: torch.tensor(rows),
    }
    inputs.keep(micro_batch, {}, lambda seen, padding: seen)


def test_vectors_stand_in_the_order_of_the_rollouts() -> None:
    inputs = HeadInputs([4, 2], [3, 5], current_run("delta"))
    see(inputs, [2], [vectors()[3:]])
    with pytest.raises(RuntimeError, match="hidden states of 1 rollouts were not seen"):
        inputs.joined()
    see(inputs, [4], [vectors()[:3]])
    assert torch.equal(inputs.joined(), vectors())
    inputs = HeadInputs([4, 2], [3, 5], current_run("delta"))
    see(inputs, [2, 4], [vectors()[3:], vectors()[:3]])
    assert torch.equal(inputs.joined(), vectors())


def test_a_head_that_is_not_called_is_an_error() -> None:
    inputs = HeadInputs([0], [8], current_run("delta"))
    with pytest.raises(RuntimeError, match="the language-model head was not called"):
        inputs.keep({}, {}, lambda seen, padding: seen)


def test_a_sketch_is_of_float32_inside_the_forward_pass() -> None:
    current = current_run("delta_sketched")
    inputs = HeadInputs([0], [8], current)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # verl's forward pass
        assert (vectors().float() @ vectors().float().T).dtype == torch.bfloat16  # what it does to a matrix product
        see(inputs, [0], [vectors()])
    dimensions = current.method.sketch_dimensions
    assert dimensions is not None
    expected = vectors().float() @ random_projection(WIDTH, dimensions, generator_for("sketch", current.run.seed))
    torch.testing.assert_close(inputs.joined(), expected)


def test_another_seed_has_another_sketch() -> None:
    sketches = []
    for seed in (1, 2):
        inputs = HeadInputs([0], [8], current_run("delta_sketched", seed))
        see(inputs, [0], [vectors()])
        sketches.append(inputs.joined())
    assert not torch.equal(*sketches)


# The batch as verl's workers cut it up again gives the method's mini-batches back.


def sliced_by_workers(order: Tensor, ranks: int, updates: int) -> list[set[int]]:
    """Contiguous shares per rank, contiguous mini-batches within a share: what each optimizer step is made of."""
    share = len(order) // ranks
    size = share // updates
    steps: list[set[int]] = [set() for _ in range(updates)]
    for rank in range(ranks):
        for update in range(updates):
            start = rank * share + update * size
            steps[update] |= set(order[start : start + size].tolist())
    return steps


@given(
    ranks=st.sampled_from([1, 2, 4, 8]),
    updates=st.sampled_from([1, 2, 4]),
    prompts=st.sampled_from([8, 16]),
    whole=st.booleans(),
    seed=st.integers(0, 99),
)
def test_workers_slice_what_was_assigned(ranks: int, updates: int, prompts: int, whole: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(prompts).repeat_interleave(8)
    lengths = torch.randint(1, 500, (len(groups),), generator=generator)
    assignment = QueryPreserved() if whole else RandomSplit()
    parts = assignment(torch.zeros(len(groups)), groups, lengths, updates, generator)
    order = rank_layout(parts, lengths, ranks)
    assert sorted(order.tolist()) == list(range(len(groups)))
    assert sliced_by_workers(order, ranks, updates) == [set(part.tolist()) for part in parts]
    fraction = whole_groups_fraction(mini_batch_ids(parts, len(groups)), groups)
    assert fraction == 1.0 if whole or updates == 1 else fraction < 1.0


def test_the_ranks_tokens_are_balanced_in_each_mini_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 20_000, (512,), generator=generator)
    parts = list(torch.randperm(512, generator=generator).split(128))
    order = rank_layout(parts, lengths, 8)
    tokens = lengths[order].view(8, 4, 16).sum(dim=2).double()
    assert float((tokens.amax(dim=0) / tokens.mean(dim=0)).max()) < 1.1


def test_unequal_mini_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="have \\[3, 5\\] rollouts"):
        rank_layout([torch.arange(3), torch.arange(3, 8)], torch.ones(8), 1)
    with pytest.raises(ValueError, match="one size that 3 ranks divide"):
        rank_layout([torch.arange(4), torch.arange(4, 8)], torch.ones(8), 3)


def test_whole_groups_are_counted() -> None:
    ids, groups = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 2, 2])
    assert whole_groups_fraction(ids, groups) == pytest.approx(2 / 3)
