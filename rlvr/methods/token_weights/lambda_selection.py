"""Training on the tokens of the largest, smallest, or random DelTA coefficients only (arXiv 2605.21467, figures)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.precision import computation_type
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.delta import DelTA
from rlvr.methods.token_weights.selected_tokens import Denominator, selection_weights
from rlvr.methods.token_weights.weight_statistics import weight_metrics


@dataclass(frozen=True)
class LambdaSelection:
    """Keeps part of the tokens with an advantage other than 0, ranked over the rollout batch by DelTA's lambda.

    The paper shows figures only: the ranking's scope, the denominator (the kept tokens of each mini-batch) and the
    exclusion of tokens of advantage 0 are ours. Ties are broken at random, so where DelTA has nothing to say every
    selection is a random one.
    """

    needs_hidden_states: ClassVar[bool] = True
    sketch_dimensions: ClassVar[int | None] = None

    keep: Literal["top", "random", "bottom"] = hyper_parameter("top", "which end of the ranking is trained on")
    ratio: float = hyper_parameter(0.5, "part of the tokens that is kept", above=0.0, maximum=1.0)
    denominator: Denominator = hyper_parameter("selected", "tokens that the token mean divides by")  # noqa: RUF009
    refinements: int = hyper_parameter(1, "refinement steps of DelTA's centroids", minimum=0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32, 0 where not kept and at padding, and metrics.

        Raises:
            ValueError: the batch has no hidden states.
        """
        lambdas, metrics = DelTA(refinements=self.refinements)(batch)
        candidates = (batch.token_advantages != 0).nonzero()[:, 0]
        order = candidates[torch.randperm(candidates.numel(), generator=batch.generator).to(candidates.device)]
        if self.keep != "random":
            ranked = lambdas[batch.response_mask][order].argsort(descending=self.keep == "top", stable=True)
            order = order[ranked]
        selected = torch.zeros(int(batch.response_mask.sum()), dtype=torch.bool, device=lambdas.device)
        selected[order[: math.ceil(self.ratio * order.numel())]] = True
        padded = selection_weights(selected, batch, self.denominator, computation_type(batch.old_log_probs))
        return padded, metrics | weight_metrics(padded[batch.response_mask]) | {
            "selected_token_fraction": float(selected.double().mean())
        }
