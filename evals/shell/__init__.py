"""Scores, comparisons and planning from the shell, on any files in our format; ``python -m evals``."""
