"""The method's loss of one optimizer step, which verl's engine has in place of verl's own.

A worker is handed one micro-batch at a time. The normaliser is that of the mini-batch over all ranks, so that parts add
up to the mini-batch's loss. Nothing here imports verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.methods.aggregation import Normaliser
from rlvr.methods.losses.base import Tokens
from rlvr.methods.method import Method
from rlvr.methods.reference_kl import LossTerm


def fields_of_tokens(method: Method) -> list[str]:
    """Verl's names of what the method's loss needs of each token beside the current policy's numbers."""
    sampler = ["rollout_log_probs"] if method.correction is not None else []
    reference = ["ref_log_prob"] if isinstance(method.kl, LossTerm) else []
    return ["old_log_probs", "advantages", *sampler, *reference]


@dataclass(frozen=True)
class MiniBatchLoss:
    """The loss of one mini-batch.

    Attributes:
        normaliser: of the mini-batch, over all ranks.
        generator: the optimizer step's own.
        entropy_coefficient: of the method's entropy bonus.
    """

    method: Method
    normaliser: Normaliser
    generator: torch.Generator
    entropy_coefficient: float

    def __call__(
        self, current: Mapping[str, Tensor], given: Mapping[str, Tensor], mask: Tensor, groups: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute the part [] of some rollouts in the loss, and in the means of metrics over the mini-batch's tokens.

        Args:
            current: ``log_probs`` and, with an entropy bonus, ``entropy`` of the current policy; [B, T] each.
            given: the :func:`fields_of_tokens`, [B, T] each; advantages with their token weights.
            mask: [B, T] bool.
            groups: [B], the prompt of each rollout.
        """
        tokens = Tokens(
            current["log_probs"],
            given["old_log_probs"],
            given["advantages"],
            mask,
            groups,
            self.generator,
            given_sampler_log_probs=given.get("rollout_log_probs"),
            given_reference_log_probs=given.get("ref_log_prob"),
            given_entropies=current.get("entropy"),
            entropy_coefficient=self.entropy_coefficient,
        )
        values, metrics = self.method.token_loss(tokens)
        count = max(1, self.normaliser.tokens)
        means = {name: float(tensor.detach().masked_fill(~mask, 0.0).sum()) / count for name, tensor in metrics.items()}
        return self.method.aggregation(values, mask, self.normaliser, groups), means
