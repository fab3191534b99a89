"""DelTA on a random projection of the hidden states, for rollout batches whose hidden states fit nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.delta import DelTA


@dataclass(frozen=True)
class SketchedDelTA:
    """DelTA's weights, of hidden states that the engine has projected to sketch_dimensions random directions.

    Projected vectors keep inner products in expectation (Johnson and Lindenstrauss), and margins are inner products, so
    the weights are DelTA's with noise that falls with the root of the dimensions; docs/performance.md has it measured.
    The engine projects while the old log-probs are computed, and never holds [N, D].
    """

    needs_hidden_states: ClassVar[bool] = True

    lambda_min: float = hyper_parameter(
        0.8, "weight, before normalisation, of the least telling token", minimum=0.0, maximum=1.0
    )
    lambda_max: float = hyper_parameter(1.2, "weight, before normalisation, of the most telling token", minimum=1.0)
    refinements: int = hyper_parameter(1, "refinement steps of the centroids (the paper's K)", minimum=0)
    sketch_dimensions: int = hyper_parameter(64, "dimensions of the random projection", minimum=8)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32 (mean 1 over the tokens, 0 at padding), and metrics.

        Raises:
            ValueError: the batch has no hidden states, or they are not projected to the sketch's dimensions.
        """
        if batch.hidden_states is not None and batch.hidden_states.shape[1] != self.sketch_dimensions:
            raise ValueError(
                f"hidden_states have {batch.hidden_states.shape[1]} dimensions; the sketch has {self.sketch_dimensions}"
            )
        return DelTA(self.lambda_min, self.lambda_max, self.refinements)(batch)
