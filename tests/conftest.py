"""What holds for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# No test is timed: a machine under load must not fail one.
settings.register_profile("project", deadline=None)
settings.load_profile("project")

_LONGEST = ("reliability", "workflow")
"""Folders whose files take minutes: they start first, so that no process is left with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first."""
    items.sort(key=lambda item: Path(item.path).parent.name not in _LONGEST)
