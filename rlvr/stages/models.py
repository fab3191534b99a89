"""Stages that make base models: trained from scratch, imported, fine-tuned, or found at a server."""

from __future__ import annotations

from typing import Any, ClassVar

from evals.core.config.base_models import Corpus
from evals.core.config.sections import StudyExecution
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.engines.local import VERSION as LOCAL_ENGINE_VERSION
from rlvr.stages.stage import File, Files, Stage

_LOCK_WAIT_SECONDS = 600.0
_BASE_CHECKPOINT_INTERVAL = 100


class WriteCorpus(Stage):
    """The worked solutions that a base model is trained on."""

    kind = "base_corpus"
    outputs = ("results/base/{model}/corpus.jsonl", "results/base/{model}/corpus.manifest.json")
    call = "rlvr.base_model.corpus:write_corpus"
    version = BASE_MODEL_VERSION

    model: str
    corpus: Corpus
    count: int

    def arguments(self) -> dict[str, Any]:
        """The corpus is the function's ``settings``."""
        return {"settings": self.corpus, "count": self.count}


class BaseStage(Stage):
    """A stage that makes a base model."""

    target = "results/base/{model}"
    endings: ClassVar[tuple[str, ...]] = ("/manifest.json",)
    order = 100  # before trainings and samples, which need it

    model: str


class TrainBaseModel(BaseStage):
    """A base model, trained from scratch on its corpus."""

    kind = "base_model"
    endings = ("/manifest.json", "/metrics.parquet")
    cost = "results/costs/base/{model}.tsv"
    version = BASE_MODEL_VERSION
    threads_of = "base_threads"

    corpus: File
    training: dict[str, Any]
    held_out: Files = ()

    def run(self, machine: StudyExecution) -> None:
        """Train, or continue; after a SIGTERM the state is saved, and the status is 143."""
        from evals.generation import arithmetic

        arithmetic.set_up(self.threads(machine))
        from rlvr.base_model.train import BaseModelSettings, train_base_model
        from rlvr.runs.termination import exit_if_interrupted

        settings = BaseModelSettings.parse(self.training, "training")
        with exit_if_interrupted():
            train_base_model(
                settings, self.corpus, self.out, _BASE_CHECKPOINT_INTERVAL, _LOCK_WAIT_SECONDS, *self.held_out
            )


class ImportModel(BaseStage):
    """A model that exists: the files of a directory, which are inputs, or a commit on the Hub."""

    kind = "import_model"
    call = "evals.generation.checkpoint:import_model"

    source: str
    revision: str | None = None
    files: Files = ()

    def arguments(self) -> dict[str, Any]:
        """The source is the function's ``model``."""
        return {"model": self.source, "revision": self.revision}


class ReachServer(BaseStage):
    """A model that a server has."""

    kind = "reach_server"

    service: dict[str, Any]

    def run(self, machine: StudyExecution) -> None:
        """Ask the server for its models, and write down what it is."""
        from evals.core.run_spec import Service
        from evals.generation.served import write_service

        write_service(Service.parse(self.service, "service"), self.out)


class FineTuneModel(BaseStage):
    """An existing model, trained on worked solutions before the study's methods train it."""

    kind = "fine_tuned_model"
    endings = ("/manifest.json", "/metrics.parquet")
    cost = "results/costs/base/{model}.tsv"
    version = LOCAL_ENGINE_VERSION
    threads_of = "training_threads"

    base: File
    solutions: Files
    training: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """The order of the files of solutions decides too."""
        return {**super().settings(), "order": list(map(str, self.solutions))}

    def resources(self, machine: StudyExecution) -> dict[str, Any]:
        """A GPU, where models are on one."""
        return {"gpu": int(machine.device == "cuda")}

    def run(self, machine: StudyExecution) -> None:
        """Train, or continue; after a SIGTERM the state is saved, and the status is 143."""
        from evals.generation import arithmetic

        arithmetic.set_up(self.threads(machine), machine.device == "cpu" and self.training.get("dtype") == "float32")
        from rlvr.engines.local.fine_tune import FineTuningSettings, fine_tune
        from rlvr.runs.termination import exit_if_interrupted

        settings = FineTuningSettings.parse(self.training, "training")
        interval = machine.checkpoint_interval or _BASE_CHECKPOINT_INTERVAL
        with exit_if_interrupted():
            fine_tune(
                settings, self.base.parent, self.solutions, self.out, machine.device, interval, _LOCK_WAIT_SECONDS
            )
