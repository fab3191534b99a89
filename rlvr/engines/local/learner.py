"""A training in progress: the model, the optimizer, the position, and the steps that change them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.random import generator_for
from evals.core.run_spec import LocalRun
from evals.generation.chat import end_tokens, ends_in_words
from evals.generation.checkpoint import Checkpoint
from evals.generation.devices import claim_one
from evals.generation.sampler import Sampler
from evals.grading import GradingPool, Verdict
from rlvr.engines.local.clock import StepClock, peak_memory
from rlvr.engines.local.policy import (
    Policy,
    TokenBatch,
    load_policy,
    response_states,
    same_bytes,
    score_in_chunks,
    unpack,
)
from rlvr.engines.local.rollout import PromptOrder, Rollouts, RolloutSampler, encode_problems, sampling_of
from rlvr.engines.local.sampler_dose import DosedDraw, DosedSampler
from rlvr.engines.local.update import OtherPolicies, Updater
from rlvr.engines.local.vllm_rollouts import VllmRollouts
from rlvr.engines.unjudged import count_unjudged, require_judged, require_some, training_rewards
from rlvr.methods.assignments import mini_batch_ids
from rlvr.methods.method import compose
from rlvr.methods.reference_kl import LossTerm, RewardTerm
from rlvr.methods.rollout_batch import RolloutBatch, rollout_kl, rollout_metrics, sampler_metrics
from rlvr.runs.state import State, StateStore, load_training_tensors, training_tensors

_COMPARED = ("reward_mean", "response_length_mean", "entropy", "loss", "grad_norm", "tokens_generated")
_TOLERANCE = 1e-4
"""The largest relative difference of a repeated step's metric; the same number of threads on one machine gives 0."""


@dataclass
class Position:
    """The position of a run. Random numbers are functions of it, so it is all that has to be saved of them."""

    step: int = 0  # rollout steps done
    prompts_used: int = 0  # training problems taken from the run's order
    updates: int = 0  # optimizer steps done
    metrics: list[dict[str, float]] = field(default_factory=list)  # one row per rollout step
    validation: list[dict[str, Any]] = field(default_factory=list)  # one row per score on the validation problems


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


