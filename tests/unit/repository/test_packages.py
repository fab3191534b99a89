"""The seam by which packages beside the core give rlvr-bench their commands."""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
import typer

from rlvr.cli import application, main

ROOT = Path(__file__).resolve().parents[3]


def test_every_package_of_the_repository_is_installed_and_lists_its_commands() -> None:
    packages = sorted(path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml"))
    points = {point.dist.name: point for point in entry_points(group=application.GROUP) if point.dist}
    assert packages == sorted(points) == sorted(application.PACKAGES)
    for package, names in application.PACKAGES.items():
        known: dict[str, Any] = {}
        application.add_packages(known, [points[package]])
        added = {name for name, command in known.items() if command.callback or hasattr(command, "commands")}
        assert set(names) == added


def test_a_command_whose_package_is_not_installed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = EntryPoint("conform", "no_such_module.cli:app", application.GROUP)
    monkeypatch.setattr(application, "entry_points", lambda **_: [absent])
    for words in (["conform", "trl", "--losses", "dapo"], ["conform", "--help"]):
        assert main(words) == 2
        error, install = capsys.readouterr().err, "pip install rlvr-conform"
        assert error == f"error: conform is a command of the package rlvr-conform, which is not installed: {install}\n"
    assert main(["--help"]) == 0
    assert "conform       (not installed: pip install rlvr-conform)" in capsys.readouterr().out


def test_a_group_of_a_package_joins_the_cores_group_of_that_name() -> None:
    package, inner = typer.Typer(), typer.Typer()
    inner.command("extra")(lambda: None)
    inner.command("more")(lambda: None)
    package.add_typer(inner, name="tokens")
    core = application.commands()
    before = set(core.commands["tokens"].commands)

    class Point(EntryPoint):
        def load(self) -> Any:
            return package

    application.add_packages(core.commands, [Point("x", "y", "z")])
    assert set(core.commands["tokens"].commands) == before | {"extra", "more"}


def test_a_job_of_a_study_loads_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "entry_points", lambda **_: pytest.fail("packages are looked for"))
    assert set(application.commands(["train", "run.json"]).commands) == {"train", "sample", "verl"}
