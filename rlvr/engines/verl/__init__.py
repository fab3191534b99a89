"""Training by verl on many GPUs: its trainer, FSDP and vLLM, with the methods in its engine and its trainer.

``rlvr-bench verl render RUN.json`` prints the complete launch of a run without verl installed.
"""

VERSION = 5
"""Raised when the same run.json would train differently."""

PINNED = "0.9.1"
"""The verl whose configuration, registries and trainer this adapter is written for."""
