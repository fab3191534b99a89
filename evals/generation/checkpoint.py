"""Checkpoints in Hugging Face format: described, loaded without transformers, and imported as base models."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from evals.core.errors import InvalidInput, UserError, first_line
from evals.core.files import fingerprint, read_json, sha256_file
from evals.core.manifest import Manifest, verify_outputs
from evals.core.numbers import Count, Index, Positive
from evals.core.record import ExtensibleRecord
from evals.core.run_spec import Service

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from evals.generation.decoder import Decoder
    from evals.generation.decoder_model import DecoderModel

_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt")
"""Files that are fetched and hashed: weights in safetensors, never pickles, never code."""
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
"""The names that families of models have for the longest sequence; some have none, as BLOOM."""
UNLIMITED = 1 << 30
"""The context, in tokens, of a model without a longest sequence."""
_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""The types of weights, by safetensors' names, that can be NaN or infinite."""


_Size = Annotated[Count, Field(le=2**24)] | None
"""A size of a model, far above any that there is: what follows from it is worked out before the weights are read."""


class _Rotation(ExtensibleRecord):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Count | None = None


class _Configuration(ExtensibleRecord):
    """The keys of ``config.json`` and ``generation_config.json`` that are read here; others are transformers' own."""

    model_type: str | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    eos_token_id: Index | tuple[Index, ...] | None = None
    num_hidden_layers: Annotated[Count, Field(le=10_000)] | None = None
    hidden_size: _Size = None
    intermediate_size: _Size = None
    vocab_size: _Size = None
    num_attention_heads: _Size = None
    num_key_value_heads: _Size = None
    head_dim: _Size = None
    max_position_embeddings: _Size = None
    layer_types: tuple[str, ...] | None = None
    rms_norm_eps: Positive | None = None
    rope_theta: Positive | None = None
    rope_parameters: _Rotation | None = None
    rope_scaling: _Rotation | None = None
    text_config: dict[str, Any] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A model in Hugging Face format. Each of its files is read when it is needed."""

    directory: Path  # of ``config.json``, ``tokenizer.json`` and the weights
    hashes: Mapping[str, str] = field(default_factory=dict)  # path -> SHA-256 of its files, where they are known

    @classmethod
    def of(cls, directory: Path) -> Checkpoint:
        """Identify the checkpoint of a run or base model, or a directory in Hugging Face format, by its bytes."""
        if (directory / "server.json").is_file():
            return ServedModel.of(directory)
        if (directory / "manifest.json").is_file() and (directory / "checkpoint").is_dir():
            kind = "base_model" if directory.parent.name == "base" else "run"
            outputs = verify_outputs(directory / "manifest.json", kind).outputs
            files = {str(directory / name): sha for name, sha in outputs.items() if name.startswith("checkpoint/")}
            return cls(directory / "checkpoint", files)
        return cls(directory, {str(path): sha256_file(path) for path in checkpoint_files(directory)})

    @property
    def identity(self) -> str:
        """Fingerprint of the files' names and bytes, wherever they are."""
        return fingerprint({Path(path).name: digest for path, digest in self.hashes.items()})

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The content of ``config.json``."""
        return _read_configuration(self.directory / "config.json")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The fast tokenizer."""
        return load_tokenizer(self.directory)

    @cached_property
    def end_tokens(self) -> list[int]:
        """Every token that ends a response, from ``config.json`` and ``generation_config.json``, in order.

        A chat model often ends a turn with another token than a text; only the second file then names it.
        """
        ends: set[int] = set()
        for content in (self.config, _read_configuration(self.directory / "generation_config.json", optional=True)):
            value = content.get("eos_token_id")
            ends |= {value} if isinstance(value, int) else set(value or ())
        if not ends:
            raise UserError(f"{self.directory}: config.json and generation_config.json name no eos_token_id")
        return sorted(ends)

    def dtype(self, wanted: str) -> str:
        """``wanted``, or for ``auto`` the type that the checkpoint was saved in."""
        if wanted != "auto":
            return wanted
        return str(self.config.get("dtype") or self.config.get("torch_dtype") or "float32")

    def context_length(self, limit: int | None) -> int:
        """Longest prompt and response together: the model's, or ``limit`` if that is shorter."""
        parts = (self.config, self.config.get("text_config") or {})
        named = (part.get(key) for key in _CONTEXT for part in parts)
        length = next((length for length in named if isinstance(length, int)), UNLIMITED)
        return length if limit is None else min(length, limit)

    def special_token(self, role: str) -> int | None:
        """The id of the token that the tokenizer's configuration names for a role, such as ``bos_token``, if any."""
        token = _read_object(self.directory / "tokenizer_config.json", optional=True).get(role)
        name = token.get("content") if isinstance(token, dict) else token
        if not isinstance(name, str) or name.encode("utf-8", "ignore").decode() != name:  # half a surrogate pair
            return None
        identifier: int | None = self.tokenizer.token_to_id(name)
        return identifier

    @property
    def end_token(self) -> int:
        """The token that ends a text by the tokenizer's configuration; the first of all if that names none."""
        named = self.special_token("eos_token")
        return self.end_tokens[0] if named is None else named

    @cached_property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the model's weights, from the files' headers.

        UserError if a file is cut off, the index names what is not there, or a Llama or Qwen lacks a weight or has one
        of another shape. What other architectures have is known when transformers loads them.
        """
        from evals.generation.architecture import DecoderConfig, UnknownArchitecture  # here, for it imports torch

        shapes = _read_shapes(self.directory)
        try:
            expected = DecoderConfig.from_json(self.config, str(self.directory / "config.json")).shapes
        except UnknownArchitecture:
            return shapes
        others = {name: (shapes[name], shape) for name, shape in expected.items() if shapes.get(name, shape) != shape}
        refuse_incomplete(self.directory, expected.keys() - shapes.keys(), others)
        return {name: shape for name, shape in shapes.items() if name in expected}

    def require_numbers(self) -> None:
        """UserError if a weight is NaN or infinite: not every backend would say so, and its responses mean nothing."""
        from safetensors import safe_open  # here, for it imports torch

        self.shapes  # noqa: B018  (files that are not whole are refused)
        for path in sorted(self.directory.glob("*.safetensors")):
            with safe_open(path, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118  (it is no mapping)
                    if weights.get_slice(name).get_dtype() in _FLOATS:
                        weight = weights.get_tensor(name)
                        # torch asks no weight of eight bits.
                        if not bool((weight.float() if weight.itemsize == 1 else weight).isfinite().all()):
                            raise InvalidInput(str(path), name, "is NaN or infinite", "an intact checkpoint")

    def decoder(self, device: str, dtype: str = "float32", head_dtype: str | None = None) -> Decoder:
        """The model as the local sampler's decoder."""
        return self.model(device, dtype, head_dtype=head_dtype).decoder()

    def model(
        self,
        device: str,
        dtype: str = "float32",
        gradient_checkpointing: bool = False,
        share_prompts: bool = False,
        head_dtype: str | None = None,
    ) -> DecoderModel:
        """The model as the local trainer's: weights in float32, passes in ``dtype``, the head in ``head_dtype``."""
        import torch  # here: planning reads a checkpoint's tokenizer alone
        from safetensors.torch import load_file

        from evals.generation.architecture import DecoderConfig
        from evals.generation.decoder_model import DecoderModel

        config = DecoderConfig.from_json(self.config, str(self.directory / "config.json"))
        shapes = self.shapes
        weights: dict[str, Tensor] = {}
        for path in sorted(self.directory.glob("*.safetensors")):
            weights |= load_file(path, device=device)
        # Some checkpoints hold the frequencies of rotary embedding too, or a head that is the embedding.
        left_over = [name for name in weights.keys() - shapes if not name.endswith((".inv_freq", "lm_head.weight"))]
        if left_over:
            say_left_over(self.directory, left_over)
        whole = {name: weight.float() for name, weight in weights.items() if name in shapes}
        types = getattr(torch, dtype), getattr(torch, head_dtype or dtype)
        return DecoderModel(config, whole, *types, gradient_checkpointing, share_prompts)


