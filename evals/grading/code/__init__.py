"""What runs in the sandbox: programs of a model against tests that they never see, and verifiers of a user's."""

VERSION = 2
"""Raised whenever the same program and tests could get another verdict."""

VERIFIER_VERSION = 1
"""Raised whenever the same verifier, problem and response could get another reward."""
