"""From graded samples to scores, and from scores to comparisons; ``rlvr-bench stage score|compare``."""
