"""Scores, comparisons and planning from the shell, on any files in our format; ``rlvr-bench``."""
