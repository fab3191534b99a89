"""What an update would do to the log-probabilities of given tokens: gradients, and forwards after a step.

With ratio 1 every loss here has the gradient -sum_n c_n grad log pi(y_n), c = advantage times weight over the
normaliser, so an update is given by its coefficients c [N].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.diagnostics.moment import Moment
from rlvr.engines.local.policy import TokenBatch, score, score_in_chunks

_ROLLOUTS_AT_ONCE = 64
Gradient = Mapping[str, Tensor]


def score_gradient(model: PreTrainedModel, tokens: TokenBatch, temperature: float, coefficients: Tensor) -> Gradient:
    """Gradient of sum_n c_n log pi(y_n) for ``coefficients`` [N], of every parameter, by rollouts in chunks."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    lengths = torch.tensor([len(response) for response in tokens.responses])
    ends = lengths.cumsum(0)
    for rows in torch.arange(len(lengths)).split(_ROLLOUTS_AT_ONCE):
        part = coefficients[int(ends[rows[0]] - lengths[rows[0]]) : int(ends[rows[-1]])]
        if not bool(part.any()):
            continue
        log_probs = score(model, tokens.select(rows), temperature).log_probs
        weighted = (part.to(log_probs) * log_probs).sum()
        for name, value in zip(total, torch.autograd.grad(weighted, list(parameters.values())), strict=True):
            total[name] += value
    return total


def norm(gradient: Gradient) -> float:
    """Euclidean length."""
    return float(torch.stack([value.double().square().sum() for value in gradient.values()]).sum().sqrt())


def inner(first: Gradient, second: Gradient) -> float:
    """Inner product."""
    return float(torch.stack([(first[name].double() * second[name].double()).sum() for name in first]).sum())


@contextmanager
def stepped(model: PreTrainedModel, gradient: Gradient, step_size: float) -> Iterator[PreTrainedModel]:
    """The model after one step of plain gradient ascent; its parameters are put back, to the bit, afterwards."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    try:
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.add_(gradient[name], alpha=step_size)
        yield model
    finally:
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(before[name])


def log_probs_of(model: PreTrainedModel, tokens: TokenBatch, temperature: float) -> Tensor:
    """[N] float64 log-probabilities of the response tokens."""
    return score_in_chunks(model, tokens, temperature, _ROLLOUTS_AT_ONCE)[0].double()


@dataclass(frozen=True)
class HeadView:
    """N tokens as the language-model head sees them.

    Attributes:
        hidden: [N, D] float64 inputs of the head.
        weight: [V, D] float64 weight of the head.
        token_ids: [N] int64.
        temperature: that logits are divided by.
    """

    hidden: Tensor
    weight: Tensor
    token_ids: Tensor
    temperature: float

    @property
    def probabilities(self) -> Tensor:
        """[N, V]."""
        return (self.hidden @ self.weight.T / self.temperature).softmax(dim=-1)

    def log_probs(self, weight: Tensor | None = None) -> Tensor:
        """[N] log-probabilities of the tokens, with another head ``weight`` [V, D] if given."""
        logits = self.hidden @ (self.weight if weight is None else weight).T / self.temperature
        return logits.log_softmax(dim=-1).gather(1, self.token_ids[:, None])[:, 0]

    def gradient(self, coefficients: Tensor) -> Tensor:
        """[V, D] gradient of sum_n c_n log pi(y_n) with respect to the head alone: sum_n c_n (e_y - p) h' / T.

        An embedding tied to the head is another parameter here: only the head's own part of its gradient counts.
        """
        errors = -self.probabilities * coefficients[:, None]
        errors[torch.arange(len(coefficients)), self.token_ids] += coefficients
        return errors.T @ self.hidden / self.temperature


def head_view(moment: Moment) -> HeadView:
    """The moment's tokens as its head sees them."""
    parts: list[Tensor] = []
    temperature = moment.run.training.temperature
    score_in_chunks(moment.model, moment.tokens, temperature, _ROLLOUTS_AT_ONCE, parts.append)
    weight = moment.model.get_output_embeddings().weight.detach().double()
    return HeadView(torch.cat(parts).double(), weight, moment.token_ids, temperature)
