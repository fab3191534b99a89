"""Load a Hugging Face checkpoint directory for sampling, without importing transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file

from evals.artifacts import read_json
from evals.errors import UserError
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
    return Qwen3Decoder(config, load_weights(directory, device))


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
