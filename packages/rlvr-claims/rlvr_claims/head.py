"""Tokens as the language-model head sees them, and the coupling of their updates through it (arXiv 2605.08666).

The gradient of log pi(y_n) with respect to the head W is (e_y - p_n) h_n' / T. The inner product of two of them is
K_jk = <h_j, h_k> kappa_jk / T^2, with kappa_jk = 1[y_j = y_k] - p_j(y_k) - p_k(y_j) + <p_j, p_k>: a step of size eta on
sum_k c_k log pi(y_k) moves token j by eta sum_k c_k K_jk to first order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadView:
    """N tokens as the language-model head sees them."""

    hidden: Tensor  # [N, D] float64 inputs of the head
    weight: Tensor  # [V, D] float64 weight of the head
    token_ids: Tensor  # [N] int64
    temperature: float  # divisor of the logits

    @property
    def probabilities(self) -> Tensor:
        """[N, V]."""
        return (self.hidden @ self.weight.T / self.temperature).softmax(dim=-1)

    def select(self, chosen: Tensor) -> HeadView:
        """Return the view of the tokens ``chosen`` [K]."""
        return HeadView(self.hidden[chosen], self.weight, self.token_ids[chosen], self.temperature)

    def log_probs(self, weight: Tensor | None = None) -> Tensor:
        """Return the tokens' log-probabilities [N], with another head ``weight`` [V, D] if given."""
        logits = self.hidden @ (self.weight if weight is None else weight).T / self.temperature
        return logits.log_softmax(dim=-1).gather(1, self.token_ids[:, None])[:, 0]

    def gradient(self, coefficients: Tensor) -> Tensor:
        """Return the gradient [V, D] of sum_n c_n log pi(y_n) in the head alone: sum_n c_n (e_y - p) h' / T.

        An embedding tied to the head is another parameter here: only the head's own part of its gradient counts.
        """
        errors = -self.probabilities * coefficients[:, None]
        errors[torch.arange(len(coefficients)), self.token_ids] += coefficients
        return errors.T @ self.hidden / self.temperature

    def representation_factor(self, first: Tensor, second: Tensor) -> Tensor:
        """Return <h_j, h_k> / T^2 [J, K] of the tokens ``first`` [J] and ``second`` [K]."""
        return self.hidden[first] @ self.hidden[second].T / self.temperature**2

    def distribution_factor(self, first: Tensor, second: Tensor) -> Tensor:
        """Return kappa [J, K] of the tokens ``first`` [J] and ``second`` [K]."""
        probabilities = self.probabilities
        p_first, p_second = probabilities[first], probabilities[second]
        y_first, y_second = self.token_ids[first], self.token_ids[second]
        same = (y_first[:, None] == y_second[None]).to(p_first)
        return same - p_first[:, y_second] - p_second[:, y_first].T + p_first @ p_second.T

    def coupling(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the kernel K [J, K]: representation times distribution factor."""
        return self.representation_factor(first, second) * self.distribution_factor(first, second)

    def first_order_displacement(self, coefficients: Tensor, step_size: float) -> Tensor:
        """Return eta sum_k c_k K_jk [N] without the N x N kernel: one product with the head's gradient."""
        projected = self.hidden @ self.gradient(coefficients).T / self.temperature
        sampled = projected.gather(1, self.token_ids[:, None])[:, 0]
        return step_size * (sampled - (self.probabilities * projected).sum(dim=1))
