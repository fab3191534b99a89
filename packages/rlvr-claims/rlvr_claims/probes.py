"""Probing updates: the change of given tokens' log-probabilities by a step of plain gradient ascent.

With ratio 1 every loss here has the gradient -sum_n c_n grad log pi(y_n), c = advantage times weight over the
normaliser, so an update is given by its coefficients c [N].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_parquet, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from rlvr.engines.local.policy import Policy, TokenBatch, score_in_chunks, token_log_probs
from rlvr_claims import TABLE_VERSIONS
from rlvr_claims.policy import PolicySnapshot, read_snapshots


@dataclass(frozen=True)
class HeadView:
    """N tokens as the language-model head sees them, and the coupling of their updates through it (arXiv 2605.08666).

    The gradient of log pi(y_n) with respect to the head W is (e_y - p_n) h_n' / T. The inner product of two of them is
    K_jk = <h_j, h_k> kappa_jk / T^2, with kappa_jk = 1[y_j = y_k] - p_j(y_k) - p_k(y_j) + <p_j, p_k>: a step of size
    eta on sum_k c_k log pi(y_k) moves token j by eta sum_k c_k K_jk to first order.
    """

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


PROBES = ("null", "joint", "positive_only", "negative_only", "head_only", "first_order")
Gradient = Mapping[str, Tensor]
_ROLLOUTS_AT_ONCE = 64
_OTHER_CHUNK = 17  # rollouts in one forward pass of the null update: other sums, the same mathematics
_TRIAL_LENGTH = 1e-3
"""Length of the trial step in parameter space: small enough to be nearly linear, far above float32's rounding."""


def score_gradient(model: Policy, tokens: TokenBatch, temperature: float, coefficients: Tensor) -> Gradient:
    """Return the gradient of sum_n c_n log pi(y_n) for ``coefficients`` [N], of every parameter."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    lengths = torch.tensor([len(response) for response in tokens.responses])
    ends = lengths.cumsum(0)
    for rows in torch.arange(len(lengths)).split(_ROLLOUTS_AT_ONCE):
        part = coefficients[int(ends[rows[0]] - lengths[rows[0]]) : int(ends[rows[-1]])]
        if not bool(part.any()):
            continue
        log_probs = token_log_probs(model, tokens.select(rows), temperature)
        weighted = (part.to(log_probs) * log_probs).sum()
        for name, value in zip(total, torch.autograd.grad(weighted, list(parameters.values())), strict=True):
            total[name] += value
    return total


def gradient_of_few(snapshot: PolicySnapshot, coefficients: Tensor) -> Gradient:
    """Return the gradient of sum_n c_n log pi(y_n) where few rollouts have a coefficient [N] other than 0."""
    rollouts = snapshot.rollout_of[coefficients != 0].unique()
    if len(rollouts) == 0:
        return {name: torch.zeros_like(value) for name, value in snapshot.model.named_parameters()}
    kept = torch.isin(snapshot.rollout_of, rollouts)
    return score_gradient(snapshot.model, snapshot.tokens.select(rollouts), snapshot.temperature, coefficients[kept])


def norm(gradient: Gradient) -> float:
    """Return the Euclidean length."""
    return float(torch.stack([value.double().square().sum() for value in gradient.values()]).sum().sqrt())


@contextmanager
def restored(model: Policy) -> Iterator[Policy]:
    """Yield the model, and put its parameters back, to the bit, afterwards."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    try:
        yield model
    finally:
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(before[name])


@torch.no_grad()
def ascend(model: Policy, gradient: Gradient, step_size: float) -> None:
    """Make one step of plain gradient ascent."""
    for name, value in model.named_parameters():
        value.add_(gradient[name], alpha=step_size)


@contextmanager
def stepped(model: Policy, gradient: Gradient, step_size: float) -> Iterator[Policy]:
    """Yield the model after one step of plain gradient ascent, which is taken back afterwards."""
    with restored(model):
        ascend(model, gradient, step_size)
        yield model


def log_probs_of(model: Policy, tokens: TokenBatch, temperature: float) -> Tensor:
    """Return the log-probabilities [N] float64 of the response tokens."""
    return score_in_chunks(model, tokens, temperature, _ROLLOUTS_AT_ONCE)[0].double()


def head_view(snapshot: PolicySnapshot) -> HeadView:
    """Return the snapshot's tokens as its head sees them."""
    parts: list[Tensor] = []
    score_in_chunks(snapshot.model, snapshot.tokens, snapshot.temperature, _ROLLOUTS_AT_ONCE, parts.append)
    weight = snapshot.model.head_weight.detach().double()
    return HeadView(torch.cat(parts).double(), weight, snapshot.token_ids, snapshot.temperature)


