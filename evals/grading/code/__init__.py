"""Grading programs: what a model wrote is run, in a sandbox, against tests that it never sees (docs/grading.md)."""

VERSION = 2
"""Raised whenever the same program and tests could get another verdict."""