@dataclass(frozen=True)
class ServedModel(Checkpoint):
    """A model that a server has; none of its files are here, and its address is no part of what it is."""

    @classmethod
    def of(cls, directory: Path) -> ServedModel:
        """Read what :func:`evals.generation.served.write_service` wrote."""
        verify_outputs(directory / "manifest.json", "base_model")
        return cls(directory)

    @cached_property
    def service(self) -> Service:
        """The address of the model, and its name there."""
        return Service.read(self.directory / "server.json")

    @property
    def parameters(self) -> dict[str, Any]:
        """What identifies the model, as far as that is known."""
        service = self.service
        return {"served_model": service.model, **({"extra_body": service.extra_body} if service.extra_body else {})}


def _read_object(path: Path, optional: bool = False) -> Mapping[str, Any]:
    content = {} if optional and not path.is_file() else read_json(path)
    if not isinstance(content, dict):
        raise InvalidInput(str(path), "", "is no JSON object", "a Hugging Face checkpoint")
    return content


def _read_configuration(path: Path, optional: bool = False) -> Mapping[str, Any]:
    content = _read_object(path, optional)
    _Configuration.parse(content, str(path))
    return content


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load a checkpoint's fast tokenizer."""
    from tokenizers import Tokenizer

    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file; {directory} is not a Hugging Face checkpoint with a fast tokenizer")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare Exception on a damaged file
        raise UserError(f"{path}: is not a tokenizer ({error})") from error


