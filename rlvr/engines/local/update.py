"""The optimizer steps on one rollout batch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evals.core.errors import UserError
from evals.core.random import generator_for
from evals.core.training_settings import LocalTraining
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.policy import Policy, TokenBatch, token_log_probs
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.method import Method

Observer = Callable[[Tensor, Tensor, Tensor], None]
"""Is shown, after each backward pass, the rollouts [b], their log-probabilities [b, t] under the policy of this very
optimizer step, and the derivative [b, t] of the sum of the token losses with respect to them. With a mini-batch's last
rollouts, the parameters' gradients are those of its loss, not clipped yet."""


class Updater:
    """AdamW with linear warm-up and decay and gradient clipping; one optimizer step per mini-batch.

    ``observer`` may look at every mini-batch; it changes nothing.
    """

    observer: Observer | None = None

    def __init__(self, model: Policy, method: Method, training: LocalTraining, seed: int) -> None:
        self.optimizer = AdamW(model.parameters(), training.weight_decay)
        self._model, self._training, self._seed = model, training, seed
        self._loss, self._aggregation = method.loss, method.aggregation

    def update(
        self,
        tokens: TokenBatch,
        old_log_probs: Tensor,
        weighted_advantages: Tensor,
        group_ids: Tensor,
        mini_batches: Sequence[Tensor],
        steps_done: int,
        updates_done: int,
    ) -> dict[str, float]:
        """One optimizer step for each of ``mini_batches``, the rollout indices.

        ``steps_done`` rollout steps and ``updates_done`` optimizer steps were done before them.
        ``old_log_probs`` [B, T] are those of the policy that sampled, ``weighted_advantages`` [B, T] advantages times
        token weights. Returns the loss's metrics averaged over the tokens of each mini-batch, and all over the
        mini-batches.
        """
        rows = []
        for number, indices in enumerate(mini_batches, start=updates_done):
            learning_rate = self._training.learning_rate_of(steps_done, number)
            self.optimizer.zero_grad()
            generator = generator_for("loss", self._seed, number)
            mini_batch = tokens.select(indices)
            normaliser = Normaliser.of(mini_batch.response_mask)
            # Only losses that look at single rollouts may be cut into micro-batches freely.
            is_divisible = self._loss.coupling == "rollout"
            parts = [indices[places] for places in mini_batch.micro_batches(self._training, self._model.padded)]
            totals: dict[str, float] = {"loss": 0.0}
            for part in parts if is_divisible else [indices]:
                batch = tokens.select(part)
                mask = batch.response_mask.to(self._model.device)
                width = mask.shape[1]
                old, weighted = old_log_probs[part, :width], weighted_advantages[part, :width]
                # Rollouts without any advantage rarely have a gradient; then nothing has to be kept for it.
                silent = ~weighted.any(dim=1)
                silent &= ~silent.all()
                loud_tokens, silent_tokens = mask & ~silent[:, None], mask & silent[:, None]
                loud = self._score(batch, ~silent)
                log_probs = torch.zeros_like(old).masked_scatter_(loud_tokens, loud.detach())
                if silent.any():
                    with torch.no_grad():
                        log_probs.masked_scatter_(silent_tokens, self._score(batch, silent))
                log_probs.requires_grad_()
                token_loss, metrics = self._loss(
                    log_probs, old, weighted, mask, group_ids[part], generator, self._aggregation
                )
                slope = None
                if self.observer is not None:
                    slope = torch.autograd.grad(token_loss.sum(), log_probs, retain_graph=True)[0]
                loss = self._aggregation(token_loss, mask, normaliser)
                slopes = torch.autograd.grad(loss, log_probs)[0]
                # A sum, because a backward pass from anything but a scalar imports half a second of torch's compiler.
                (loud * slopes[loud_tokens]).sum().backward()
                if slopes[silent_tokens].any():  # as where a loss has terms without advantages
                    (self._score(batch, silent) * slopes[silent_tokens]).sum().backward()
                if self.observer is not None and slope is not None:
                    self.observer(part, log_probs.detach(), slope)
                totals["loss"] += loss.item()
                for name, values in metrics.items():
                    mean = float(values.detach()[mask].sum()) / max(1, normaliser.tokens)
                    totals[name] = totals.get(name, 0.0) + mean
            norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._training.gradient_clip)
            if not torch.isfinite(norm):
                raise UserError(f"update {number + 1}: the gradient is not finite; the run has diverged")
            self.optimizer.step(learning_rate)
            rows.append({**totals, "grad_norm": float(norm), "learning_rate": learning_rate})
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    def _score(self, batch: TokenBatch, chosen: Tensor) -> Tensor:
        """The log-probabilities of the response tokens of the rollouts at ``chosen`` [b] bool, packed."""
        return token_log_probs(self._model, batch.select(chosen.nonzero()[:, 0]), self._training.temperature)
