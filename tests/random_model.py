"""A small, random Qwen3 with the laptop study's tokenizer, saved as a checkpoint."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.runs.state import save_checkpoint


def architecture(hidden: int, intermediate: int, layers: int, positions: int, head: int = 0) -> dict[str, Any]:
    """Of so many dimensions, ``head`` in each head or half of all, two heads for each key, and tied embeddings."""
    head = head or hidden // 2
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers, "head_dim": head}
    heads = {"num_attention_heads": hidden // head, "num_key_value_heads": hidden // head // 2}
    return {**sizes, **heads, "max_position_embeddings": positions, "tie_word_embeddings": True}


# Far from uniform, so that a wrong detail changes the most likely token.
ARCHITECTURE = {**architecture(64, 96, 2, 128, head=16), "initializer_range": 0.3}


def save_random_model(directory: Path, **changed: float) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Write the checkpoint, with ``changed`` parts of the architecture, and return what it holds."""
    tokenizer = build_tokenizer()
    model = initial_model({**ARCHITECTURE, **changed}, tokenizer, seed=0)
    save_checkpoint(model, tokenizer, directory)
    return model, tokenizer
