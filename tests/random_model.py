"""A small, random Qwen3 with the laptop study's tokenizer, saved as a checkpoint."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.runs.state import save_checkpoint

ARCHITECTURE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,  # far from uniform, so that a wrong detail changes the most likely token
}


def save_random_model(directory: Path, **changed: float) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Write the checkpoint, with ``changed`` parts of the architecture, and return what it holds."""
    tokenizer = build_tokenizer()
    model = initial_model({**ARCHITECTURE, **changed}, tokenizer, seed=0)
    save_checkpoint(model, tokenizer, directory)
    return model, tokenizer
