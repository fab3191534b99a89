"""A sampler that differs from the trainer by a dose: rounded weights, an older policy, a cut tail, noisy logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from evals.core.random import generator_for
from evals.core.sampling import SamplingParameters
from evals.core.training_settings import SamplerDose
from evals.generation.sampler import Sampler, draw_tokens
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import ScoredDraw

_STATE = "sampler."


def rounded(weights: Tensor, precision: str) -> Tensor:
    """Round weights as an inference engine stores them; integers share a scale in each row of a matrix."""
    if precision == "bfloat16":
        return weights.bfloat16().to(weights.dtype)
    if weights.dim() < 2:
        return weights
    largest = 2.0 ** (int(precision.removeprefix("int")) - 1) - 1
    scale = weights.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny) / largest
    return (weights / scale).round() * scale


class DosedDraw(ScoredDraw):
    """Draws from the dosed distribution, and keeps what that says of the tokens."""

    def __init__(
        self,
        sampling: SamplingParameters,
        identities: Sequence[str],
        length: int,
        device: torch.device,
        dose: SamplerDose,
    ) -> None:
        cut = sampling.model_copy(update={"top_p": min(sampling.top_p, dose.top_p)})
        super().__init__(cut, identities, length, device)
        self._identities, self._dose = identities, dose

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        rows = logits[0][row_of].float()
        if self._dose.noise:
            draws = [
                torch.randn(rows.shape[1], generator=generator_for("sampler_noise", self._identities[row], step))
                for row in running.tolist()
            ]
            rows = rows + self._dose.noise * torch.stack(draws).to(rows.device)
        drawn = draw_tokens(rows, self._uniforms[running, step], self._sampling)
        log_distribution = (rows / self._temperature).log_softmax(dim=-1)
        log_probs = log_distribution.gather(-1, drawn[:, None])[:, 0]
        if self._dose.top_p < 1:
            descending = log_distribution.exp().sort(dim=-1, descending=True).values
            before = descending.cumsum(dim=-1) - descending
            log_probs = log_probs - (descending * (before < self._dose.top_p)).sum(dim=-1).log()
        self.log_probs[running, step] = log_probs
        self.keep_entropies(log_distribution, torch.arange(len(rows), device=rows.device), running, step)
        return drawn


class DosedSampler:
    """The policy that samples: a copy of the trainer's, rounded, of so many rollout steps ago."""

    def __init__(self, dose: SamplerDose, policy: Policy) -> None:
        """Take over ``policy``, another than the trainer's, whose weights are replaced at every step."""
        self._dose, self._policy = dose, policy
        self._past: list[dict[str, Tensor]] = []  # weights at the beginning of the last steps, the oldest first

    def sampler(self, model: Policy) -> Sampler:
        """Return the sampler of a rollout step; called once at the beginning of each."""
        self._past.append({name: weights.detach().clone() for name, weights in model.named_parameters()})
        self._past = self._past[-1 - self._dose.stale :]
        with torch.no_grad():
            for name, weights in self._policy.named_parameters():
                past = self._past[0][name]
                weights.copy_(past if self._dose.weights is None else rounded(past, self._dose.weights))
        return self._policy.sampler()

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed training needs: the past policies."""
        return {
            f"{_STATE}{number}.{name}": weights
            for number, past in enumerate(self._past)
            for name, weights in past.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put the past policies of :meth:`state` back."""
        past: dict[int, dict[str, Tensor]] = {}
        for key, weights in tensors.items():
            if key.startswith(_STATE):
                number, name = key.removeprefix(_STATE).split(".", 1)
                past.setdefault(int(number), {})[name] = weights
        self._past = [past[number] for number in sorted(past)]
