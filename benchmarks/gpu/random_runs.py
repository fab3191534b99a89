"""Models of random weights and runs of them, for measurements that need neither a download nor a right answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from evals.core.files import write_json
from evals.core.run_spec import LocalRun
from evals.generation.architecture import DecoderConfig
from evals.generation.checkpoint import import_model
from evals.grading.verdict import Reason, Verdict
from evals.problems.arithmetic import write_problems
from rlvr.base_model.train import build_tokenizer
from rlvr.methods.components import composition
from rlvr.study.catalogue import load_catalogue, resolve_method

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 1e5}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rms_norm_eps": 1e-6, "rope_theta": 1e6}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        **{**_LLAMA, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 512},
    },
    "laptop": {
        **{**_LLAMA, "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3},
        **{"num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64, "max_position_embeddings": 512},
    },
    "smollm2-135m": {
        **{**_LLAMA, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30},
        **{"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152},
        "max_position_embeddings": 8192,
    },
    "qwen3-0.6b": {
        **{**_QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
        **{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
        **{"max_position_embeddings": 32768, "attention_bias": False},
    },
}
"""Published shapes of models, the default study's, and one for a trial of the script."""
_PARTS = ("version", *composition().model_fields)


class Alternating:
    """A grader that finds every other response right, so that random weights have something to learn from."""

    def grade(self, cases: Any) -> list[Verdict]:
        """Give a verdict on each of ``cases``."""
        reasons = (Reason.MATCH if number % 2 else Reason.MISMATCH for number in range(len(cases)))
        return [Verdict.of("1", reason, 0.0) for reason in reasons]


def write_model(directory: Path, shapes: str) -> Path:
    """Write a base model of random weights with the tokenizer of the default study; returns its directory."""
    tokenizer, base = build_tokenizer(), directory / shapes
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    content = {**SHAPES[shapes], "hidden_act": "silu", "tie_word_embeddings": True, **ends}
    content["vocab_size"] = max(content["vocab_size"], len(tokenizer))
    model = directory / f"{shapes}-model"
    write_json(model / "config.json", content)
    tokenizer.save_pretrained(model)
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
        for name, shape in DecoderConfig.from_json(content, "config.json").shapes.items()
    }
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    import_model(str(model), base)
    return base


def write_training_problems(directory: Path) -> Path:
    """Write short problems to train on; returns their directory."""
    write_problems("gpu", [{"family": "chain", "operands": 3}], "train", 256, 1, directory / "problems")
    return directory / "problems"


def run_of(method: str, base: Path, problems: Path, dtype: str, training: Mapping[str, Any]) -> LocalRun:
    """Resolve a run of a method of the catalogue, with ``training`` over the settings of a short one."""
    entry = resolve_method(method, {}, load_catalogue(), method)
    settings = {
        **{"steps": 2, "prompts_per_step": 32, "samples_per_prompt": 8, "updates_per_step": 4},
        **{"micro_batch_size": 64, "micro_batch_tokens": 16384, "max_new_tokens": 64, "temperature": 1.0},
        **{"sampling_batch_size": 256, "learning_rate": 2e-5, "warmup_updates": 2, "weight_decay": 0.0},
        **{"gradient_clip": 1.0, **training},
    }
    content = {
        **{"run": f"gpu-check-{method}", "model": "random", "base": str(base), "seed": 1},
        **{"problems": str(problems), "prompt": "{problem}\n", "method_name": method},
        **{"method": {key: entry[key] for key in _PARTS if key in entry}, "training": settings, "dtype": dtype},
    }
    return LocalRun.parse(content, "gpu-check")
