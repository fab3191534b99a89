"""The seam by which packages beside the core give rlvr-bench their commands."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
import typer

from evals.core.files import sha256_file
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


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    absent = EntryPoint("conform", "no_such_module.cli:app", application.GROUP)
    monkeypatch.setattr(application, "entry_points", lambda **_: [absent])
    for words in (["conform", "trl", "--losses", "dapo"], ["conform", "--help"]):
        assert main(words) == 2
        error, install = capsys.readouterr().err, "pip install rlvr-conform"
        assert error == f"error: conform is a command of the package rlvr-conform, which is not installed: {install}\n"
    assert main(["--help"]) == 0
    assert "conform       (not installed: pip install rlvr-conform)" in capsys.readouterr().out


def test_help_has_two_spellings_and_is_named_where_a_word_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == main(["judge", "-h"]) == 0
    assert "--margin" in capsys.readouterr().out
    assert main(["judge"]) == 2
    assert capsys.readouterr().err == "error: FILE: is missing; rlvr-bench judge --help lists what is accepted\n"
    for option, word, said in (
        ("--seeds", "x", "should be a valid integer"),
        ("--margin", "-1", "should be greater than or equal to 0.01"),
    ):
        assert main(["judge", "file.py", option, word]) == 2
        assert capsys.readouterr().err.startswith(f"error: {option}: {said}; rlvr-bench judge --help")
    assert main(["families", "a", "--out"]) == main(["eval", "--prompt", "chatty"]) == 2
    assert "--prompt: 'chatty' is not one of 'chat', 'base'; rlvr-bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [ImportError("no name x"), SyntaxError("bad"), AttributeError("none"), OSError("disk")]
)
def test_a_package_that_fails_when_it_is_loaded_costs_its_own_commands_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    class Broken(EntryPoint):
        def load(self) -> Any:
            raise error

    (known,) = (point for point in entry_points(group=application.GROUP) if point.dist and point.name == "conform")
    broken = Broken("conform", "x:y", application.GROUP)._for(known.dist)  # type: ignore[attr-defined]
    monkeypatch.setattr(application, "entry_points", lambda **_: [broken, Broken("else", "x:y", application.GROUP)])
    for name in ("conform", "conform-page", "else"):
        assert main([name, "--x"]) == 2
        assert f"cannot be loaded: {type(error).__name__}: {error}\n" in capsys.readouterr().err
    assert main(["--help"]) == 0 and main(["methods", "list", "--help"]) in (0, 2)
    assert "cannot be loaded" in capsys.readouterr().out


def test_nothing_moves_the_cursor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;owned\x07 \x9b2J \u202e \r \x7f \U000e0001 \ud800 \u2028 é 中 \U0001f600"
    package = typer.Typer()

    @package.command("say")
    def say() -> None:
        print(json.dumps({"said": hostile}, ensure_ascii=False))
        typer.echo(hostile)
        print(hostile, file=sys.stderr)

    @package.command("other")
    def other() -> None:
        """Make it a group."""

    class Point(EntryPoint):
        def load(self) -> Any:
            return package

    monkeypatch.setattr(application, "entry_points", lambda **_: [Point("x", "y", "z")])
    assert main(["say"]) == 0
    shown = capsys.readouterr()
    for text in shown:
        assert all(char.isprintable() or char in "\n\r" for char in text) and "\r" not in shown.out
        assert "é 中 \U0001f600" in text
    assert json.loads(shown.out.splitlines()[0])["said"] == hostile
    assert main(["no\x1b[2Jthing"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_job_of_a_study_loads_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "entry_points", lambda **_: pytest.fail("packages are looked for"))
    assert set(application.commands(["train", "run.json"]).commands) == {"train", "sample", "verl"}


# What is released is the same, byte for byte, wherever and whenever it is built.

PACKAGED = ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "rlvr", "evals", "workflow", "config")


def build(place: Path, now: int) -> dict[str, str]:
    """Name -> hash of the wheel and the source archive of a copy whose files were all written at one time."""
    project = place / "project"
    for name in PACKAGED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, project / name)
        else:
            project.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, project / name)
    for path in project.rglob("*"):
        os.utime(path, (now, now))
    # As `python -m build` does: the backend of pyproject.toml, which is in the lock file, makes both.
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(place / "dist")]
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True)
    return {path.name: sha256_file(path) for path in (place / "dist").iterdir()}


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = build(tmp_path / "a", 1_600_000_000), build(tmp_path / "elsewhere" / "b", 1_700_000_000)
    assert sorted(Path(name).suffix for name in first) == [".gz", ".whl"]
    assert first == second
