"""Engines take a resolved run and leave a manifest, metrics and a Hugging Face checkpoint behind."""

from evals.core.training_settings import TrainingSettings


def option_versions(training: TrainingSettings) -> dict[str, int]:
    """The versions of options that few trainings have: raised whenever the same training with one gives other numbers.

    An engine's own version is every training's.
    """
    return {"left_out": 2} if training.unjudged == "left_out" else {}
