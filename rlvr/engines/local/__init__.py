"""The in-process engine: torch, a transformers model, and the sampler that also evaluates. One process, CPU or one GPU."""

VERSION = 1
"""Raised whenever the same resolved run would give other numbers."""
