"""The in-process engine: torch, the sampler that also evaluates; CPU or one GPU."""

VERSION = 4
"""Raised whenever the same resolved run would give other numbers."""
