"""A small, random Qwen3 with the laptop study's tokenizer, saved as a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.base_model.train import initial_model
from rlvr.runs.state import save_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    tokenizer = build_tokenizer()
    architecture = dict(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,  # far from uniform, so that a wrong detail changes the most likely token
    )
    save_checkpoint(initial_model(architecture, tokenizer, seed=0), tokenizer, directory)
    return directory