class Learner:
    """One run in progress."""

    def __init__(self, run: LocalRun, device: str, gradient_checkpointing: bool = False) -> None:
        claim_one(device)
        checkpoint, training = Checkpoint(run.base / "checkpoint"), run.training
        self.method = compose(run.method, f"method {run.method_name}", run.training.max_new_tokens)
        self.run = run
        self.position = Position()
        self.tokenizer = checkpoint.tokenizer
        problems = read_jsonl(run.problems / "problems.jsonl", required=("id", "problem", "answer"))
        self.order = PromptOrder(problems, run.seed)
        prompts = encode_problems(checkpoint, run, problems)
        if run.validation is not None:
            self._held_out = read_jsonl(run.validation.problems / "problems.jsonl", ("id", "problem", "answer"))
            prompts |= encode_problems(checkpoint, run, self._held_out)
        self.longest_prompt = max(prompts.values(), key=len)
        self._load = partial(load_policy, checkpoint, device, run.dtype, head_dtype=run.head_dtype)
        self.model = self._load(gradient_checkpointing, training.share_prompts)
        if training.lora is not None:
            from rlvr.engines.local.lora import adapted  # which imports peft and transformers

            self.model = adapted(self.model, checkpoint, training.lora, run.seed)
        ends = end_tokens(checkpoint, run.prompt_form, run.chat_template_kwargs)
        print(f"{run.run}: responses end with {ends_in_words(ends)}", flush=True)
        self._vllm: VllmRollouts | None = None
        if training.sampling_backend == "vllm":
            self._vllm = VllmRollouts(checkpoint, run, device, len(self.longest_prompt), list(ends))
        # In half precision the sampler's numbers, of other shapes, differ from the trainer's by more than a last digit.
        dose = training.sampler_dose
        self._scored_by_trainer = run.dtype != "float32" or self._vllm is not None or dose is not None
        self._dosed = DosedSampler(dose, self._load()) if dose is not None else None
        self._is_cut = self._vllm is None and min(training.top_p, dose.top_p if dose else 1.0) < 1.0
        self._sampler = RolloutSampler(
            self.tokenizer, prompts, training.samples_per_prompt, sampling_of(training), list(ends)
        )
        self.updater = Updater(self.model, self.method, training, run.seed)
        self._reference: Policy | None = None
        self._scores_by_reference = False
        if self.method.kl is not None:
            self.load_reference(for_loss=isinstance(self.method.kl, LossTerm))
        self.keep: Callable[[PreparedStep], None] = lambda prepared: None
        """Called with every step after its update."""

    def load_reference(self, for_loss: bool = True) -> None:
        """Load the reference policy, which the training starts from; with ``for_loss`` it scores what is trained on."""
        if self._reference is None:
            self._reference = self._load()
        self._scores_by_reference |= for_loss

    @property
    def details(self) -> dict[str, Any]:
        """What a manifest says of how the policy was computed."""
        training, device, backend = self.run.training, self.model.device.type, self.model.backend
        betas = [training.adam_beta1, training.adam_beta2]
        return {
            **{"model_computed_by": backend, "sampled_by": self._vllm.name if self._vllm else backend},
            **{"same_bytes": same_bytes(device, self.run.dtype, backend, self._vllm is not None), "device": device},
            "optimizer": {"name": "AdamW", "betas": betas, "epsilon": training.adam_epsilon},
        }

    def _sampler_of_policy(self) -> Sampler:
        """The sampler of the present policy."""
        return self._vllm.sampler(self.model) if self._vllm else self.model.sampler()

    def token_text(self, token: int) -> str:
        """Return the text of one token alone."""
        return str(self.tokenizer.decode([token], skip_special_tokens=False))

    def restore(self, state: State) -> None:
        """Continue from a saved state."""
        load_training_tensors(self.model, self.updater.optimizer, state.tensors)
        if self._dosed is not None:
            self._dosed.restore(state.tensors)
        self.position = Position(state.step, **state.values)

    def save(self, store: StateStore) -> None:
        """Save everything that :meth:`restore` needs."""
        position = self.position
        values = {"prompts_used": position.prompts_used, "updates": position.updates, "metrics": position.metrics}
        if self.run.validation is not None:
            values["validation"] = position.validation
        past = self._dosed.state() if self._dosed is not None else {}
        store.save(position.step, training_tensors(self.model, self.updater.optimizer) | past, values)

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
        weights, weight_metrics = mask.float(), {}
        with clock.time("token_weights"):
            if method.token_weights is not None:
                weights, of_weights = method.token_weights(batch)
                # A batch without one of the sides has no statistic of it.
                weight_metrics = {name: value for name, value in of_weights.items() if not math.isnan(value)}
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

    def _log_probs_by(self, policy: Policy, tokens: TokenBatch) -> Tensor:
        """The log-probabilities [N] of the response tokens under another policy than the current one, or again."""
        training = self.run.training
        size, most_tokens = training.micro_batch_size, training.scored_tokens
        return score_in_chunks(policy, tokens, training.temperature, size, None, most_tokens)[0]

    def _log_probs_by_policy(self, drawn: Rollouts) -> Tensor:
        """The log-probabilities [N] of sampled tokens under the policy: the sampler's where they are the trainer's."""
        if self._scored_by_trainer:
            return self._log_probs_by(self.model, drawn.tokens)
        mask = drawn.tokens.response_mask
        return drawn.log_probs[:, : mask.shape[1]][mask.to(drawn.log_probs.device)]

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

    def validate(self, pool: GradingPool) -> None:
        """Score the present policy on the validation problems, if it is due and not done; no step notices it."""
        settings, step, scores = self.run.validation, self.position.step, self.position.validation
        if settings is None or step % settings.every or (scores and scores[-1]["step"] == step):
            return
        # Of the whole distribution, whatever rollouts are drawn from: scores along trainings can then be compared.
        parameters = self._sampler.parameters.model_copy(update={"top_p": 1.0})
        sampler = replace(self._sampler, samples_per_prompt=settings.samples_per_problem, parameters=parameters)
        rollouts = sampler.roll_out(self._sampler_of_policy(), self._held_out, f"validation/{self.run.seed}/{step}", 0)
        right = torch.tensor([verdict.reward == 1 for verdict in rollouts.verdicts(pool)])
        correct = right.view(len(self._held_out), settings.samples_per_problem).sum(dim=1)
        counts = {"correct_counts": correct.tolist(), "samples_per_problem": settings.samples_per_problem}
        scores.append({"step": step, **counts, "base_kl": self._base_kl(rollouts)})

    def _base_kl(self, drawn: Rollouts) -> float:
        """Estimate KL(policy || base model) in nats a token, from responses that the policy drew."""
        if self.position.updates == 0:
            return 0.0
        # Where both numbers are the trainer's, passes of one shape round alike.
        shared = self.run.training.share_prompts or not self._scored_by_trainer
        by_base = self._log_probs_by(self._reference or self._load(share_prompts=shared), drawn.tokens)
        return rollout_kl(by_base, self._log_probs_by_policy(drawn).to(by_base.device))

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
            advantages = method.advantages(rewards, groups, lengths, longest, counted, penalties, generator)
            unjudged = count_unjudged(verdict.reason for verdict in verdicts)
            kept = None
            if method.selection is not None:
                size, rounds = training.rollouts_per_step, len(parts)
                selection = method.select(rewards, groups, size, rounds, self.run.seed, position.step)
                if selection is None:
                    continue
                kept = selection.indices
            require_some(self.run.run, position.step + 1, counted if kept is None else counted[kept])
            metrics = rollout_metrics(rewards, groups, lengths, truncated, counted, kept) | unjudged
            if kept is None:
                return rollouts, rewards, counted, advantages, metrics
            if self._vllm is None:
                tokens = int(lengths[counted].sum())
                metrics["entropy_sampled"] = float(rollouts.entropies[counted].double().sum()) / tokens
            return rollouts.select(kept), rewards[kept], counted[kept], advantages[kept], metrics


def require_same_step(run: str, repeated: Mapping[str, float], recorded: Mapping[str, float]) -> None:
    """Check that a repeated step has the metrics that the run wrote down."""
    for name in _COMPARED:
        if abs(repeated[name] - recorded[name]) > _TOLERANCE * max(1.0, abs(recorded[name])):
            raise UserError(
                f"{run}: step {repeated['step']:.0f} has {name} {repeated[name]:.6g} when it is repeated and "
                f"{recorded[name]:.6g} in the run's metrics; use the run's number of threads and device, and code of "
                "its versions"
            )
