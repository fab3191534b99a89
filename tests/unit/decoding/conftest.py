"""Two small, random Qwen3 models with the laptop study's tokenizer: a base, and one that training could have made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.checkpoint import save_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.2,
    )
    model = Qwen3ForCausalLM(config)
    base, trained = (tmp_path_factory.mktemp(name) for name in ("base", "trained"))
    save_checkpoint(model, tokenizer, base)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    save_checkpoint(model, tokenizer, trained)
    return base, trained
