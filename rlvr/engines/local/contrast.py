"""The contrast of methods: the angles between what two of them make of the same rollout batch.

Two things are compared. A gradient is that of a method's loss over all parameters (over the adapters alone, where a
training has them), on the last mini-batch of a step: there the policy has moved away from the one that sampled, so that
clipping acts. Slopes are the derivatives of the loss with respect to the tokens' log-probabilities, and of an entropy
bonus with respect to the entropies at them, each under the policy of the token's own optimizer step; they cost nothing,
and know nothing of how tokens share parameters. All of it only looks: the training stays the same bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from evals.core.random import generator_for
from evals.core.run_spec import LocalRun
from evals.core.training_settings import LocalTraining
from rlvr.engines.local.adamw import scaled_gradients
from rlvr.engines.local.learner import Learner, PreparedStep
from rlvr.engines.local.policy import Policy, TokenBatch, score_in_chunks, token_log_probs, token_scores
from rlvr.engines.local.run import time_on
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.loss_terms import RewardTerm
from rlvr.methods.losses.base import Tokens
from rlvr.methods.method import Method, compose
from rlvr.methods.token_weights.token_rules import RandomLambda

OWN = ""
"""The name of a run's own method among those that it is compared with."""
_REFERENCE, _FLOOR = "reference", "floor"
_RANDOM = RandomLambda()
"""The weights without information that the floor is measured with: DelTA's published range, [0.8, 1.2]."""


def degrees_between(a: Tensor, b: Tensor) -> float:
    """The angle between two vectors of any one shape, in degrees; NaN if one of them is 0."""
    a, b = a.double().flatten(), b.double().flatten()
    lengths = float(a.norm()) * float(b.norm())
    return math.degrees(math.acos(max(-1.0, min(1.0, float(a @ b) / lengths)))) if lengths else math.nan


@dataclass(frozen=True)
class Viewed:
    """A rollout batch as a method sees it."""

    method: Method
    weighted_advantages: Tensor  # [B, T], the advantages times token weights that it gives
    entropy_coefficient: float  # that of its entropy bonus; 0 without one

    @classmethod
    def by(cls, method: Method, learner: Learner, prepared: PreparedStep) -> Viewed:
        """Weigh a step's rollouts, before its optimizer steps, as ``method`` would."""
        rollouts, batch, training, trained_by = prepared.rollouts, prepared.batch, learner.run.training, learner.method
        advantages = batch.advantages  # of whole groups, of which a selection may have left rollouts out since
        shaping = [(one.reward_shaping, one.advantage, isinstance(one.kl, RewardTerm)) for one in (method, trained_by)]
        if shaping[0] != shaping[1] or (isinstance(method.kl, RewardTerm) and method.kl != trained_by.kl):
            penalties = None
            if isinstance(method.kl, RewardTerm):
                assert prepared.others.reference_log_probs is not None
                by_reference = prepared.others.reference_log_probs
                penalties = method.kl.penalties(batch.old_log_probs, by_reference, batch.response_mask).cpu()
            longest = training.max_new_tokens
            generator = generator_for("rewards", learner.run.seed, learner.position.step)
            of_rollouts = (prepared.rewards, rollouts.group_ids, rollouts.lengths, longest)
            texts = [case.prediction for case in rollouts.cases]
            advantages = method.advantages(*of_rollouts, None, penalties, generator, texts)
            advantages = advantages.to(batch.response_mask.device)
        coefficient = _entropy_coefficient(method, learner, prepared)
        seed, step = learner.run.seed, learner.position.step
        batch = replace(batch, advantages=advantages, generator=generator_for("token_weights", seed, step))
        if method.needs_hidden_states and not shares_hidden_states(method, trained_by):
            parts: list[Tensor] = []
            size, most_tokens = training.micro_batch_size, training.scored_tokens
            score_in_chunks(learner.model, rollouts.tokens, training.temperature, size, parts.append, most_tokens)
            rows = torch.cat([method.sketched(part, seed) for part in parts])
            batch = replace(batch, head_weight=learner.model.head_weight.detach(), hidden_states=rows)
        return cls(method, advantages[:, None] * method.weigh(batch)[0], coefficient)

    def slopes(self, rows: Tensor, log_probs: Tensor, prepared: PreparedStep, generator: torch.Generator) -> Tensor:
        """The derivatives [1, b, t] of the loss of the mini-batch ``rows`` [b] by its ``log_probs`` [b, t].

        With an entropy bonus [2, b, t], the second by the entropies: the loss is linear in them, so their values play
        no part. ``generator`` is the loss's.
        """
        batch, has_bonus = prepared.batch, self.method.entropy_bonus is not None
        leaves = [log_probs.detach().requires_grad_(), *([torch.zeros_like(log_probs).requires_grad_()] * has_bonus)]
        width, groups = log_probs.shape[1], batch.group_ids[rows]
        mask = batch.response_mask[rows, :width]
        tokens = Tokens(
            leaves[0],
            batch.old_log_probs[rows, :width],
            self.weighted_advantages[rows, :width],
            mask,
            groups,
            generator,
            given_entropies=leaves[1] if has_bonus else None,
            **{**prepared.others.of(rows, width), "entropy_coefficient": self.entropy_coefficient},
        )
        token_loss, _ = self.method.token_loss(tokens)
        loss = self.method.aggregation(token_loss, mask, Normaliser.of(mask, groups), groups)
        return torch.stack(torch.autograd.grad(loss, leaves))


