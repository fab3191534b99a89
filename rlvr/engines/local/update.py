"""The optimizer steps on one rollout batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evals.core.random import generator_for
from evals.core.training_settings import LocalTraining
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.policy import Policy, TokenBatch, token_log_probs, token_scores, unpack
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.losses.base import Tokens
from rlvr.methods.method import Method


@dataclass(frozen=True)
class OtherPolicies:
    """What the loss of some methods needs beside the current policy and the one before the update; all [B, T]."""

    sampler_log_probs: Tensor | None = None  # of what drew the tokens; None where that is the policy before the update
    reference_log_probs: Tensor | None = None
    entropy_coefficient: float = 0.0

    def of(self, rows: Tensor, width: int) -> dict[str, Any]:
        """The fields of :class:`Tokens` for the first ``width`` tokens of some rollouts."""
        sampler, reference = self.sampler_log_probs, self.reference_log_probs
        return {
            "given_sampler_log_probs": None if sampler is None else sampler[rows, :width],
            "given_reference_log_probs": None if reference is None else reference[rows, :width],
            "entropy_coefficient": self.entropy_coefficient,
        }


NO_OTHERS = OtherPolicies()


class Updater:
    """AdamW with linear warm-up and decay and gradient clipping; one optimizer step per mini-batch.

    Attributes:
        observer: called with the number of each mini-batch of a call, from 0, when the parameters have the gradients of
            its loss, not clipped yet; it changes nothing.
        log_probs: [B, T] of the last call's tokens, each under the policy of its own optimizer step; 0 at padding.
        slopes: [B, T], the derivatives of the sum of the token losses with respect to them, where there is an observer.
    """

    observer: Callable[[int], None] | None = None
    log_probs: Tensor
    slopes: Tensor

    def __init__(self, model: Policy, method: Method, training: LocalTraining, seed: int) -> None:
        betas = training.adam_beta1, training.adam_beta2
        self.optimizer = AdamW(model.parameters(), training.weight_decay, betas, training.adam_epsilon)
        self._model, self._training, self._seed = model, training, seed
        self._method = method

    def update(
        self,
        tokens: TokenBatch,
        old_log_probs: Tensor,
        weighted_advantages: Tensor,
        group_ids: Tensor,
        mini_batches: Sequence[Tensor],
        steps_done: int,
        updates_done: int,
        others: OtherPolicies = NO_OTHERS,
    ) -> dict[str, float]:
        """One optimizer step for each of ``mini_batches``, the rollout indices.

        ``steps_done`` rollout steps and ``updates_done`` optimizer steps were done before them.
        ``old_log_probs`` [B, T] are those of the policy that sampled, ``weighted_advantages`` [B, T] advantages times
        token weights. Returns the loss's metrics averaged over the tokens of each mini-batch, and all over the
        mini-batches.
        """
        rows = []
        self.log_probs, self.slopes = torch.zeros_like(old_log_probs), torch.zeros_like(old_log_probs)
        for number, indices in enumerate(mini_batches, start=updates_done):
            learning_rate = self._training.learning_rate_of(steps_done, number)
            given = tokens, old_log_probs, weighted_advantages, group_ids, others
            backward = partial(self._backward, given, indices, number)
            totals, scale = self.optimizer.add_gradients(backward, self._model.dtype)
            if self.observer is not None:
                self.observer(number - updates_done)
            norm = self.optimizer.clip(self._training.gradient_clip, f"update {number + 1}")
            self.optimizer.step(learning_rate)
            rows.append({**totals, "grad_norm": norm, **scale, "learning_rate": learning_rate})
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    def _backward(
        self,
        given: tuple[TokenBatch, Tensor, Tensor, Tensor, OtherPolicies],
        indices: Tensor,
        number: int,
        scale: float,
    ) -> dict[str, float]:
        """Add the gradients of ``scale`` times the loss of the mini-batch ``indices``; returns the loss, and metrics.

        The mini-batch is that of the training's update ``number``.
        """
        tokens, old_log_probs, weighted_advantages, group_ids, others = given
        generator = generator_for("loss", self._seed, number)
        mini_batch = tokens.select(indices)
        normaliser = Normaliser.of(mini_batch.response_mask, group_ids[indices])
        # Only losses that look at single rollouts may be cut into micro-batches freely.
        is_divisible = self._method.loss.coupling == "rollout"
        limits = self._training.micro_batch_size, self._training.micro_batch_tokens
        parts = [indices[places] for places in mini_batch.passes(*limits, self._model.padded)]
        totals: dict[str, float] = {"loss": 0.0}
        for part in parts if is_divisible else [indices]:
            batch = tokens.select(part)
            mask = batch.response_mask.to(self._model.device)
            width = mask.shape[1]
            old, weighted = old_log_probs[part, :width], weighted_advantages[part, :width]
            # Rollouts of advantage 0 rarely have a slope: they are scored without a graph, or again below.
            silent = ~weighted.any(dim=1)
            silent &= ~silent.all() & (not self._method.has_loss_terms)
            loud_tokens, silent_tokens = mask & ~silent[:, None], mask & silent[:, None]
            loud, loud_entropies = self._score(batch, ~silent)
            log_probs = torch.zeros_like(old).masked_scatter_(loud_tokens, loud.detach())
            if silent.any():
                with torch.no_grad():
                    log_probs.masked_scatter_(silent_tokens, self._score(batch, silent)[0])
            leaves = [log_probs.requires_grad_()]
            if loud_entropies is not None:
                leaves.append(unpack(loud_entropies.detach(), loud_tokens).requires_grad_())
            token_loss, metrics = self._method.token_loss(
                Tokens(
                    log_probs,
                    old,
                    weighted,
                    mask,
                    group_ids[part],
                    generator,
                    given_entropies=leaves[-1] if len(leaves) > 1 else None,
                    **others.of(part, width),
                )
            )
            self.log_probs[part, :width] = log_probs.detach()
            if self.observer is not None:
                self.slopes[part, :width] = torch.autograd.grad(token_loss.sum(), log_probs, retain_graph=True)[0]
            loss = self._method.aggregation(token_loss, mask, normaliser, group_ids[part])
            slopes, *of_entropies = torch.autograd.grad(loss, leaves)
            # A sum, because a backward pass from anything but a scalar imports half a second of torch's compiler.
            surrogate = (loud * slopes[loud_tokens]).sum()
            if loud_entropies is not None:
                surrogate = surrogate + (loud_entropies * of_entropies[0][loud_tokens]).sum()
            (surrogate * scale).backward()
            if slopes[silent_tokens].any():  # as where a loss has terms without advantages
                (self._score(batch, silent)[0] * slopes[silent_tokens] * scale).sum().backward()
            totals["loss"] += loss.item()
            for name, values in metrics.items():
                mean = float(values.detach()[mask].sum()) / max(1, normaliser.tokens)
                totals[name] = totals.get(name, 0.0) + mean
        return totals

    def _score(self, batch: TokenBatch, chosen: Tensor) -> tuple[Tensor, Tensor | None]:
        """The log-probabilities of the response tokens of the rollouts at ``chosen`` [b] bool, packed; and entropies.

        Entropies, which a method with a bonus for them has, carry a gradient too.
        """
        rollouts, temperature = batch.select(chosen.nonzero()[:, 0]), self._training.temperature
        if self._method.entropy_bonus is None:
            return token_log_probs(self._model, rollouts, temperature), None
        return token_scores(self._model, rollouts, temperature)
