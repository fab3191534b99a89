"""The changes that a study makes of training settings and of methods, and the doses that it gives them."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from evals.core.config.settings import Settings
from evals.core.numbers import Count, InnerShare, Positive
from evals.core.record import partial
from evals.core.training_settings import LocalTraining, Rounding, VerlTraining
from evals.core.values import UNIQUE, MethodName

TrainingChanges = Annotated[dict[str, Any], partial(LocalTraining, VerlTraining)]
"""Some of the training settings; a study's, a model's and a method's are merged and then read as a whole."""


class MethodChanges(Settings):
    """The changes of a method's catalogue entry; ``{}`` takes it as it is.

    Every other key is one of the catalogue's (config/methods.yaml).
    """

    model_config = ConfigDict(extra="allow")

    training: TrainingChanges = Field(default={}, description="training settings of this method alone")

    @property
    def of_entry(self) -> dict[str, Any]:
        """The changes of the catalogue's entry, which knows nothing of training settings."""
        return dict(self.model_extra or {})


Methods = dict[MethodName, MethodChanges]


class Doses(Settings):
    """Doses of `training.sampler`: every method but controls is trained under each of them too.

    Each kind has its doses from the smallest on. The names are those of the methods, `dapo_stale_4` of `dapo`.
    """

    weights: Annotated[tuple[Rounding, ...], *UNIQUE] = Field(default=(), description="roundings of the weights")
    stale: Annotated[tuple[Count, ...], *UNIQUE] = Field(default=(), description="rollout steps behind")
    top_p: Annotated[tuple[InnerShare, ...], *UNIQUE] = Field(default=(), description="shares that are drawn from")
    noise: Annotated[tuple[Positive, ...], *UNIQUE] = Field(default=(), description="standard deviations on logits")
