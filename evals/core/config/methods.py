"""The changes that a study makes of training settings and of methods."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from evals.core.config.settings import Settings
from evals.core.record import partial
from evals.core.training_settings import LocalTraining, VerlTraining
from evals.core.values import MethodName

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
