"""How an update of one token moves another through the output layer (arXiv 2605.08666, the coupling kernel).

The gradient of log pi(y_n) with respect to the head W is (e_y - p_n) h_n' / T. The inner product of two of them is
K_jk = <h_j, h_k> kappa_jk / T^2, with kappa_jk = 1[y_j = y_k] - p_j(y_k) - p_k(y_j) + <p_j, p_k>: a step of size eta on
sum_k c_k log pi(y_k) moves token j by eta sum_k c_k K_jk to first order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr.diagnostics.probes import HeadView


def representation_factor(view: HeadView, first: Tensor, second: Tensor) -> Tensor:
    """<h_j, h_k> / T^2 [J, K] for token indices ``first`` [J] and ``second`` [K]."""
    return view.hidden[first] @ view.hidden[second].T / view.temperature**2


def distribution_factor(view: HeadView, first: Tensor, second: Tensor, top: int | None = None) -> Tensor:
    """Distribution factor kappa [J, K] for token indices ``first`` [J] and ``second`` [K].

    Args:
        view: the tokens.
        first: [J].
        second: [K].
        top: keep only each token's so many largest probabilities in <p_j, p_k>, for large vocabularies; the other terms
            stay exact. The error is bounded by :func:`dropped_mass`.
    """
    probabilities = view.probabilities
    p_first, p_second = probabilities[first], probabilities[second]
    y_first, y_second = view.token_ids[first], view.token_ids[second]
    same = (y_first[:, None] == y_second[None]).to(p_first)
    overlap = _keep_top(p_first, top) @ _keep_top(p_second, top).T
    return same - p_first[:, y_second] - p_second[:, y_first].T + overlap


def _keep_top(probabilities: Tensor, top: int | None) -> Tensor:
    """Rows [N, V] with all but their ``top`` largest entries 0."""
    if top is None or top >= probabilities.shape[1]:
        return probabilities
    values, places = probabilities.topk(top, dim=1)
    return torch.zeros_like(probabilities).scatter_(1, places, values)


def dropped_mass(view: HeadView, chosen: Tensor, top: int) -> Tensor:
    """Probability [J] outside each token's ``top`` largest.

    The overlap <p_j, p_k> misses at most dropped_j + dropped_k: a dropped entry of one meets at most all of the other.
    """
    return 1.0 - view.probabilities[chosen].topk(min(top, view.weight.shape[0]), dim=1).values.sum(dim=1)


def coupling(view: HeadView, first: Tensor, second: Tensor, top: int | None = None) -> Tensor:
    """K [J, K]: representation times distribution factor."""
    return representation_factor(view, first, second) * distribution_factor(view, first, second, top)


def first_order_displacement(view: HeadView, coefficients: Tensor, step_size: float) -> Tensor:
    """Displacement eta sum_k c_k K_jk [N], without the N x N kernel: one product with the head's gradient."""
    gradient = view.gradient(coefficients)
    projected = view.hidden @ gradient.T / view.temperature
    sampled = projected.gather(1, view.token_ids[:, None])[:, 0]
    return step_size * (sampled - (view.probabilities * projected).sum(dim=1))
