"""Components in files of the user's, which are code of their own: it runs in this process, as the project's does.

One file is the whole component, so that its bytes are its version.
"""

import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import fields
from hashlib import sha256
from importlib.abc import ExecutionLoader
from importlib.util import decode_source, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from evals.core.errors import NotAccepted, UserError, first_line, limited_time
from evals.core.files import fingerprint, write_bytes
from evals.core.manifest import Manifest, hash_files
from evals.core.run_spec import COMPONENT_FILE
from rlvr.methods.parameters import Component, components_of

_INSTALLED = tuple(map(str, {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}))
_PACKAGES = ("evals", "rlvr")
_SECONDS = 60.0
"""Seconds of the processor that importing a file may take."""


def read_component(kind: str, file: str, name: str) -> type[Component]:
    """Import ``file``, and find its component of that kind and name; :class:`NotAccepted` says what is wrong."""
    of_kind = components_in(Path(file)).get(kind, {})
    if name not in of_kind:
        words = kind.replace("_", " ")
        holds = ", ".join(of_kind) or f"a file with a class that has @component({name!r}) and is of kind {words}"
        raise NotAccepted(f"is {name!r}, and {file} has no {words} of that name", holds, "name")
    return of_kind[name]


def components_in(path: Path) -> Mapping[str, Mapping[str, type[Component]]]:
    """Import a file, and list its components: kind -> name -> class."""
    source = read_source(path)
    digest = sha256(source).hexdigest()
    if digest not in _FILES:
        declared: dict[str, dict[str, type[Component]]] = {}
        for component in components_of(_module(source, str(path), f"rlvr_component_{digest[:16]}")):
            _require_complete(component, str(path))
            declared.setdefault(component.kind, {})[component.name] = component
        _FILES[digest] = declared
    return _FILES[digest]


def read_source(path: Path) -> bytes:
    """Read a file of components; :class:`NotAccepted` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotAccepted(f"is {path}: {error.strerror}", "a Python file", "file") from None


def copy_component(file: Path, out: Path) -> None:
    """Copy a file of components into the directory ``out``, which is named after its bytes."""
    source = file.read_bytes()
    digest = sha256(source).hexdigest()
    if not digest.startswith(out.name):
        raise UserError(f"{file}: was changed since the study was planned; start it again")
    write_bytes(copy := out / COMPONENT_FILE, source)
    # The user's file has the bytes of the copy, wherever it lies, so it is no input.
    parameters = {"sha256": digest}
    Manifest("component", {}, hash_files(out, copy), parameters, fingerprint(parameters), {"name": file.name}).write(
        out / "manifest.json"
    )


def component_copy(file: Path) -> Path:
    """Name the results' copy of a file of components, in a directory named after its bytes."""
    return Path("results/components") / sha256(read_source(file)).hexdigest()[:16] / COMPONENT_FILE


class _Loader(ExecutionLoader):
    """The loader of one file from its bytes, which leaves no compiled copy beside it."""

    def __init__(self, source: bytes, path: str) -> None:
        self.source, self.path = source, path

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_source(self, fullname: str) -> str:
        return decode_source(self.source)


_FILES: dict[str, Mapping[str, Mapping[str, type[Component]]]] = {}
"""What was imported, by the digest of its bytes: a copy of a file has the same classes."""


def _require_complete(component: type[Component], path: str) -> None:
    """Check what importing does not: that the class computes something, and what its fields are."""
    if missing := ", ".join(sorted(getattr(component, "__abstractmethods__", ()))):
        message, accepted = f"lacks {missing}", "a class that defines what its base leaves open"
    elif others := [field.name for field in fields(component) if "description" not in field.metadata]:
        message, accepted = f"has the field {others[0]}", f'{others[0]}: TYPE = hyper_parameter(DEFAULT, "what it is")'
    else:
        try:
            component()
        except Exception as error:  # of an __init__ or another method of the user's
            message = f"cannot be made: {type(error).__name__}: {first_line(error)}"
            accepted = 'hyper-parameters as fields, NAME: TYPE = hyper_parameter(DEFAULT, "what it is"); no __init__'
        else:
            return
    raise NotAccepted(f"is {path}, whose {component.__name__} {message}", accepted, "file")


def _module(source: bytes, path: str, name: str) -> ModuleType:
    spec = spec_from_loader(name, loader := _Loader(source, path))
    assert spec is not None
    module, before = module_from_spec(spec), set(sys.modules)
    sys.modules[name] = module  # where dataclasses look up the types of fields
    try:
        with limited_time(_SECONDS, f"computed for {_SECONDS:g} seconds without an end"):
            loader.exec_module(module)
    except BaseException as error:  # such as SystemExit, or one of the file's own
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        words = (isinstance(error, SyntaxError) and error.msg) or first_line(error)
        where, accepted = f"{path}, line {line}" if line else path, ""
        if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]):
            beside = [name for name in (package, f"{package}.py") if Path(path).with_name(name).exists()]
            if beside:
                accepted = f"one file that imports installed packages alone; {beside[0]} beside it is not imported"
        raise NotAccepted(f"is {where}: {type(error).__name__}: {words}", accepted, "file") from None
    for other in sorted(set(sys.modules) - before - {name}):
        file = getattr(sys.modules[other], "__file__", None)
        if file and other.partition(".")[0] not in _PACKAGES and not str(Path(file).resolve()).startswith(_INSTALLED):
            del sys.modules[name], sys.modules[other]  # so that the next attempt finds it again
            message = f"is {path}, which imports {other} of {file}: a change there would train nothing again"
            raise NotAccepted(message, "a file that imports installed packages alone", "file")
    return module