def _entropy_coefficient(method: Method, learner: Learner, prepared: PreparedStep) -> float:
    """The coefficient of a method's entropy bonus at a step, had it controlled the entropy of the training so far."""
    coefficient, before = 0.0, dict[str, float]()
    if method.entropy_bonus is not None:
        for metrics in (*learner.position.metrics, prepared.metrics):
            coefficient, of_bonus = method.entropy_bonus.coefficient_at(metrics["entropy"], before)
            before = {"entropy": metrics["entropy"], **of_bonus}
    return coefficient


def shares_hidden_states(method: Method, trained_by: Method) -> bool:
    """Return whether the rollout batch of a run by another has what ``method`` computes its token weights from."""
    if not method.needs_hidden_states:
        return True
    return trained_by.needs_hidden_states and trained_by.sketch_dimensions == method.sketch_dimensions


def gradients(model: Policy, tokens: TokenBatch, training: LocalTraining, slopes: Sequence[Tensor]) -> list[Tensor]:
    """For each of ``slopes`` [1 or 2, b, t] the gradient [P] on the CPU of the loss that has them, in micro-batches.

    One forward pass serves all: the gradient is the sum over tokens of slope times gradient of the log-probability, and
    of the second slope times gradient of the entropy.
    """
    has_bonus = any(len(slope) > 1 for slope in slopes)
    parameters = list(model.parameters())

    def backward(scale: float) -> tuple[list[Tensor], list[Tensor]]:
        sums = [torch.zeros(sum(weight.numel() for weight in parameters)) for _ in slopes]
        for part in tokens.passes(training.micro_batch_size, training.micro_batch_tokens, model.padded):
            batch = tokens.select(part)
            mask = batch.response_mask.to(model.device)
            if has_bonus:
                packed = torch.stack(token_scores(model, batch, training.temperature))
            else:
                packed = token_log_probs(model, batch, training.temperature)[None]
            for number, slope in enumerate(slopes, start=1):
                of_tokens = slope[:, part, : mask.shape[1]][:, mask].to(packed.dtype) * scale
                # A sum, because gradients of anything but a scalar import half a second of torch's compiler.
                loss = (packed[: len(slope)] * of_tokens).sum()
                sums[number - 1] += _flat(torch.autograd.grad(loss, parameters, retain_graph=number < len(slopes)))
        return sums, sums

    return scaled_gradients(backward, model.dtype)[0]


def _flat(parts: Sequence[Tensor]) -> Tensor:
    """All values [P] of a list of tensors, in float32 on the CPU: large models have many."""
    return torch.cat([part.detach().flatten().float().cpu() for part in parts])


def compared_gradients(run: LocalRun) -> int:
    """The number of gradients, one over all parameters each, that a step of ``run`` with gradients keeps."""
    assert run.contrast is not None
    method = compose(run.method, f"method {run.method_name}", run.training.max_new_tokens)
    reference = compose(run.contrast.method, "contrast: method", run.training.max_new_tokens)
    return 1 + (method != reference) + (not _is_control(method, reference))


def _is_control(method: Method, reference: Method) -> bool:
    """Return whether the random weights of the floor are the method's own, of the same random stream."""
    return reference.token_weights is None and method == replace(reference, token_weights=_RANDOM)


