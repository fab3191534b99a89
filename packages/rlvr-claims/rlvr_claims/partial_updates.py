"""Updates on less than a rollout batch, or on more than once: smaller groups, parts of the batch, repeated steps."""

import torch
from torch import Tensor

from rlvr.methods.method import compose
from rlvr_claims.policy import PolicySnapshot, numbers_within_groups
from rlvr_claims.probes import Probed, ascend, log_probs_of, restored, score_gradient, stepped

GROUP_SIZES = (2, 4)
PARTS_OF_BATCH = (8, 4, 2)
"""Batches of an eighth, a quarter and a half of a rollout batch's prompts."""
COMPOSITIONS = ("sparse", "balanced", "saturated")
SPARSE_UP_TO, SATURATED_FROM = 0.25, 0.75
REPEATS = (2, 4, 8)
OF_BATCHES = tuple(f"batch_part_{parts}" for parts in PARTS_OF_BATCH)
UPDATES = (
    "as_trained",
    "joint",
    *(f"group_of_{size}" for size in GROUP_SIZES),
    *(f"repeated_{steps}" for steps in REPEATS),
    *OF_BATCHES,
    "own_composition",
)


def all_displacements(snapshot: PolicySnapshot, probed: Probed, compositions: Tensor) -> dict[str, Tensor]:
    """Return displacements [N] under each of :data:`UPDATES`; ``compositions`` [B] are those of the rollouts."""
    model, tokens, temperature = snapshot.model, snapshot.tokens, snapshot.temperature
    before = log_probs_of(model, tokens, temperature)
    displacements = {name: probed.displacements[name] for name in ("as_trained", "joint")}
    for size in GROUP_SIZES:
        gradient = score_gradient(model, tokens, temperature, coefficients_of_smaller_groups(snapshot, size))
        with stepped(model, gradient, probed.step_size) as after:
            displacements[f"group_of_{size}"] = log_probs_of(after, tokens, temperature) - before
    for parts, name in zip(PARTS_OF_BATCH, OF_BATCHES, strict=True):
        displacements[name] = displacements_by_block(
            snapshot, parts_of_batch(snapshot.groups, parts), probed.step_size, before
        )
    displacements["own_composition"] = displacements_by_block(snapshot, compositions, probed.step_size, before)
    with restored(model):
        for steps in range(1, max(REPEATS) + 1):
            ascend(model, score_gradient(model, tokens, temperature, snapshot.coefficients), probed.step_size)
            if steps in REPEATS:
                displacements[f"repeated_{steps}"] = log_probs_of(model, tokens, temperature) - before
    return displacements


def coefficients_of_smaller_groups(snapshot: PolicySnapshot, size: int) -> Tensor:
    """Return the coefficients [N] if every group had only its first ``size`` rollouts, weights aside."""
    kept = numbers_within_groups(snapshot.groups) < size
    rewards, lengths = snapshot.of_rollouts("reward").float(), snapshot.lengths
    advantages = torch.zeros(len(kept), dtype=torch.float64)
    advantage = compose(snapshot.run.method, longest=snapshot.run.training.max_new_tokens).advantage
    advantages[kept] = advantage(rewards[kept], snapshot.groups[kept], lengths[kept]).double()
    return advantages[snapshot.rollout_of] / int(lengths[kept].sum())


def parts_of_batch(groups: Tensor, parts: int) -> Tensor:
    """Number the part [B] of the batch that each rollout's group [B] falls into, of ``parts`` nearly equal ones."""
    numbers: Tensor = groups.unique(return_inverse=True)[1]
    return numbers * parts // (int(numbers.max()) + 1)


def compositions_of(snapshot: PolicySnapshot) -> Tensor:
    """Number each rollout's group [B] in :data:`COMPOSITIONS`, by the share of its rollouts that are right."""
    right = snapshot.of_rollouts("reward") > 0
    _, members, sizes = snapshot.groups.unique(return_inverse=True, return_counts=True)
    shares = (torch.zeros(len(sizes)).double().index_add(0, members, right.double()) / sizes)[members]
    numbers: Tensor = (shares > SPARSE_UP_TO).long() + (shares >= SATURATED_FROM).long()
    return numbers


def displacements_by_block(snapshot: PolicySnapshot, blocks: Tensor, step_size: float, before: Tensor) -> Tensor:
    """Return the displacement [N] of each token by one SGD step on the rollouts of its own block alone.

    ``blocks`` [B] number them, ``before`` [N] are the log-probabilities without a step. A step is on the mean over its
    tokens, as that of the whole batch is.
    """
    model, temperature = snapshot.model, snapshot.temperature
    displacements = torch.zeros_like(before)
    for block in blocks.unique():
        rollouts = (blocks == block).nonzero()[:, 0]
        of_block = (blocks == block)[snapshot.rollout_of]
        tokens = snapshot.tokens.select(rollouts)
        coefficients = snapshot.weighted_advantages[of_block] / int(of_block.sum())
        with stepped(model, score_gradient(model, tokens, temperature, coefficients), step_size) as after:
            displacements[of_block] = log_probs_of(after, tokens, temperature) - before[of_block]
    return displacements
