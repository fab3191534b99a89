"""The files of a run while it runs: saved states, checkpoints, progress, metrics so far; and how it is stopped."""
