"""The complement of forking tokens: what the most uncertain fifth of the tokens leaves (arXiv 2506.01939)."""

from evals.core.lazy_torch import torch
from rlvr.methods.parameters import component, hyper_parameter
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.token_rules import ForkingTokens, TokenWeights, selection_weights


@component("certain_tokens")
class CertainTokens(TokenWeights):
    """Selects the tokens of each mini-batch that forking tokens leave out, and divides by the selected ones."""

    top_ratio: float = hyper_parameter(0.2, "part of the tokens that is not trained on", above=0.0, maximum=0.99)

    def weigh(self, batch: RolloutBatch) -> tuple["torch.Tensor", dict[str, float]]:
        forking, _ = ForkingTokens(top_ratio=self.top_ratio, denominator="all").weigh(batch)
        selected = forking == 0
        fraction = {"selected_token_fraction": float(selected.double().mean())}
        return selection_weights(selected, batch, "selected"), fraction
