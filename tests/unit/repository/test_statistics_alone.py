"""The commands on files work from a wheel with the declared dependencies alone, and refuse a namesake of `evals`."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlvr.cli import main

ROOT = Path(__file__).resolve().parents[3]

RUN = """
import io, json, sys
wheel, allowed, commands = sys.argv[1], *map(json.loads, sys.argv[2:])
sys.path.insert(0, wheel)

class Undeclared:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in allowed["refused"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if __name__ == "__main__":
    sys.meta_path.insert(0, Undeclared())
    sys.stdin = io.TextIOWrapper(io.BytesIO(b'{"id": 1, "pred": "7", "gold": "7", "kind": "answer"}'))
    from rlvr.cli import main
    import evals
    assert evals.__file__.startswith(wheel), evals.__file__
    for words in commands:
        if main(words):
            sys.exit(f"failed: {words}")
    for words in ["methods"], ["init", "mine.yaml", "--model", "a/b"], ["plan", "--config", "mine.yaml"]:
        assert main(words) == 0, words  # of the configuration that the wheel carries
    sys.exit(main(["ui"]))
"""


def needed(names: list[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """The distributions that an installation of some of them brings along."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found:
            continue
        found.add(name)
        try:
            inner = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:  # of another platform
            continue
        wanted = requirement.extras or {""}
        waiting += [
            each for each in inner if each.marker is None or any(each.marker.evaluate({"extra": one}) for one in wanted)
        ]
    return found


def built(directory: Path) -> Path:
    """The wheel of this tree."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def commands_on_files(directory: Path) -> list[list[str]]:
    """Commands that read files, some of which are written to a directory; they are run there."""
    samples = [{"problem_id": n, "sample": k, "text": f"\\boxed{{{n % 3}}}"} for n in range(6) for k in range(2)]
    files = {"samples.jsonl": samples, "problems.jsonl": [{"id": n, "answer": str(n % 2)} for n in range(6)]}
    for name, rows in files.items():
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    graded = ["samples.jsonl", "--problems", "problems.jsonl", "--workers", "1"]
    logs = ROOT / "tests/unit/logs/files"
    return [
        ["--help"],
        ["grade", "--workers", "1"],
        ["score", *graded],
        ["audit", *graded],
        ["compare", str(logs / "inspect/mock-1"), str(logs / "inspect/mock-2"), "--score", "includes"],
        ["score", str(logs / "matharena/mock-1")],
        ["power", "--effect-sd", "0.15", "--sampling-variance", "0.3", "--problems", "30", "--samples", "32"],
    ]


def test_commands_on_files_need_the_declared_dependencies_alone(tmp_path: Path) -> None:
    """From a built wheel, and every other package that is installed here is hidden: torch, Snakemake, MLflow ..."""
    wheel = built(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = needed(project["dependencies"])
    owners = packages_distributions()
    refused = [
        name
        for name, distributions in owners.items()
        if not {re.sub(r"[-_.]+", "-", each).lower() for each in distributions} & declared
        and name not in ("rlvr", "evals")
    ]
    assert {"torch", "snakemake", "mlflow", "transformers", "matplotlib"} <= set(refused)
    commands = commands_on_files(tmp_path)
    script = tmp_path / "run.py"
    script.write_text(RUN)
    words = [json.dumps({"refused": refused}), json.dumps(commands)]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "wheel"), *words],
        cwd=tmp_path, env=variables, capture_output=True, text=True,
    )  # fmt: skip
    errors = [line[:32] for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert run.returncode == 2 and len(errors) == 1, run.stderr[-3000:]
    assert errors[0].startswith("error: this command needs")
    assert all(title in run.stdout for title in ("Scores", "Audit of the grades", "A against B"))


def test_the_other_package_named_evals_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    information = tmp_path / "evals-3.0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: evals\nVersion: 3.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["score", "x"]) == 2
    assert capsys.readouterr().err.startswith("error: the package evals 3.0.1 has the import name of ours")


def test_a_package_that_pythonpath_puts_before_ours_is_named_in_one_line(tmp_path: Path) -> None:
    for broken in ("raise ImportError('made for Python 3.6')", "import no_such_part_of_it", "__version__ = '1.0'"):
        (tmp_path / "numpy").mkdir(exist_ok=True)
        (tmp_path / "numpy/__init__.py").write_text(broken)
        variables = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "rlvr", "compare", "a.jsonl", "b.jsonl"]
        run = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
        assert run.stderr.startswith(f"error: PYTHONPATH: {tmp_path} has another numpy than this environment (")
        assert run.returncode == 2 and run.stderr.count("\n") == 1
