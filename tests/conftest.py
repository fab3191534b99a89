"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# No test is timed: a machine under load must not fail one.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
