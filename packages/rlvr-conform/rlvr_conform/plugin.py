"""The pytest plugin: ``pytest --conform trl`` runs the test below for each objective."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr_conform.cases import CASES
from rlvr_conform.report import described
from rlvr_conform.trainer import Process, UserError, adapter_of, python_of
from rlvr_conform.verdicts import GOOD, try_losses


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    text = "try the losses of trl, verl and others, or of FILE.py, an adapter; alone, unless files or folders are named"
    parser.getgroup("rlvr-conform").addoption("--conform", metavar="TRAINER", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Add the test below where a trainer is named, in the place of what pytest would look for by itself."""
    if config.getoption("--conform"):
        named = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
        config.args = list(dict.fromkeys([*named, __file__]))


@pytest.fixture(scope="session")
def conform_trainer(request: pytest.FixtureRequest) -> Iterator[Process]:
    """The trainer's process."""
    trainer = request.config.getoption("--conform")
    try:
        adapter = adapter_of(trainer)
        with Process(adapter, python_of(adapter, Path(sys.executable), None)) as process:
            yield process
    except UserError as error:
        pytest.exit(f"--conform {error}", pytest.ExitCode.USAGE_ERROR)


@pytest.mark.parametrize("objective", [*(case.name for case in CASES), "advantages"])
def test_conform(conform_trainer: Process, objective: str) -> None:
    """The trainer's gradient is the paper's, under whatever convention."""
    findings = list(try_losses(conform_trainer, [objective]))
    words = "\n".join(f"{finding.objective}: {finding.verdict} {described(finding)}" for finding in findings)
    if all(finding.verdict == "not offered" for finding in findings):
        pytest.skip(words)
    if any(finding.verdict not in GOOD for finding in findings):
        pytest.fail(words, pytrace=False)
    print(words)  # pytest -rP shows it
