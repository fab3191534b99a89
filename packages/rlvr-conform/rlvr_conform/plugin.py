"""The pytest plugin: ``pytest --conform trl`` has a test for each objective that the trainer offers."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr_conform.cases import CASES
from rlvr_conform.report import described
from rlvr_conform.trainer import Process, UserError, adapter_of, python_of
from rlvr_conform.verdicts import Finding, try_losses

OBJECTIVES = [*(case.name for case in CASES), "advantages"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    text = (
        "try the losses of trl, verl or others, or of FILE.py, an adapter; without files or folders these tests alone"
    )
    parser.getgroup("rlvr-conform").addoption("--conform", metavar="TRAINER", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Start the trainer's process in this Python, where it is asked for."""
    if trainer := config.getoption("--conform"):
        try:
            adapter = adapter_of(trainer)
            process = Process(adapter, python_of(adapter, Path(sys.executable), None))
        except UserError as error:
            raise pytest.UsageError(f"--conform: {error}") from None
        config.pluginmanager.register(Conformance(adapter, process), "rlvr-conform-trainer")
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args = []


class Conformance:
    """The tests of one trainer, and its process."""

    def __init__(self, adapter: Path, process: Process) -> None:
        self.adapter, self.process = adapter, process

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the tests, before -k and -m choose among all."""
        items += [
            Objective.from_parent(session, name=f"conform[{name}]", of=self, losses=[name]) for name in OBJECTIVES
        ]

    def pytest_unconfigure(self) -> None:
        """End the process."""
        self.process.__exit__()


class Objective(pytest.Item):
    """A test of one objective: passed where it is the paper's, under whatever convention."""

    def __init__(self, *, of: Conformance, losses: Sequence[str], **others: Any) -> None:
        super().__init__(**others)
        self.of, self.losses = of, losses

    def runtest(self) -> None:
        """Try the objective."""
        findings = list(try_losses(self.of.process, self.losses))
        self.add_report_section("call", "conform", "\n".join(_lines(findings)))
        if any(finding.verdict in ("differs", "depends on the cut", "fails") for finding in findings):
            raise NotThePapers("\n".join(_lines(findings)))
        if all(finding.verdict == "not offered" for finding in findings):
            pytest.skip("the trainer does not offer it, or the adapter does not call it")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show what differs, without the plugin's own calls."""
        if isinstance(excinfo.value, NotThePapers | UserError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Name the adapter as the place of the test."""
        return self.of.adapter, None, f"{self.of.adapter.stem} {self.name}"


class NotThePapers(Exception):
    """A loss that is another one than the paper's."""


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.objective}: {finding.verdict} {described(finding)}".rstrip()
