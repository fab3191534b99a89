"""The sandbox, and what runs in it: a model's programs against tests that they never see, and a user's verifiers."""

VERSION = 5
"""Raised whenever the same program and tests could get another verdict."""

VERIFIER_VERSION = 2
"""Raised whenever the same verifier, problem and response could get another reward."""
