"""Decoding with two models: tokens of one are replaced by, or pushed along the direction of, the other."""

VERSION = 1
"""Raised whenever the same pair of checkpoints and settings would give other samples."""
