"""The laptop study's base model: a small Qwen3, trained from scratch on worked solutions of which a part is wrong."""

VERSION = 3  # raised whenever the same settings would give another checkpoint
