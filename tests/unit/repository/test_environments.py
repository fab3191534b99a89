"""Machines and shells that are not as one expects: each imitated, as far as it can be."""

from __future__ import annotations

import getpass
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Annotated

import pytest
from packaging.requirements import Requirement
from typer import Option

from evals.core.errors import UserError
from evals.grading.code import sandbox
from evals.grading.code.run import run_tests
from evals.grading.verdict import Reason
from rlvr import cli
from rlvr.cli import main
from rlvr.cli.command import Commands
from rlvr.study import launch
from rlvr.study.machine import require_past, require_records
from tests.commands import ended

ROOT = Path(__file__).resolve().parents[3]
_ECHO = '#!/bin/sh\necho ran: "$0" "$@"\ncommand -v python\n'


@pytest.mark.parametrize("name", ["Müller files", "it's mine", "a #1 idea", '"quoted" & $HOME'])
def test_a_clone_may_lie_anywhere(tmp_path: Path, name: str) -> None:
    clone = tmp_path / name
    clone.mkdir()
    for file in ("Makefile", "uv.lock", "pyproject.toml"):
        shutil.copy(ROOT / file, clone / file)
    python = clone / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(_ECHO)
    python.chmod(0o755)
    (clone / ".venv/complete").write_text(f"{clone}\n")
    for target, said in (
        ("smoke", "-m rlvr.study.launch"),
        ("status", "-m rlvr verify results"),
        ("test", "-m pytest"),
    ):
        answer = ended(["make", target], cwd=clone)
        assert answer.returncode == 0 and not answer.stderr, answer.stderr
        assert f"ran: .venv/bin/python {said}" in answer.stdout and str(python) in answer.stdout.splitlines()


def test_a_home_that_cannot_be_written_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file/home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # noted, so that what the code sets is taken back
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.chdir(tmp_path)
    launch._give_name_and_cache()
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / ".cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    launch._give_name_and_cache()
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / "mine")


def test_a_user_may_have_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")  # noted, so that a name given by the code is taken back
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    launch._give_name_and_cache()
    assert getpass.getuser() == str(os.getuid())


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "iso-8859-1"}])
def test_tables_are_printed_in_every_locale(tmp_path: Path, locale: dict[str, str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text("problem,correct\n" + "".join(f"p{number},{number % 2}\n" for number in range(40)))
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT), **locale}
    command = [sys.executable, "-m", "rlvr", "score", str(log), "--columns", "problem=problem,correct=correct"]
    answer = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert answer.returncode == 0 and b"50" in answer.stdout and b"Traceback" not in answer.stderr, answer.stderr
    refused = subprocess.run([*command, "--score", "–"], capture_output=True, env=environment, check=False)
    assert refused.returncode == 2 and refused.stderr.startswith(b"error: ")


def test_a_command_for_verl_says_which_one_a_run_of_the_local_engine_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text('{"training": {"micro_batch_size": 8}}')
    assert main(["verl", "validate", str(tmp_path / "run.json")]) == 2
    error = capsys.readouterr().err
    assert "is a run of the local engine" in error and f"`rlvr-bench train {tmp_path}/run.json`" in error


def test_windows_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert cli.main(["methods"]) == 2
    assert capsys.readouterr().err == "error: RLVR Bench needs Linux or macOS; accepted on Windows: the same in WSL 2\n"


def test_programs_need_no_directory_of_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sandbox.require_sandbox()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
    tests = {"kind": "stdin", "cases": [{"input": "1", "output": "2"}]}
    assert run_tests("print(1 + int(input()))", tests) is Reason.MATCH


def test_a_refusal_by_apparmor_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = tmp_path / "apparmor_restrict_unprivileged_userns"
    setting.write_text("1\n")
    monkeypatch.setattr(sandbox, "_APPARMOR", setting)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "AppArmor may refuse it: the profile in docs/grading.md allows it" in sandbox._refusal("uid map")
    assert "profile bwrap /usr/bin/bwrap" in (ROOT / "docs/grading.md").read_text()
    setting.write_text("0\n")
    assert "AppArmor" not in sandbox._refusal("uid map")


def test_a_limit_on_processes_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox.require_sandbox()
    verifier = tmp_path / "mine.py"
    verifier.write_text("def verify(problem, response):\n    return 1\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 1, "pred": "1", "gold": "1"}\n')))

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    assert cli.main(["grade", "--workers", "1", "--verifier", str(verifier)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1


def test_files_of_the_future_are_named_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a clock was set back: Snakemake deletes outputs that are older than their inputs, when they are made."""
    monkeypatch.chdir(tmp_path)
    require_past([])
    path = tmp_path / "results/comparisons.manifest.json"
    path.parent.mkdir()
    path.write_text("[]")
    require_past(["results/comparisons.manifest.json"])
    os.utime(path, (time.time() + 3600,) * 2)
    with pytest.raises(UserError, match=r"1 file of the future, such as results/comparisons\.") as refused:
        require_past(["results/comparisons.manifest.json"])
    cure = str(refused.value).rpartition(": ")[2]
    subprocess.run(cure, shell=True, check=True, cwd="/")  # wherever the study was started from
    require_past(["results/comparisons.manifest.json"])


def test_a_directory_in_place_of_a_record_of_snakemake_is_named(tmp_path: Path) -> None:
    require_records(tmp_path / "none")
    (tmp_path / "@directory_of_a_long_name").mkdir()
    (tmp_path / "cmVzdWx0cw==").write_text("{}")
    require_records(tmp_path)
    (tmp_path / "cnVucw==").mkdir()
    with pytest.raises(UserError, match="cnVucw==: is a directory, and no record"):
        require_records(tmp_path)


def test_output_of_another_kind_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a notebook's, which has no encoding of its own."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert cli.main(["methods", "show", "dapo"]) == 0


# The commands on files work from a wheel with the declared dependencies alone, and refuse a namesake of `evals`.

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
    run = ended([sys.executable, str(script), str(tmp_path / "wheel"), *words], cwd=tmp_path, env=variables)
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
        run = ended(command, cwd=ROOT, env=variables)
        assert run.stderr.startswith(f"error: PYTHONPATH: {tmp_path} has another numpy than this environment (")
        assert run.returncode == 2 and run.stderr.count("\n") == 1


def test_this_environment_in_pythonpath_is_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))
    assert cli._shadowing(ImportError("no numpy")) is None


def test_an_empty_word_of_the_command_line_stays(capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands()

    @commands.add("say")
    def _(word: Annotated[str, Option(help="a word")], several: Annotated[list[str], Option(help="words")]) -> None:
        print(repr(word), several)

    commands(["--word", "", "--several", "x", "y", ""], standalone_mode=False)
    assert capsys.readouterr().out == "'' ['x', 'y', '']\n"
