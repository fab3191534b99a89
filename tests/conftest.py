"""What holds for all tests."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from tests.slurm_cluster import SlurmCluster

# Processes that tests start find our modules compiled, whatever the machine's variables say.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test is timed, a machine under load must not fail one; and each draws the same every time. `make fuzz` draws anew.
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("project", deadline=None, derandomize=True, suppress_health_check=_CHECKS)
settings.load_profile("project")


def _is_of_workflow(nodeid: str) -> bool:
    return nodeid.startswith("tests/workflow/") or "/test_workflow.py" in nodeid


def _takes_minutes(nodeid: str) -> bool:
    return _is_of_workflow(nodeid) or nodeid.startswith("tests/reliability/")


class _WorkflowTogether(LoadFileScheduling):
    """A process has whole files; one has all tests of workflows, so that the smoke study is made once."""

    def _split_scope(self, nodeid: str) -> str:
        return "workflow" if _is_of_workflow(nodeid) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nothing is shared out
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """How pytest-xdist shares tests out: in the order below, where it would begin with the files of most tests."""
    config.option.loadscopereorder = False
    return _WorkflowTogether(config, log)


@pytest.fixture(scope="module")
def slurm() -> Iterator["SlurmCluster"]:
    """A real Slurm of two nodes, for the tests of a file."""
    from tests.slurm_cluster import reason_for_none, slurm_cluster  # here: not every environment has what it needs

    if (reason := reason_for_none()) is not None:
        pytest.skip(reason)
    with slurm_cluster() as cluster:
        yield cluster


def pytest_runtest_setup() -> None:
    """Let a test that draws with torch's own generator draw the same whatever ran before it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that no process is left with one of them at the end."""
    items.sort(key=lambda item: not _takes_minutes(item.nodeid))
