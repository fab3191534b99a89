"""Save a model as an ordinary Hugging Face checkpoint, with the same bytes for the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.core.files import write_json, write_text
from rlvr.run_state import save_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def save_checkpoint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> list[Path]:
    """Write config, generation config, weights and tokenizer; returns the files.

    The weights are written last: a directory without ``model.safetensors`` is not a checkpoint.

    Raises:
        UserError: the disk is full or not writable.
    """
    config = model.config.to_diff_dict()
    config["architectures"] = [type(model).__name__]
    config["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    write_json(directory / "config.json", config)
    generation: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    write_json(directory / "generation_config.json", generation)
    write_text(directory / "tokenizer.json", tokenizer.backend_tokenizer.to_str(pretty=True))
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": tokenizer.eos_token,
            "pad_token": tokenizer.pad_token,
            "unk_token": tokenizer.unk_token,
            "clean_up_tokenization_spaces": False,
            "model_max_length": tokenizer.model_max_length,
        },
    )
    # Weights tied to the embedding are one tensor, stored once, as Hugging Face does.
    save_tensors(directory / "model.safetensors", dict(model.named_parameters()))
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    return [directory / name for name in names]
