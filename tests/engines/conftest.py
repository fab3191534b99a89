"""What the tests against real verl and vLLM share: `make test-engines` makes their environment and runs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

TOLERANCE = 1e-6
"""Asked of every comparison with verl's own functions in float64, relative and absolute."""

_largest_differences: dict[str, float] = {}
_measured: dict[str, str] = {}


@pytest.fixture
def assert_agrees() -> Callable[[str, Tensor, Tensor], None]:
    """Assert that ours equals verl's to 1e-6, and remember under a name by how much they differ at most."""

    def compare(name: str, ours: Tensor, verls: Tensor) -> None:
        ours, verls = ours.detach().double(), verls.detach().double()
        difference = float(((ours - verls).abs() / (1.0 + verls.abs())).max()) if verls.numel() else 0.0
        _largest_differences[name] = max(difference, _largest_differences.get(name, 0.0))
        torch.testing.assert_close(ours, verls, rtol=TOLERANCE, atol=TOLERANCE)

    return compare


@pytest.fixture
def report_measured() -> Callable[[str, str], None]:
    """Show a measured figure at the end of the run."""

    def report(name: str, figure: str) -> None:
        _measured[name] = figure

    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures that docs/methods/verl.md and docs/generation.md quote."""
    if _largest_differences:
        terminalreporter.section("largest difference to verl, |ours - verl's| / (1 + |verl's|), float64")
        for name, difference in sorted(_largest_differences.items()):
            terminalreporter.write_line(f"{difference:8.1e}  {name}")
    if _measured:
        terminalreporter.section("measured")
        for name, figure in _measured.items():
            terminalreporter.write_line(f"{name}: {figure}")
