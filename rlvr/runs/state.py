"""Training state on disk: saved whole, verified before use, written by one process at a time.

A state directory belongs to one fingerprint. Inside it, ``step-00000040/`` holds tensors (safetensors) and values
(JSON) after one step; it appears whole, by a rename, and ``values.json`` names the hash of the tensors. Nothing is
pickled. If the newest state is damaged, the one before it is used. A finished training keeps its last one, by which
lost results are written again; it takes no room, for its tensors are a hard link to the checkpoint's.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evals.core.errors import UserError
from evals.core.files import fingerprint, json_text, read_json, replacing, sha256_file, write_text
from evals.core.single_writer import single_writer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_KEPT_STATES = 2
_TENSORS, _WEIGHTS = "tensors.safetensors", "model.safetensors"
_COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files of a checkpoint that a run leaves as they are."""


class Model(Protocol):
    """A model with weights, of transformers or our own; weights tied to another one are no parameters."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]: ...


class Optimizer(Protocol):
    """An optimizer with a state, ``{"state": {number of the parameter: {name: tensor}}}``, of torch or our own."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> None: ...


class State(NamedTuple):
    """A saved state: the steps that were done, the tensors of model and optimizer, and everything else as JSON."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


class StateStore:
    """Saves and restores the state of one training under one fingerprint."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        """Use the run's state ``directory``, in which each fingerprint has a directory of its own."""
        self._root = directory
        self._directory, self._fingerprint = directory / fingerprint[:16], fingerprint

    @contextmanager
    def single_writer(self, wait_seconds: float) -> Iterator[None]:
        """Hold the run; see :func:`evals.core.single_writer.single_writer`."""
        with single_writer(self._root, "trains this run", wait_seconds):
            yield

    def save(self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any], is_last: bool = False) -> None:
        """Save the state after ``step`` steps, whole or not at all. Older ones go: all before the last, or beyond two.

        Nothing trains on from the state after the last step, so its optimizer need not be among ``tensors``.
        """
        target = self._path(step)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._directory, prefix=".saving-") as name:
                temporary = Path(name)
                save_tensors(temporary / _TENSORS, tensors)
                digest = sha256_file(temporary / _TENSORS)
                content = {"step": step, "tensors_sha256": digest, "values": dict(values)}
                if all(tensor.device.type == "cpu" for tensor in tensors.values()):
                    content["threads"] = torch.get_num_threads()  # which decide how sums are rounded
                content["fingerprint"] = self._fingerprint
                write_text(temporary / "values.json", json.dumps(content | {"sha256": fingerprint(content)}))
                if target.exists():  # saved by a run that was cut off before it could go on
                    shutil.rmtree(target)
                os.replace(temporary, target)
        except OSError as error:
            raise UserError(f"{target}: cannot be written: {error.strerror or error}") from error
        for old in self._steps()[: -1 if is_last else -_KEPT_STATES]:
            shutil.rmtree(self._path(old))

    def link_to_checkpoint(self) -> None:
        """Make the tensors of the last state a hard link to the finished run's weights, if both have the same bytes.

        Adapters, for example, are saved otherwise than the whole model, and some file systems have no links.
        """
        weights, tensors = self._root.with_name("checkpoint") / _WEIGHTS, self._path(self._steps()[-1]) / _TENSORS
        with suppress(OSError), tempfile.TemporaryDirectory(dir=self._directory, prefix=".saving-") as name:
            if filecmp.cmp(weights, tensors, shallow=False):
                os.link(weights, Path(name) / _TENSORS)
                os.replace(Path(name) / _TENSORS, tensors)

    def latest(self, at_most: int | None = None) -> State | None:
        """The newest undamaged state, of at most so many steps if a limit is given; None if there is none.

        Raises:
            UserError: it was computed with another number of threads, so that a run would have the digits of neither.
        """
        for unfinished in self._directory.glob(".saving-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        for step in reversed([step for step in self._steps() if at_most is None or step <= at_most]):
            path = self._path(step)
            try:
                content = read_json(path / "values.json")
                if content.pop("sha256") != fingerprint(content):
                    raise UserError(f"{path}: its values differ from the hash they were saved with")
                if content["fingerprint"] != self._fingerprint:
                    raise UserError(f"{path}: is a state of another run")
                if sha256_file(path / _TENSORS) != content["tensors_sha256"]:
                    raise UserError(f"{path}: its tensors differ from the hash they were saved with")
                state = State(step, load_file(path / _TENSORS), content["values"])
                threads, now = content.get("threads"), torch.get_num_threads()
            except (UserError, AttributeError, KeyError, TypeError) as error:
                print(f"{path}: damaged ({error}); going back to the state before it", flush=True)
                continue
            if threads not in (None, now):
                accepted = f"{threads} again, or no {self._directory}, to begin anew"
                raise UserError(f"{path}: was computed with {threads} threads and not with {now}; accepted: {accepted}")
            return state
        return None

    def _path(self, step: int) -> Path:
        return self._directory / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        """Steps with a state; a directory of another name, such as a copy that somebody made, is none."""
        return [step for step in saved_steps(self._directory, "step-") if self._path(step).is_dir()]


def saved_steps(directory: Path, prefix: str) -> list[int]:
    """List the steps that ``directory`` has a state of, intact or not, ascending: its name is prefix and step."""
    numbers = (path.name.removeprefix(prefix) for path in directory.glob(f"{prefix}*"))
    return sorted({int(number) for number in numbers if number.isdecimal()})


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, atomically."""
    with replacing(path) as temporary:
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, temporary)
        except SafetensorError as error:  # how safetensors reports the operating system's errors
            raise UserError(f"{path}: cannot be written: {error}") from error


def training_tensors(model: Model, optimizer: Optimizer | None) -> dict[str, Tensor]:
    """The tensors of a model and its optimizer, if there is one, under flat names.

    They are ``model.{parameter}`` and ``optimizer.{number of the parameter}.{key}``; a model alone has the names of its
    checkpoint. A head that is tied to the embedding is no parameter of its own.
    """
    if optimizer is None:
        return dict(model.named_parameters())
    tensors: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    for index, of_parameter in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in of_parameter.items()}
    return tensors


def load_training_tensors(model: Model, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors of :func:`training_tensors` back."""
    for name, parameter in model.named_parameters():
        key = f"model.{name}"
        parameter.data.copy_(tensors[key if key in tensors else name])
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def save_checkpoint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> list[Path]:
    """Write a Hugging Face checkpoint, with the same bytes for the same weights; returns its files.

    The weights are written last: a directory without ``model.safetensors`` is not a checkpoint.
    """
    config = model.config.to_diff_dict()
    config["architectures"] = [type(model).__name__]
    config["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.eos_token,
        "pad_token": tokenizer.pad_token,
        "unk_token": tokenizer.unk_token,
        "clean_up_tokenization_spaces": False,
        "model_max_length": tokenizer.model_max_length,
    }
    end_tokens = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    texts = {
        "config.json": json_text(config),
        "generation_config.json": json_text(end_tokens),
        "tokenizer.json": tokenizer.backend_tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json_text(tokenizer_config),
    }
    return _write_checkpoint(texts, dict(model.named_parameters()), directory)


def save_trained(weights: Mapping[str, Tensor], base: Path, directory: Path) -> list[Path]:
    """Write the checkpoint of a model that was trained from the checkpoint ``base``, in float32; returns its files."""
    texts = {name: (base / name).read_text() for name in _COPIED if (base / name).is_file()}
    config = {**read_json(base / "config.json"), "dtype": "float32"}
    config.pop("torch_dtype", None)  # the same key under its earlier name
    whole = {name: weight.detach().float() for name, weight in weights.items()}
    return _write_checkpoint({"config.json": json_text(config), **texts}, whole, directory)


def _write_checkpoint(texts: Mapping[str, str], weights: Mapping[str, Tensor], directory: Path) -> list[Path]:
    for name, text in texts.items():
        write_text(directory / name, text)
    # Weights tied to the embedding are one tensor, stored once, as Hugging Face does.
    save_tensors(directory / _WEIGHTS, weights)
    return [directory / name for name in (*texts, "model.safetensors")]
