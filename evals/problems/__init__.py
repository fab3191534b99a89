"""Problem sets: generated from a seed, deterministic, split into training and evaluation by their own text."""