def _read_shapes(directory: Path) -> dict[str, list[int]]:
    """Read the names and shapes of the weights, not the weights; see :attr:`Checkpoint.shapes`."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, dict[str, list[int]]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, "np") as weights:
                names = weights.keys()
                shapes[path.name] = {name: weights.get_slice(name).get_shape() for name in names}
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: is damaged or cut off ({first_line(error)}); fetch it again") from error
    if not shapes:
        raise UserError(f"{directory}: holds no .safetensors file; it is not a Hugging Face checkpoint")
    index = directory / "model.safetensors.index.json"  # of shards; it may be left from before they were joined
    places = {} if "model.safetensors" in shapes else _read_object(index, optional=True).get("weight_map", {})
    if not isinstance(places, dict):
        raise InvalidInput(str(index), "weight_map", f"is {places!r}", "the file of each weight, by its name")
    for name, file in places.items():
        if name not in shapes.get(str(file), {}):
            why = "does not have it" if str(file) in shapes else "is not there"
            raise InvalidInput(str(index), f"weight_map.{name}", f"is {file!r}, which {why}")
    return {name: shape for of_file in shapes.values() for name, shape in of_file.items()}


def refuse_incomplete(
    directory: Path, missing: Collection[str], others: Mapping[str, tuple[Sequence[int], Sequence[int]]]
) -> None:
    """Raise a UserError if weights are ``missing``, or ``others`` have a shape that is not the model's (the second)."""
    if missing:
        raise UserError(f"{directory}: lacks {len(missing)} of the model's weights, such as {min(missing)}")
    for name, (shape, expected) in others.items():
        raise InvalidInput(str(directory), name, f"has the shape {list(shape)}", f"{list(expected)}, by config.json")


def say_left_over(directory: Path, names: Collection[str]) -> None:
    """Print in a line that a checkpoint has weights which are not the model's."""
    print(f"{directory}: {len(names)} weights are not the model's, such as {min(names)}", flush=True)


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that a checkpoint in Hugging Face format is made of."""
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; accepted: a Hugging Face checkpoint")
    files = sorted({path for pattern in _PATTERNS for path in directory.glob(pattern) if path.is_file()})
    if not any(path.suffix == ".safetensors" for path in files):
        raise UserError(f"{directory}: holds no .safetensors file; accepted: weights in safetensors")
    if not (directory / "config.json").is_file():
        raise UserError(f"{directory}: holds no config.json; accepted: a Hugging Face checkpoint")
    return files


def file_with_code(directory: Path) -> Path | None:
    """Return the first file by which a checkpoint brings code: Python, or a configuration with ``auto_map``."""
    for file in sorted([*directory.glob("*config.json"), *directory.glob("*.py")]):
        if file.suffix == ".py" or "auto_map" in _read_object(file):
            return file
    return None


def _say_what_is_unknown(checkpoint: Checkpoint) -> None:
    """Say in one line that the model brings code, and that transformers does not know it; others may, as vLLM."""
    from transformers import CONFIG_MAPPING, __version__

    kind, file = checkpoint.config.get("model_type"), file_with_code(checkpoint.directory)
    code = "" if file is None else f"{file}: brings code of its own, which is never run; "
    if kind not in CONFIG_MAPPING:
        message = f"{checkpoint.directory}/config.json: model_type is {kind!r}, which transformers {__version__} does"
        print(f"{code}{message} not know: neither it nor the local engine computes such a model", flush=True)
    elif code:
        print(f"{code}the model is computed as {kind!r} of transformers {__version__}", flush=True)


def import_model(model: str, out: Path, revision: str | None = None) -> None:
    """Link or fetch a Hugging Face checkpoint, and hash it.

    Args:
        model: directory, or id on the Hugging Face Hub.
        revision: commit, branch or tag on the Hub; none with a directory.
    """
    directory = Path(model) if revision is None else _fetch(model, revision)
    files = checkpoint_files(directory)
    checkpoint = Checkpoint(directory)
    # Read here, so that what is missing is said before any work.
    checkpoint.shapes, checkpoint.tokenizer, checkpoint.end_tokens  # noqa: B018
    _say_what_is_unknown(checkpoint)
    out.mkdir(parents=True, exist_ok=True)
    link = out / "checkpoint"
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise UserError(f"{link}: is the checkpoint of another base model; delete it, or use another name")
    os.symlink(directory.resolve(), link)
    outputs = {f"checkpoint/{path.name}": sha256_file(path) for path in files}
    parameters = {"source": "hugging_face", "model": model, "revision": revision}
    if revision is not None and directory.name != revision:  # the Hub's cache names a snapshot by its commit
        parameters["commit"] = directory.name
    identity = fingerprint({"parameters": parameters, "outputs": outputs})
    Manifest("base_model", {}, outputs, parameters, identity).write(out / "manifest.json")


def _fetch(identifier: str, revision: str) -> Path:
    """The Hub's files in its cache."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(identifier, revision=revision, allow_patterns=list(_PATTERNS)))
    except Exception as error:  # of the library's kinds, and of its HTTP client's
        raise UserError(
            f"model {identifier} at {revision}: cannot be fetched from the Hugging Face Hub "
            f"({type(error).__name__}); accepted: a model there and a network that reaches it, or a local path"
        ) from None
