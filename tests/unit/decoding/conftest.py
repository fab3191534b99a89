"""Two small, random Qwen3 models with the laptop study's tokenizer: a base, and one that training could have made."""

from pathlib import Path

import pytest
import torch

from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.base_model.train import initial_model
from rlvr.runs.state import save_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
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
        initializer_range=0.2,
    )
    model = initial_model(architecture, tokenizer, seed=0)
    base, trained = (tmp_path_factory.mktemp(name) for name in ("base", "trained"))
    save_checkpoint(model, tokenizer, base)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    save_checkpoint(model, tokenizer, trained)
    return base, trained
