"""Our losses and advantages as verl's registries take them; nothing here imports verl.

verl hands a loss one micro-batch, padded, with the token count of the whole mini-batch over all ranks, and averages the
gradients of its data-parallel ranks: the loss is multiplied by their number, so that the average is the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, Normaliser
from rlvr.methods.losses.base import PolicyLoss
from rlvr.methods.method import Method


@dataclass
class RegisteredLoss:
    """A policy loss with the signature that verl's ``register_policy_loss`` expects.

    Attributes:
        loss: ours.
        aggregation: the method's.
        gradient: [B, T] of the mini-batch's loss with respect to this micro-batch's log-probabilities, if the loss
            couples rollouts and was therefore computed on the whole mini-batch before; see engine.py.
        token_sums: sums over the micro-batch's tokens of the metrics of the last call.
    """

    loss: PolicyLoss
    aggregation: Aggregation
    gradient: Tensor | None = None
    token_sums: dict[str, float] = field(default_factory=dict)

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """This micro-batch's part of the loss [], times the data-parallel ranks; metrics go to ``token_sums``.

        Args:
            old_log_prob: [B, T].
            log_prob: [B, T], with gradient.
            advantages: [B, T], token weights included.
            response_mask: [B, T].
            loss_agg_mode: ignored, the method has its own.
            config: verl's actor configuration; ``global_batch_info`` has the mini-batch's counts.
            rollout_is_weights: not supported, None.

        Raises:
            ValueError: importance weights were given, or a loss that couples rollouts lacks its gradient.
        """
        if rollout_is_weights is not None:
            raise ValueError("rollout_is_weights are not supported")
        info: Mapping[str, Any] = config.global_batch_info
        mask = response_mask.bool()
        if self.gradient is not None:
            self.token_sums = {}
            return (self.gradient * log_prob).masked_fill(~mask, 0.0).sum() * info["dp_size"], {}
        if self.loss.coupling != "rollout":
            raise ValueError(f"{type(self.loss).__name__} couples rollouts; it runs in our engine only")
        rollouts = torch.arange(len(mask), device=mask.device)
        token_loss, metrics = self.loss(
            log_prob, old_log_prob, advantages, mask, rollouts, torch.Generator(), self.aggregation
        )
        self.token_sums = {name: float(values.detach()[mask].sum()) for name, values in metrics.items()}
        normaliser = Normaliser(int(info["batch_num_tokens"]), int(info["global_batch_size"]))
        return self.aggregation(token_loss, mask, normaliser) * info["dp_size"], {}


@dataclass(frozen=True)
class RegisteredAdvantage:
    """Reward shaping and advantage with the signature that verl's ``register_adv_est`` expects.

    Attributes:
        method: whose they are.
        longest: longest response in tokens, for the shaping.
    """

    method: Method
    longest: int

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Any,
        config: Any = None,
        **_unused: Any,
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, both [B, T] and equal: an outcome reward has nothing to discount.

        Args:
            token_level_rewards: [B, T], the reward at the last token.
            response_mask: [B, T].
            index: [B] names of the prompts.
            config: verl's algorithm configuration; nothing of it is used.
        """
        mask = response_mask.bool()
        lengths = mask.sum(dim=1)
        advantages = self.of_rollouts(token_level_rewards.sum(dim=1), group_ids(index).to(mask.device), lengths)
        spread = advantages[:, None] * mask
        return spread, spread

    def of_rollouts(self, rewards: Tensor, groups: Tensor, lengths: Tensor) -> Tensor:
        """Advantages [B] of rewards [B], group ids [B] and lengths [B]."""
        shaping = self.method.reward_shaping
        shaped = rewards if shaping is None else shaping(rewards, lengths, self.longest)
        return self.method.advantage(shaped, groups, lengths)


def group_ids(names: Any) -> Tensor:
    """[B] int64: prompts numbered in the order in which their names first appear."""
    listed = [str(name) for name in names]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(listed))}
    return torch.tensor([numbers[name] for name in listed])
