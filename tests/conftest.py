"""What holds for all tests."""

from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

# No test is timed: a machine under load must not fail one.
settings.register_profile("project", deadline=None)
settings.load_profile("project")

_LONGEST = ("reliability", "workflow")
"""Folders whose files take minutes: they start first, so that no process is left with one of them at the end."""


class _WorkflowTogether(LoadFileScheduling):
    """A process has whole files; one has all of tests/workflow, so that the smoke study is made once."""

    def _split_scope(self, nodeid: str) -> str:
        return "workflow" if nodeid.startswith("tests/workflow/") else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nothing is shared out
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """How pytest-xdist shares tests out: in the order below, where it would begin with the files of most tests."""
    config.option.loadscopereorder = False
    return _WorkflowTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first."""
    items.sort(key=lambda item: Path(item.path).parent.name not in _LONGEST)
