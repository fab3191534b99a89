"""A method: its components, composed by name from a catalogue entry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evals.core.errors import InvalidInput
from evals.core.random import generator_for, random_projection
from rlvr.methods.advantages import Advantage, RewardShaping, TextShaping
from rlvr.methods.aggregation import Aggregation, AnyAggregation
from rlvr.methods.assignments import Assignment
from rlvr.methods.components import AGGREGATION, KINDS, component_of, composition
from rlvr.methods.loss_terms import Correction, EntropyBonus, LossTerm, RewardTerm
from rlvr.methods.losses.base import PolicyLoss, Tokens
from rlvr.methods.selections import BatchSelection
from rlvr.methods.token_weights.token_rules import TokenWeights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlvr.methods.rollout_batch import RolloutBatch


@dataclass(frozen=True)
class Method:
    """The components of one method, with their hyper-parameters."""

    advantage: Advantage  # rewards to advantages
    token_weights: TokenWeights | None  # weights on the advantages; None for one everywhere
    loss: PolicyLoss
    aggregation: AnyAggregation  # token losses to the loss of a mini-batch
    assignment: Assignment  # rollouts to optimizer mini-batches
    selection: BatchSelection | None  # the rollouts that make up the batch; None for all that were sampled
    reward_shaping: RewardShaping | None = None  # a change of the rewards before they become advantages
    correction: Correction | None = None  # for a sampler that is not the policy before the update
    kl: LossTerm | RewardTerm | None = None  # the divergence from a reference policy
    entropy_bonus: EntropyBonus | None = None

    @property
    def needs_hidden_states(self) -> bool:
        """True if the engine has to keep the inputs of the language-model head."""
        return self.token_weights is not None and self.token_weights.needs_hidden_states

    @property
    def sketch_dimensions(self) -> int | None:
        """The dimensions that the engine has to project hidden states to; None for no projection."""
        return None if self.token_weights is None else self.token_weights.sketch_dimensions

    def sketched(self, hidden_states: Tensor, seed: int) -> Tensor:
        """Hidden states [n, D], or their random projection [n, r], the same one throughout the run of this seed."""
        if self.sketch_dimensions is None:
            return hidden_states
        generator = generator_for("sketch", seed)
        matrix = random_projection(hidden_states.shape[1], self.sketch_dimensions, generator)
        return hidden_states.float() @ matrix.to(hidden_states.device)

    @property
    def has_loss_terms(self) -> bool:
        """True if rollouts without an advantage have a gradient too."""
        return isinstance(self.kl, LossTerm) or self.entropy_bonus is not None

    def assign(
        self, rewards: Tensor, group_ids: Tensor, lengths: Tensor, updates: int, seed: int, step: int
    ) -> list[Tensor]:
        """Rollout indices of each mini-batch of a rollout batch [B]; ``step`` counts from 0."""
        return self.assignment(rewards, group_ids, lengths, updates, generator_for("mini_batches", seed, step))

    def select(self, rewards: Tensor, group_ids: Tensor, size: int, rounds: int, seed: int, step: int) -> Tensor | None:
        """Choose ``size`` of the rollouts [B] that so many rounds of a step, from 0, sampled: their indices.

        None to sample more.
        """
        assert self.selection is not None
        generator = generator_for("selection", seed, step, rounds)
        return self.selection(rewards, group_ids, size, self.assignment.keeps_groups, rounds, generator)

    def advantages(
        self,
        rewards: Tensor,
        group_ids: Tensor,
        lengths: Tensor,
        longest: int,
        counted: Tensor | None = None,
        penalties: Tensor | None = None,
        generator: torch.Generator | None = None,
        texts: Sequence[str] | None = None,
    ) -> Tensor:
        """Advantages [B] of rewards [B], shaped if the method says so; ``longest`` is the length limit in tokens.

        Rollouts that are not ``counted`` [B] bool have advantage 0, and no part in the others' and in what a shaping
        makes of these; None counts all.
        ``penalties`` [B] of a :class:`RewardTerm` are taken from the rewards first. ``generator`` is that of the
        step's rewards, for a shaping that draws them; ``texts`` [B] are the responses, for one that reads them.
        """
        if counted is not None and not bool(counted.all()):
            advantages = rewards.new_zeros(len(rewards))
            if bool(counted.any()):
                left = None if penalties is None else penalties[counted]
                read = None if texts is None else [texts[row] for row in counted.nonzero()[:, 0].tolist()]
                of_counted = rewards[counted], group_ids[counted], lengths[counted], longest, None, left, generator
                advantages[counted] = self.advantages(*of_counted, read)
            return advantages
        shaped = rewards if penalties is None else rewards - penalties.to(rewards)
        if isinstance(self.reward_shaping, TextShaping) and texts is not None:
            shaped = self.reward_shaping.of_texts(shaped, group_ids, texts)
        elif self.reward_shaping is not None:
            shaped = self.reward_shaping(shaped, lengths, longest, generator)
        return self.advantage(shaped, group_ids, lengths)

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Compute weights [B, T] of the tokens, one everywhere without a weighting, and its metrics.

        A batch without one of the sides has no statistic of it, and no such metric.
        """
        if self.token_weights is None:
            return batch.response_mask.float(), {}
        weights, metrics = self.token_weights(batch)
        return weights, {name: value for name, value in metrics.items() if not math.isnan(value)}

    def token_loss(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the token losses [B, T] of everything that the method has in its loss, and metrics [B, T]."""
        anchored = tokens if self.correction is None else self.correction.anchored(tokens)
        values, metrics = self.loss.of(anchored, self.aggregation)
        if self.correction is not None:
            weights, of_correction = self.correction(tokens)
            values, metrics = values * weights, metrics | of_correction
        if isinstance(self.kl, LossTerm):
            assert tokens.given_reference_log_probs is not None, "the engine gives the reference's log-probabilities"
            divergences = self.kl.of(anchored, tokens.given_reference_log_probs)
            values, metrics = values + self.kl.coefficient * divergences, metrics | {"reference_kl": divergences}
        if tokens.given_entropies is not None:
            values = values - tokens.entropy_coefficient * tokens.given_entropies.masked_fill(~tokens.mask, 0.0)
        return values, metrics


def compose(resolved: Mapping[str, Any], source: str = "method", longest: int | None = None) -> Method:
    """Build the method that a resolved catalogue entry describes; ``source`` names the entry in messages.

    ``longest`` is the training's longest response in tokens, which a sum over tokens is divided by if its entry has no
    constant of its own (Dr. GRPO).

    The entry is ``{"reward_shaping": component or None, "advantage": component, "token_weights": component or None,
    "loss": component, "correction", "kl", "entropy_bonus": component or None, "batching": {"assignment": component,
    "selection": component or None}}``, each component ``{"name": ..., hyper-parameters ...}``; the loss also says the
    aggregation, a mode or a component in a file. Optional components and hyper-parameters may be absent; keys that
    describe the entry are ignored.
    """
    known = composition()
    known.parse({key: value for key, value in resolved.items() if key in known.model_fields}, source)
    parts = {**resolved, **resolved["batching"]}
    of_kind = {kind: dict(parts.get(kind) or {}) for kind in KINDS}
    loss = of_kind["loss"]
    of_loss: Any = component_of("loss", loss)
    mode: Any = loss.pop("aggregation", of_loss.default_aggregation)
    constant = loss.pop("aggregation_constant", None)
    if mode == "seq-mean-token-sum-norm" and constant is None:
        if longest is None:
            accepted = "a number of tokens where no training says its longest response"
            raise InvalidInput(source, "loss.aggregation_constant", "is null", accepted)
        constant = float(longest)
    aggregation = _build(AGGREGATION, mode) if isinstance(mode, Mapping) else Aggregation(mode, constant)
    method = Method(aggregation=aggregation, **{kind: _build(kind, part) for kind, part in of_kind.items()})
    shaping = method.reward_shaping
    if isinstance(method.kl, RewardTerm) and shaping is not None and shaping.replaces_rewards:
        found = f"is {shaping.name}, which replaces the rewards that kl: reward_term was taken from"
        raise InvalidInput(source, "reward_shaping", found, "overlong, or another place of kl")
    return method


def _build(kind: str, part: Mapping[str, Any]) -> Any:
    """Make the component that a part of an entry describes; None of an empty one."""
    if not part:
        return None
    declared: Any = component_of(kind, part)
    return declared(**{key: value for key, value in part.items() if key not in ("file", "name")})