def probe(snapshot: PolicySnapshot) -> tuple[dict[str, Tensor], float]:
    """Return the change [N] of the tokens' log-probabilities in nats by each probe, and the step size of plain SGD.

    ``null`` is a second forward pass without a step. ``joint`` is one step of SGD on all tokens, ``positive_only`` and
    ``negative_only`` on those of that side, all of one size: that at which the joint step moves tokens as far (root
    mean square) as the run's own updates did, if displacements grow in proportion. ``head_only`` is the joint step on
    the language-model head alone, ``first_order`` its linear part.
    """
    model, tokens, temperature = snapshot.model, snapshot.tokens, snapshot.temperature
    before = log_probs_of(model, tokens, temperature)
    again = score_in_chunks(model, tokens, temperature, _OTHER_CHUNK)[0].double()
    coefficients = snapshot.coefficients
    joint = score_gradient(model, tokens, temperature, coefficients)
    positive = score_gradient(model, tokens, temperature, coefficients.clamp(min=0))
    negative = {name: joint[name] - positive[name] for name in joint}

    def moved(gradient: Gradient, step_size: float) -> Tensor:
        with stepped(model, gradient, step_size) as after:
            return log_probs_of(after, tokens, temperature) - before

    step_size = matched_step_size(moved, joint, snapshot.own_displacement)
    view = head_view(snapshot)
    displacements = {
        "null": again - before,
        "joint": moved(joint, step_size),
        "positive_only": moved(positive, step_size),
        "negative_only": moved(negative, step_size),
        "head_only": view.log_probs(view.weight + step_size * view.gradient(coefficients)) - view.log_probs(),
        "first_order": view.first_order_displacement(coefficients, step_size),
    }
    return displacements, step_size


def matched_step_size(moved: Callable[[Gradient, float], Tensor], gradient: Gradient, wanted: Tensor) -> float:
    """Return the step size at which a step along ``gradient`` moves tokens as far as ``wanted`` [N] (root mean square).

    ``moved(gradient, step size)`` are displacements [N]. One trial step is made, and displacements are taken as
    proportional to the step. 0 for a gradient of 0.
    """
    length = norm(gradient)
    if length == 0:
        return 0.0
    trial = _TRIAL_LENGTH / length
    reached, wished = (torch.sqrt(change.square().mean()) for change in (moved(gradient, trial), wanted))
    return trial * float(wished / reached.clamp(min=1e-12))


def write_probes(directory: Path, steps: Sequence[int] | None) -> None:
    """Write ``probes.parquet`` and ``probes.manifest.json`` into the directory of a token table.

    Each row is a token, in the order of the table: its step, the step size, and each probe's displacement in nats.
    ``steps`` are those of the kept ones to probe; None for all. UserError if a file is missing or changed, or a step
    was not kept.
    """
    table = verify_outputs(directory / "manifest.json", "token_table")
    frames, snapshots = [], read_snapshots(directory, steps)
    for snapshot in snapshots:
        displacements, step_size = probe(snapshot)
        columns = {name: values.numpy() for name, values in displacements.items()}
        frames.append(pd.DataFrame({"step": snapshot.step, "step_size": step_size, **columns}))
        print(f"{snapshot.unit}: probed", flush=True)
    write_parquet(directory / "probes.parquet", pd.concat(frames, ignore_index=True))
    parameters = {"steps": list(steps) if steps else None, "version": TABLE_VERSIONS[snapshots[0].run.dtype]}
    identity = fingerprint({"parameters": parameters, "table": table.fingerprint})
    inputs = {str(directory / name): digest for name, digest in table.outputs.items()}
    outputs = hash_files(directory, directory / "probes.parquet")
    Manifest("probes", inputs, outputs, parameters, identity).write(directory / "probes.manifest.json")


@dataclass(frozen=True)
class Probed:
    """The step size of SGD on one snapshot, and displacements [N] in nats by probe; ``as_trained`` is the run's own."""

    step_size: float
    displacements: Mapping[str, Tensor]


def read_probes(directory: Path, snapshots: Sequence[PolicySnapshot]) -> list[Probed]:
    """Read the probes of each snapshot; UserError if a file is missing or changed, or a snapshot was not probed."""
    verify_outputs(directory / "probes.manifest.json", "probes")
    frame = read_parquet(directory / "probes.parquet")
    all_probed = []
    for snapshot in snapshots:
        rows = frame[frame["step"] == snapshot.step]
        if len(rows) != len(snapshot.rows):
            lacks = f"step {snapshot.step} was not probed"
            raise UserError(f"{directory}: {lacks}; accepted: probe it, or name other --steps")
        probes = {name: torch.tensor(rows[name].to_numpy(), dtype=torch.float64) for name in PROBES}
        displacements = {"as_trained": snapshot.own_displacement, **probes}
        all_probed.append(Probed(float(rows["step_size"].iloc[0]), displacements))
    return all_probed
