"""A Hugging Face checkpoint as a base model of a study: fetched at a pinned revision or linked, and hashed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_file
from evals.core.manifest import Manifest
from evals.generation.checkpoint import load_tokenizer

_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt")
"""What is fetched and hashed: weights in safetensors, never pickles, never code."""


def import_model(model: str, revision: str | None, out: Path) -> None:
    """Make ``out/checkpoint`` a link to the checkpoint, and write a manifest with the hash of every file in it.

    Args:
        model: a directory, or an id of the Hugging Face Hub.
        revision: commit of the Hub's repository; None with a directory.
        out: directory of the base model.

    Raises:
        UserError: no such directory, the Hub cannot be reached, or the checkpoint has no safetensors or fast tokenizer.
    """
    directory = Path(model) if revision is None else _fetch(model, revision)
    files = checkpoint_files(directory)
    load_tokenizer(directory)
    out.mkdir(parents=True, exist_ok=True)
    link = out / "checkpoint"
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise UserError(f"{link}: is the checkpoint of another base model; delete it, or use another name")
    os.symlink(directory.resolve(), link)
    outputs = {f"checkpoint/{path.name}": sha256_file(path) for path in files}
    parameters = {"source": "hugging_face", "model": model, "revision": revision}
    Manifest(
        kind="base_model",
        inputs={},
        outputs=outputs,
        parameters=parameters,
        fingerprint=fingerprint({"parameters": parameters, "outputs": outputs}),
    ).write(out / "manifest.json")


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that a checkpoint in Hugging Face format is made of.

    Raises:
        UserError: no such directory, or it lacks weights in safetensors or a configuration.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; accepted: a Hugging Face checkpoint")
    files = sorted({path for pattern in _PATTERNS for path in directory.glob(pattern) if path.is_file()})
    if not any(path.suffix == ".safetensors" for path in files):
        raise UserError(f"{directory}: holds no .safetensors file; accepted: weights in safetensors")
    if not (directory / "config.json").is_file():
        raise UserError(f"{directory}: holds no config.json; accepted: a Hugging Face checkpoint")
    return files


def _fetch(identifier: str, revision: str) -> Path:
    """The Hub's files in its cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise UserError(f"revision: is {revision!r}; accepted: the 40 hexadecimal digits of a commit")
    try:
        return Path(snapshot_download(identifier, revision=revision, allow_patterns=list(_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"model {identifier} at {revision[:12]}: cannot be fetched from the Hugging Face Hub "
            f"({type(error).__name__}); accepted: a model there and a network that reaches it, or a local path"
        ) from error
