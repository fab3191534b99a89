"""One step of a run, from top to bottom: sample, grade, advantages, token weights, and the optimizer steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evals.core.random import generator_for
from evals.core.run_spec import LocalRun
from evals.core.training_settings import LocalTraining
from evals.grading import GradingPool, Verdict
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.policy import (
    Policy,
    TokenBatch,
    response_states,
    score_in_chunks,
    token_log_probs,
    token_scores,
    unpack,
)
from rlvr.engines.local.rollout import Rollouts
from rlvr.engines.local.run import RunInProgress, StepClock, peak_memory
from rlvr.engines.local.sampler_dose import DosedDraw
from rlvr.engines.unjudged import count_unjudged, require_judged, require_some, training_rewards
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.assignments import mini_batch_ids
from rlvr.methods.loss_terms import RewardTerm
from rlvr.methods.losses.base import Tokens
from rlvr.methods.method import Method
from rlvr.methods.rollout_batch import RolloutBatch, rollout_metrics, sampler_metrics


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


@dataclass(frozen=True)
class PreparedStep:
    """A step before its optimizer steps."""

    rollouts: Rollouts  # those that are trained on; none of them is left out
    problems: list[str]  # id of each rollout's problem
    rewards: Tensor  # [B]
    batch: RolloutBatch  # what the token weights were computed from
    weights: Tensor  # [B, T], of the advantages
    mini_batches: list[Tensor]  # rollout indices of each optimizer step
    metrics: dict[str, float]  # of everything that was sampled, what was not selected included
    weight_metrics: dict[str, float]
    clock: StepClock
    others: OtherPolicies


class Learner(RunInProgress):
    """One run in progress, step by step."""

    def __init__(self, run: LocalRun, device: str, gradient_checkpointing: bool = False) -> None:
        super().__init__(run, device, gradient_checkpointing)
        self.updater = Updater(self.model, self.method, run.training, run.seed)
        self.keep: Callable[[PreparedStep], None] = lambda prepared: None
        """Called with every step after its update."""

    def step(self, pool: GradingPool) -> dict[str, float]:
        """One rollout batch and its optimizer steps; returns the step's metrics."""
        prepared = self.prepare(pool)
        metrics = self.update(prepared)
        self.keep(prepared)
        return metrics

    def prepare(self, pool: GradingPool) -> PreparedStep:
        """Sample a rollout batch and weigh its tokens: everything of a step that comes before its optimizer steps."""
        run, method, position, clock = self.run, self.method, self.position, StepClock(self.model.device)
        training, seed, first_prompt = run.training, run.seed, position.prompts_used
        rollouts, rewards, counted, advantages, sampled_metrics = self._sample(pool, clock)
        so_far = [*position.metrics, sampled_metrics]
        require_judged(run.run, so_far, training.samples_per_prompt, training.unjudged_limit)
        mini_batches = method.assign(
            rewards, rollouts.group_ids, rollouts.lengths, training.updates_per_step, seed, position.step
        )
        if not bool(counted.all()):  # from here on what is left out is in no mean and no loss
            rows, place = counted.nonzero()[:, 0], counted.cumsum(0) - 1
            rollouts, rewards, advantages = rollouts.select(rows), rewards[rows], advantages[rows]
            mini_batches = [place[part[counted[part]]] for part in mini_batches if bool(counted[part].any())]
        mask = rollouts.tokens.response_mask.to(self.model.device)
        width = mask.shape[1]
        drawn, entropies, hidden_states = rollouts.log_probs[:, :width], rollouts.entropies[:, :width], None
        log_probs = drawn
        with clock.time("log_probs"):
            if method.needs_hidden_states or self._scored_by_trainer:
                *scores, hidden_states = self._score(rollouts, mask)
            if self._scored_by_trainer:
                log_probs, entropies = scores
        batch = RolloutBatch(
            advantages=advantages.to(mask.device),
            old_log_probs=log_probs,
            entropies=entropies,
            response_mask=mask,
            mini_batch_ids=mini_batch_ids(mini_batches, len(advantages)).to(mask.device),
            group_ids=rollouts.group_ids.to(mask.device),
            token_ids=rollouts.tokens.response_ids.to(mask.device),
            temperature=training.temperature,
            generator=generator_for("token_weights", seed, position.step),
            first_metrics=position.metrics[0] if position.metrics else {},
            head_weight=self.model.head_weight.detach() if method.needs_hidden_states else None,
            hidden_states=hidden_states,
        )
        with clock.time("token_weights"):
            weights, weight_metrics = method.weigh(batch)
        sampler = drawn.to(mask.device) if self._scored_by_trainer else None
        if sampler is not None:
            of_sampler = sampler_metrics(log_probs[mask], sampler[mask], rollouts.lengths, weights[mask])
            if self._vllm is not None:
                self._vllm.check(of_sampler["rollout_kl"])
            sampled_metrics |= of_sampler
        passes = position.prompts_used / len(self.order.problems)
        metrics = {**sampled_metrics, "entropy": float(entropies[mask].mean()), "training_passes": passes}
        if self._is_cut:
            metrics["entropy_drawn"] = float(rollouts.drawn_entropies[:, :width][mask].mean())
        coefficient = 0.0
        if method.entropy_bonus is not None:
            before = position.metrics[-1] if position.metrics else {}
            coefficient, of_bonus = method.entropy_bonus.coefficient_at(metrics["entropy"], before)
            metrics |= of_bonus
        by_reference = None
        if self._reference is not None and self._scores_by_reference:
            with clock.time("reference"):
                by_reference = unpack(self._log_probs_by(self._reference, rollouts.tokens), mask)
        others = OtherPolicies(sampler, by_reference, coefficient)
        # Groups are numbered in the order in which the run takes prompts.
        taken = self.order.take(first_prompt, position.prompts_used - first_prompt)
        problems = [str(taken[group]["id"]) for group in rollouts.group_ids.tolist()]
        return PreparedStep(
            rollouts, problems, rewards, batch, weights, mini_batches, metrics, weight_metrics, clock, others
        )

    def _sample(self, pool: GradingPool, clock: StepClock) -> tuple[Rollouts, Tensor, Tensor, Tensor, dict[str, float]]:
        """Sample prompts, and more of them for as long as the method's selection asks for more.

        Returns:
            Rollouts to train on, with their rewards [B], which of them count [B], and their advantages [B]; metrics of
            everything that was sampled.
        """
        training, position, method = self.run.training, self.position, self.method
        sampler, rollout_sampler = self._sampler_of_policy(), self._sampler
        if self._dosed is not None and training.sampler_dose is not None:
            sampler = self._dosed.sampler(self.model)
            rollout_sampler = replace(rollout_sampler, draw=partial(DosedDraw, dose=training.sampler_dose))
        parts: list[Rollouts] = []
        verdicts: list[Verdict] = []
        penalty_parts: list[Tensor] = []
        while True:
            with clock.time("rollout"):
                problems = self.order.take(position.prompts_used, training.prompts_per_step)
                stream, first_group = f"rollout/{self.run.seed}/{position.step}", len(parts) * training.prompts_per_step
                part = rollout_sampler.roll_out(sampler, problems, stream, first_group)
            position.prompts_used += training.prompts_per_step
            with clock.time("reward"):
                verdicts += part.verdicts(pool)
            if isinstance(method.kl, RewardTerm):
                with clock.time("reference"):
                    penalty_parts.append(self._penalties(method.kl, part))
            parts.append(part)
            rollouts = Rollouts.join(parts)
            groups, lengths, truncated = rollouts.group_ids, rollouts.lengths, rollouts.truncated
            rewards, counted = training_rewards(verdicts, groups, training.unjudged)
            # Advantages are of whole groups, hence computed before anything is dropped.
            penalties = torch.cat(penalty_parts) if penalty_parts else None
            longest = training.max_new_tokens
            generator = generator_for("rewards", self.run.seed, position.step)
            of_rollouts, texts = (rewards, groups, lengths, longest), [case.prediction for case in rollouts.cases]
            advantages = method.advantages(*of_rollouts, counted, penalties, generator, texts)
            unjudged = count_unjudged(verdict.reason for verdict in verdicts)
            kept = None
            if method.selection is not None:
                size, rounds = training.rollouts_per_step, len(parts)
                kept = method.select(rewards, groups, size, rounds, self.run.seed, position.step)
                if kept is None:
                    continue
            require_some(self.run.run, position.step + 1, counted if kept is None else counted[kept])
            metrics = rollout_metrics(rewards, groups, lengths, truncated, counted, kept) | unjudged
            if kept is None:
                return rollouts, rewards, counted, advantages, metrics
            if self._vllm is None:
                tokens = int(lengths[counted].sum())
                metrics["entropy_sampled"] = float(rollouts.entropies[counted].double().sum()) / tokens
            return rollouts.select(kept), rewards[kept], counted[kept], advantages[kept], metrics

    def _penalties(self, term: RewardTerm, part: Rollouts) -> Tensor:
        """What the divergence from the reference policy takes from each reward [B] of sampled rollouts."""
        assert self._reference is not None
        mask = part.tokens.response_mask
        by_reference, by_policy = self._log_probs_by(self._reference, part.tokens), self._log_probs_by_policy(part)
        return term.penalties(unpack(by_policy.cpu(), mask), unpack(by_reference.cpu(), mask), mask)

    @torch.no_grad()
    def _score(self, rollouts: Rollouts, mask: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probabilities and entropies [B, T] by the trainer's passes; the hidden states [N, D] if they are needed.

        Hidden states, or their sketch, are in the type of the head. The own sampler has the other numbers in float32.
        """
        method, tokens, training = self.method, rollouts.tokens, self.run.training
        size, most_tokens = training.micro_batch_size, training.scored_tokens
        kept: Tensor | None = None
        filled = 0
        if method.needs_hidden_states:
            width, count = method.sketch_dimensions or self.model.head_weight.shape[1], int(rollouts.lengths.sum())
            kept = torch.empty(count, width, dtype=self.model.head_dtype, device=mask.device)

        def keep(states: Tensor) -> None:
            nonlocal filled
            if kept is not None:
                kept[filled : filled + len(states)] = method.sketched(states, self.run.seed)
                filled += len(states)

        if not self._scored_by_trainer:
            for chunk in tokens.passes(size, most_tokens, self.model.padded):
                keep(response_states(self.model, tokens.select(chunk))[0])
            scores = rollouts.log_probs, rollouts.entropies
        else:
            packed = score_in_chunks(self.model, tokens, training.temperature, size, keep, most_tokens)
            scores = unpack(packed[0], mask), unpack(packed[1], mask)
        return *scores, kept

    def update(self, prepared: PreparedStep) -> dict[str, float]:
        """The optimizer steps on a prepared rollout batch; returns the step's metrics."""
        position, batch, mini_batches = self.position, prepared.batch, prepared.mini_batches
        with prepared.clock.time("update"):
            update_metrics = self.updater.update(
                prepared.rollouts.tokens,
                batch.old_log_probs,
                batch.advantages[:, None] * prepared.weights,
                batch.group_ids,
                mini_batches,
                position.step,
                position.updates,
                prepared.others,
            )
        if not self._scored_by_trainer:
            update_metrics |= self._against_sampler(prepared)
        position.step += 1
        position.updates += len(mini_batches)
        return {
            "step": position.step,
            **prepared.metrics,
            **update_metrics,
            **prepared.weight_metrics,
            "optimizer_steps": len(mini_batches),
            **prepared.clock.metrics(),
            "peak_memory_bytes": peak_memory(self.model.device),
        }

    def _against_sampler(self, prepared: PreparedStep) -> dict[str, float]:
        """Compare the sampler's numbers, with which a step trains, with those of the first mini-batch's pass."""
        rows = prepared.mini_batches[0]
        mask = prepared.batch.response_mask[rows]
        of_tokens = self.updater.log_probs, prepared.batch.old_log_probs, prepared.weights
        scored, drawn, weights = (values[rows][mask] for values in of_tokens)
        return sampler_metrics(scored, drawn, mask.sum(dim=1), weights)


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