@dataclass
class Meter:
    """The observer of one step's updates: slopes of every mini-batch, and gradients of the last one.

    Slopes and gradients are by the methods' names, :data:`OWN` among them.
    """

    learner: Learner
    prepared: PreparedStep
    viewed: Mapping[str, Viewed]  # the methods that are compared with the learner's own, by name
    with_gradients: bool  # computed too: a forward pass, and a backward pass for each method
    slopes: dict[str, Tensor] = field(init=False)  # [1, B, T], [2, B, T] if one has an entropy bonus; 0 at padding
    gradients: dict[str, Tensor] = field(default_factory=dict)  # [P]
    seconds: float = 0.0  # that measuring took

    def __post_init__(self) -> None:
        batch, coefficient = self.prepared.batch, self.prepared.others.entropy_coefficient
        view = Viewed(self.learner.method, batch.advantages[:, None] * self.prepared.weights, coefficient)
        self._all = {OWN: view, **self.viewed}
        kinds = 1 + any(view.method.entropy_bonus is not None for view in self._all.values())
        self.slopes = {name: batch.old_log_probs.new_zeros(kinds, *batch.old_log_probs.shape) for name in self._all}

    def __call__(self, number: int) -> None:
        """Measure the mini-batch ``number``."""
        learner, rows = self.learner, self.prepared.mini_batches[number]
        started = time_on(learner.model.device)
        tokens = self.prepared.rollouts.tokens.select(rows)
        width = tokens.response_mask.shape[1]
        log_probs = learner.updater.log_probs[rows, :width]
        for name, view in self._all.items():
            generator = generator_for("loss", learner.run.seed, learner.position.updates + number)
            slopes = view.slopes(rows, log_probs, self.prepared, generator)
            self.slopes[name][: len(slopes), rows, :width] = slopes
        if self.with_gradients and number + 1 == len(self.prepared.mini_batches):
            # The update has just computed its own gradient; nothing was clipped yet.
            computed = [weight.grad for weight in learner.model.parameters() if weight.grad is not None]
            others = [self.slopes[name][:, rows, :width] for name in self.viewed]
            of_others = gradients(learner.model, tokens, learner.run.training, others)
            self.gradients = {OWN: _flat(computed), **dict(zip(self.viewed, of_others, strict=True))}
        self.seconds += time_on(learner.model.device) - started


class ContrastLearner(Learner):
    """A learner that measures the contrast of its method with the reference method of its ``run.json``."""

    def __init__(self, run: LocalRun, device: str, gradient_checkpointing: bool = False) -> None:
        super().__init__(run, device, gradient_checkpointing)
        assert run.contrast is not None
        self._measured = run.contrast
        self._compared = compose(run.contrast.method, "contrast: method", run.training.max_new_tokens)
        if self._compared.kl is not None:
            self.load_reference()
        self._is_control = _is_control(self.method, self._compared)  # which is then the floor

    def update(self, prepared: PreparedStep) -> dict[str, float]:
        """The optimizer steps, and their metrics with the angles in degrees.

        ``contrast_slope_degrees`` is the angle between the slopes. At the steps of the measurement there are also
        ``contrast_degrees``, the angle between the gradients, and ``contrast_floor_degrees``, that between the
        reference method's with and without random token weights. A metric without a value is left out.
        """
        with_gradients = self.position.step + 1 in self._measured.steps
        # Hidden states cost a pass over the whole batch, too much for every step.
        if not with_gradients and not shares_hidden_states(self._compared, self.method):
            return super().update(prepared)
        started = time_on(self.model.device)
        is_reference = self.method == self._compared
        viewed = {} if is_reference else {_REFERENCE: Viewed.by(self._compared, self, prepared)}
        if with_gradients and not self._is_control:
            viewed[_FLOOR] = self._with_random_weights(prepared)
        meter = Meter(self, prepared, viewed, with_gradients)
        before = time_on(self.model.device) - started
        self.updater.observer = meter if viewed else None
        try:
            metrics = super().update(prepared)
        finally:
            self.updater.observer = None
        metrics["seconds_update"] -= meter.seconds
        slopes, compared = meter.slopes, meter.gradients
        reference = OWN if is_reference else _REFERENCE
        angles = {"contrast_slope_degrees": 0.0 if is_reference else degrees_between(slopes[OWN], slopes[_REFERENCE])}
        if with_gradients:
            degrees = 0.0 if is_reference else degrees_between(compared[OWN], compared[_REFERENCE])
            floor = degrees if self._is_control else degrees_between(compared[_FLOOR], compared[reference])
            angles |= {"contrast_degrees": degrees, "contrast_floor_degrees": floor}
        known = {name: value for name, value in angles.items() if not math.isnan(value)}
        return {**metrics, **known, "seconds_contrast": before + meter.seconds}

    def _with_random_weights(self, prepared: PreparedStep) -> Viewed:
        """The rollout batch as the reference method sees it, its weights multiplied by random ones."""
        reference = Viewed.by(self._compared, self, prepared)
        generator = generator_for("token_weights", self.run.seed, self.position.step)
        weights, _ = _RANDOM(replace(prepared.batch, generator=generator))
        return replace(reference, weighted_advantages=reference.weighted_advantages * weights)
