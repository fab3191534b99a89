"""Sampling responses from a checkpoint. The sampler that evaluates is also the one that rolls out during training."""

VERSION = 1
"""Raised whenever the same checkpoint and settings would give other samples."""
