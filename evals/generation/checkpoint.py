"""Load a Hugging Face checkpoint directory for sampling, without importing transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file

from evals.core.errors import UserError
from evals.core.files import read_json
from evals.generation.qwen3 import Qwen3Config, Qwen3Decoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor


def load_tokenizer(directory: Path) -> Tokenizer:
    """The checkpoint's fast tokenizer.

    Raises:
        UserError: the directory holds no readable ``tokenizer.json``.
    """
    from tokenizers import Tokenizer

    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file; {directory} is not a Hugging Face checkpoint with a fast tokenizer")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare Exception on a damaged file
        raise UserError(f"{path}: is not a tokenizer ({error})") from error


def load_weights(directory: Path, device: str) -> dict[str, Tensor]:
    """All tensors of the checkpoint's safetensors files.

    Raises:
        UserError: there are none, or one is damaged.
    """
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise UserError(f"{directory}: holds no .safetensors file; it is not a Hugging Face checkpoint")
    weights: dict[str, Tensor] = {}
    for path in paths:
        try:
            weights |= load_file(path, device=device)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: is damaged ({error})") from error
    return weights


def load_decoder(directory: Path, device: str) -> Qwen3Decoder:
    """The checkpoint as a decoder.

    Raises:
        UserError: not a checkpoint, damaged, or of an architecture that the local sampler does not know.
    """
    config_path = directory / "config.json"
    config = Qwen3Config.from_json(read_json(config_path), str(config_path))
    weights = {name: weight.float() for name, weight in load_weights(directory, device).items()}
    return Qwen3Decoder(config, weights)


def end_token_id(directory: Path) -> int:
    """The id of the token that ends a response, from the checkpoint's ``config.json``.

    Raises:
        UserError: there is not exactly one.
    """
    path = directory / "config.json"
    value = read_json(path).get("eos_token_id")
    if not isinstance(value, int):
        raise UserError(f"{path}: eos_token_id is {value!r}; the local sampler needs a single integer")
    return value


def end_token_ids(directory: Path) -> list[int]:
    """Every token that ends a response: those of ``config.json`` and of ``generation_config.json``, in order.

    A chat model often ends a turn with another token than a text; only the second file then names it.

    Raises:
        UserError: there is none.
    """
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = directory / name
        value = read_json(path).get("eos_token_id") if path.is_file() else None
        found |= {value} if isinstance(value, int) else set(value or ())
    if not found:
        raise UserError(f"{directory}: config.json and generation_config.json name no eos_token_id")
    return sorted(found)


def resolved_dtype(directory: Path, dtype: str) -> str:
    """``dtype``, or for ``auto`` the one that the checkpoint was saved in."""
    if dtype != "auto":
        return dtype
    config = read_json(directory / "config.json")
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def context_length(directory: Path, limit: int | None) -> int:
    """Longest prompt and response together: the model's, or ``limit`` if that is shorter.

    Raises:
        UserError: the checkpoint does not say, and no limit is given.
    """
    config = read_json(directory / "config.json")
    own = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    lengths = [length for length in (own, limit) if isinstance(length, int)]
    if not lengths:
        raise UserError(f"{directory}/config.json: lacks max_position_embeddings; accepted: evaluation.max_model_len")
    return min(lengths)
