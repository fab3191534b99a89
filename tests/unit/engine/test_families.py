"""Families of models that the batched decoder does not know: they are sampled and trained by transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    FalconMambaConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    MambaConfig,
    MistralConfig,
    MptConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
)

from evals.core.errors import InvalidInput
from evals.core.files import read_json, write_json
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import UNLIMITED, Checkpoint
from rlvr.engines.local.policy import load_policy, token_log_probs
from rlvr.engines.local.rollout import RolloutSampler
from tests.unit.engine.conftest import import_pretrained

FAMILIES: list[tuple[type[PreTrainedConfig], dict[str, Any], int]] = [
    (GPT2Config, {}, 64),
    (BloomConfig, {}, UNLIMITED),
    (GPTNeoXConfig, {}, 64),
    (MistralConfig, {"num_key_value_heads": 2, "sliding_window": 6}, 64),
    (OPTConfig, {"ffn_dim": 48, "word_embed_proj_dim": 32}, 64),
    (PhiConfig, {}, 64),
    (MptConfig, {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 48}, 48),
    (Gemma3TextConfig, {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}, 64),
]


@pytest.mark.parametrize(("kind", "changes", "context"), FAMILIES, ids=[kind.model_type for kind, _, _ in FAMILIES])
def test_a_family_is_sampled_and_trained(
    kind: type[PreTrainedConfig], changes: dict[str, Any], context: int, tmp_path: Path
) -> None:
    base = import_pretrained(tmp_path, kind, **changes)
    checkpoint = Checkpoint(base / "checkpoint")
    if context != 64:  # files of these families have no such key
        content = dict(read_json(checkpoint.directory / "config.json"))
        del content["max_position_embeddings"]
        write_json(checkpoint.directory / "config.json", content)
    assert checkpoint.context_length(None) == context and checkpoint.context_length(7) == 7
    policy, prompts = load_policy(checkpoint, "cpu"), {"1": [3, 4, 5, 6, 7, 8], "2": [6, 7]}
    sampler = RolloutSampler(
        checkpoint.tokenizer, prompts, 2, SamplingParameters(max_new_tokens=8), checkpoint.end_tokens
    )
    problems = [{"problem": text, "answer": "1"} for text in prompts]
    rollouts = sampler.roll_out(policy.sampler(), problems, "rollout/1/0", 0)
    scored = token_log_probs(policy, rollouts.tokens, 1.0)
    mask = rollouts.tokens.response_mask
    torch.testing.assert_close(rollouts.log_probs[:, : mask.shape[1]][mask], scored.detach(), atol=1e-4, rtol=1e-4)
    scored.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in policy.parameters())
    again = load_policy(checkpoint, "cpu", gradient_checkpointing=True)
    repeated = sampler.roll_out(again.sampler(), problems, "rollout/1/0", 0)
    assert repeated.tokens == rollouts.tokens and torch.equal(token_log_probs(again, repeated.tokens, 1.0), scored)


@pytest.mark.parametrize("kind", [MambaConfig, FalconMambaConfig])
def test_a_model_without_keys_and_values_is_refused_in_one_line(kind: type[PreTrainedConfig], tmp_path: Path) -> None:
    base = import_pretrained(tmp_path, kind)
    with pytest.raises(InvalidInput, match=f"is '{kind.model_type}', which keeps another state") as error:
        load_policy(Checkpoint(base / "checkpoint"), "cpu")
    assert error.value.key == "model_type" and "\n" not in str(error.value)
