"""A method: its components, composed by name from a catalogue entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.methods.advantages import Advantage
from rlvr.methods.aggregation import Aggregation
from rlvr.methods.assignments import Assignment
from rlvr.methods.declarations import KINDS, composition, declarations
from rlvr.methods.losses.base import PolicyLoss
from rlvr.methods.rewards import RewardShaping
from rlvr.methods.selections import BatchSelection
from rlvr.methods.token_weights.base import TokenWeights


@dataclass(frozen=True)
class Method:
    """The components of one method, with their hyper-parameters.

    Attributes:
        advantage: rewards to advantages.
        token_weights: weights on the advantages; None for one everywhere.
        loss: the policy loss.
        aggregation: token losses to the loss of a mini-batch.
        assignment: rollouts to optimizer mini-batches.
        selection: the choice of the rollouts that make up the batch; None for all that were sampled.
        reward_shaping: a change of the rewards before they become advantages; None for none.
    """

    advantage: Advantage
    token_weights: TokenWeights | None
    loss: PolicyLoss
    aggregation: Aggregation
    assignment: Assignment
    selection: BatchSelection | None
    reward_shaping: RewardShaping | None = None

    @property
    def needs_hidden_states(self) -> bool:
        """True if the engine has to keep the inputs of the language-model head."""
        return self.token_weights is not None and self.token_weights.needs_hidden_states

    @property
    def sketch_dimensions(self) -> int | None:
        """The dimensions that the engine has to project hidden states to; None for no projection."""
        return None if self.token_weights is None else self.token_weights.sketch_dimensions


def compose(resolved: Mapping[str, Any], source: str = "method") -> Method:
    """Build the method that a resolved catalogue entry describes.

    Args:
        resolved: ``{"reward_shaping": component or None, "advantage": component, "token_weights": component or None,
            "loss": component, "batching": {"assignment": component, "selection": component or None}}``, each component
            ``{"name": ..., hyper-parameters ...}``; the loss also says the aggregation. Optional components and
            hyper-parameters may be absent; keys that describe the entry are ignored.
        source: names the entry in messages.

    Raises:
        InvalidInput: a component is missing, or a name, a hyper-parameter or its value is not accepted.
    """
    known = composition()
    known.parse({key: value for key, value in resolved.items() if key in known.model_fields}, source)
    parts = {**resolved, **resolved["batching"]}
    of_kind = {kind: dict(parts.get(kind) or {}) for kind in KINDS}
    loss = of_kind["loss"]
    mode = loss.pop("aggregation", declarations()["loss"][loss["name"]].defaults["aggregation"])
    aggregation = Aggregation(mode, loss.pop("aggregation_constant", None))
    return Method(aggregation=aggregation, **{kind: _build(kind, given) for kind, given in of_kind.items()})


def components(kind: str) -> dict[str, type[Any]]:
    """Name -> class of every component of a kind."""
    return {name: declared.load() for name, declared in declarations()[kind].items()}


def _build(kind: str, given: dict[str, Any]) -> Any:
    """Build the component that is described, or None if none is."""
    if not given:
        return None
    return declarations()[kind][given.pop("name")].load()(**given)
