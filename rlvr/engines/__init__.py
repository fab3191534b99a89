"""Engines take a resolved run and leave a manifest, metrics and a Hugging Face checkpoint behind."""

from evals.core.training_settings import TrainingSettings


def option_versions(training: TrainingSettings) -> dict[str, int]:
    """The versions of options that few runs have: raised whenever the same run with such an option gives other numbers.

    An engine's own version is part of every run.
    """
    return {"left_out": 2} if training.unjudged == "left_out" else {}
