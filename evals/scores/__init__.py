"""From graded samples to scores, and from scores to comparisons; ``python -m evals.scores score|compare``."""
