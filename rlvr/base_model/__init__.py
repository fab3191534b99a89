"""Base models that a study trains from scratch: a small Qwen3 on worked solutions, part of them wrong."""

VERSION = 3  # raised whenever the same settings would give another checkpoint
