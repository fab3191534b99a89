"""Decoding with two models: tokens of one are replaced by, or pushed along the direction of, the other."""

VERSION = 1  # raised whenever the same pair of checkpoints and settings would give other samples

SCHEMES = ("replacement", "extrapolation_base", "extrapolation_trained")
"""The table's rows apart from both models alone: the mode, and for extrapolation the model that drives."""
