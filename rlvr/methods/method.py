"""A method: pieces, put together by name from a resolved entry of the catalogue (config/methods.yaml)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rlvr.methods.advantages.dr_grpo import DrGRPO
from rlvr.methods.advantages.gpg import GPG
from rlvr.methods.advantages.grpo import GRPO
from rlvr.methods.advantages.one_sided import OneSided
from rlvr.methods.advantages.reinforce_plus_plus import ReinforcePlusPlus
from rlvr.methods.advantages.rloo import RLOO
from rlvr.methods.batching.dynamic_sampling import DynamicSampling
from rlvr.methods.batching.length_sorted import LengthSorted
from rlvr.methods.batching.query_preserved import QueryPreserved
from rlvr.methods.batching.random_split import RandomSplit
from rlvr.methods.batching.reward_balanced import RewardBalanced
from rlvr.methods.batching.sign_separated import SignSeparated
from rlvr.methods.batching.verl_v1 import VerlV1
from rlvr.methods.hyper_parameter import property_schemas
from rlvr.methods.losses.cispo import CISPO
from rlvr.methods.losses.clip_cov import ClipCov
from rlvr.methods.losses.clipped import Clipped
from rlvr.methods.losses.dfpo import DFPO
from rlvr.methods.losses.fipo import FIPO
from rlvr.methods.losses.gmpo import GMPO
from rlvr.methods.losses.grpo_fix import GRPOFix
from rlvr.methods.losses.gspo import GSPO
from rlvr.methods.losses.gspo_token import GSPOToken
from rlvr.methods.losses.kl_cov import KLCov
from rlvr.methods.losses.reinforce import Reinforce
from rlvr.methods.losses.sapo import SAPO
from rlvr.methods.rewards.overlong import Overlong
from rlvr.methods.seams import Advantage, Assignment, BatchSelection, PolicyLoss, RewardShaping, TokenWeights
from rlvr.methods.token_weights.delta import DelTA
from rlvr.methods.token_weights.forking_tokens import ForkingTokens
from rlvr.methods.token_weights.lambda_selection import LambdaSelection
from rlvr.methods.token_weights.perplexity import Perplexity
from rlvr.methods.token_weights.probability import Dominate, LowProbability
from rlvr.methods.token_weights.random_lambda import RandomLambda
from rlvr.methods.token_weights.sketched_delta import SketchedDelTA
from rlvr.methods.token_weights.within_side import WithinSide

REWARD_SHAPINGS: Mapping[str, Callable[..., RewardShaping]] = {"overlong": Overlong}
ADVANTAGES: Mapping[str, Callable[..., Advantage]] = {
    "dr_grpo": DrGRPO,
    "gpg": GPG,
    "grpo": GRPO,
    "one_sided": OneSided,
    "reinforce_plus_plus": ReinforcePlusPlus,
    "rloo": RLOO,
}
TOKEN_WEIGHTS: Mapping[str, Callable[..., TokenWeights]] = {
    "delta": DelTA,
    "dominate": Dominate,
    "forking_tokens": ForkingTokens,
    "lambda_selection": LambdaSelection,
    "low_probability": LowProbability,
    "perplexity": Perplexity,
    "random_lambda": RandomLambda,
    "sketched_delta": SketchedDelTA,
    "within_side": WithinSide,
}
LOSSES: Mapping[str, Callable[..., PolicyLoss]] = {
    "cispo": CISPO,
    "clip_cov": ClipCov,
    "clipped": Clipped,
    "dfpo": DFPO,
    "fipo": FIPO,
    "gmpo": GMPO,
    "grpo_fix": GRPOFix,
    "gspo": GSPO,
    "gspo_token": GSPOToken,
    "kl_cov": KLCov,
    "reinforce": Reinforce,
    "sapo": SAPO,
}
ASSIGNMENTS: Mapping[str, Callable[..., Assignment]] = {
    "length_sorted": LengthSorted,
    "query_preserved": QueryPreserved,
    "random_split": RandomSplit,
    "sign_separated": SignSeparated,
    "verl_v1": VerlV1,
}
SELECTIONS: Mapping[str, Callable[..., BatchSelection]] = {
    "dynamic_sampling": DynamicSampling,
    "reward_balanced": RewardBalanced,
}

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Method:
    """The pieces of one method, with their hyper-parameters.

    Attributes:
        advantage: rewards to advantages.
        token_weights: weights on the advantages, None for one everywhere.
        loss: the policy loss and its aggregation.
        assignment: rollouts to optimizer mini-batches.
        selection: which rollouts make up the batch, None for all that were sampled.
        reward_shaping: what rewards go through before the advantage, None for nothing.
    """

    advantage: Advantage
    token_weights: TokenWeights | None
    loss: PolicyLoss
    assignment: Assignment
    selection: BatchSelection | None
    reward_shaping: RewardShaping | None = None

    @property
    def needs_hidden_states(self) -> bool:
        """Whether the engine has to keep the inputs of the language-model head."""
        return self.token_weights is not None and self.token_weights.needs_hidden_states

    @property
    def sketch_dimensions(self) -> int | None:
        """Dimensions that the engine has to project hidden states to, None for all of them."""
        return None if self.token_weights is None else self.token_weights.sketch_dimensions


def compose(resolved: Mapping[str, Any]) -> Method:
    """Build the method that a resolved catalogue entry describes.

    Args:
        resolved: ``{"reward_shaping": piece or None, "advantage": piece, "token_weights": piece or None, "loss":
            piece, "batching": {"assignment": piece, "selection": piece or None}}``, each piece ``{"name": ...,
            hyper-parameters ...}``. Optional pieces may be absent, hyper-parameters too (the dataclass's default
            holds); keys that describe the entry are ignored.

    Raises:
        ValueError: one line: a piece is missing, or a name, a hyper-parameter or its value is not accepted.
    """
    batching = resolved.get("batching") or {}
    return Method(
        advantage=_required("advantage", ADVANTAGES, resolved.get("advantage")),
        token_weights=_optional("token_weights", TOKEN_WEIGHTS, resolved.get("token_weights")),
        loss=_required("loss", LOSSES, resolved.get("loss")),
        assignment=_required("batching.assignment", ASSIGNMENTS, batching.get("assignment")),
        selection=_optional("batching.selection", SELECTIONS, batching.get("selection")),
        reward_shaping=_optional("reward_shaping", REWARD_SHAPINGS, resolved.get("reward_shaping")),
    )


def _optional(
    seam: str, classes: Mapping[str, Callable[..., Piece]], description: Mapping[str, Any] | None
) -> Piece | None:
    """Build the piece described, or None if there is none."""
    return None if description is None else _required(seam, classes, description)


def _required(seam: str, classes: Mapping[str, Callable[..., Piece]], description: Mapping[str, Any] | None) -> Piece:
    """Build the piece described."""
    given = dict(description or {})
    name = given.pop("name", None)
    if name not in classes:
        raise ValueError(f"{seam}.name is {name!r}; accepted: {', '.join(sorted(classes))}")
    known = property_schemas(classes[name])
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ValueError(f"{seam}.{unknown[0]} is no hyper-parameter of {name}; accepted: {', '.join(known) or 'none'}")
    return classes[name](**given)
