"""Responses sampled from a checkpoint, in an evaluation and as the rollouts of a run."""

VERSION = 2
"""Raised whenever the same checkpoint and settings would give other samples."""
