"""A Llama whose tokenizer begins a text with BOS, one step by verl and vLLM: the prompt is the one of evaluation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from evals.core.files import read_jsonl
from evals.core.run_spec import read_run
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.problems.problem_set import render_prompt
from rlvr.engines.local.policy import TokenBatch, load_policy, score_in_chunks
from rlvr.engines.rollouts import rollout_directory
from rlvr.tokens.table import read_token_table
from tests.engines.study_directory import StudyDirectory, last_words, smoke_study, wait_for_end_of_processes

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")
pytestmark = pytest.mark.long

RUN = "llama-dapo-s1"


def write_model(directory: Path) -> None:
    """Two layers of random numbers, with a tokenizer of bytes that puts <s> before a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    whole.save_pretrained(directory)
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    config = LlamaConfig(vocab_size=len(vocabulary), bos_token_id=0, eos_token_id=1, **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(directory)


def test_the_trainer_s_log_probs_are_those_after_the_prompt_of_evaluation(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "verifier.py").write_text("def verify(problem, response):\n    return len(response) % 2\n")
    config = smoke_study(training={"steps": 1, "max_prompt_tokens": 128}, execution={"checkpoint_interval": 1})
    config["execution"] |= {"rollouts_kept_every": 1, "training_python": sys.executable}
    config["models"] = {
        "llama": {"source": "hugging_face", "path": str(tmp_path / "model"), "prompt_form": "base", "dtype": "float32"}
    }
    config["problems"] = {**config["problems"], "verifier": str(tmp_path / "verifier.py")}
    study = StudyDirectory(tmp_path, config)
    inputs = ("base/llama", "problems/train", "verifiers/train")
    study.snakemake(*(f"results/{name}/manifest.json" for name in inputs))
    place = study.write_run(RUN)
    answer = study.train(place)
    assert answer.returncode == 0, answer.stderr[-2000:] + last_words(place)
    wait_for_end_of_processes(place)
    settings, rows = read_run(place / "run.json"), read_token_table(rollout_directory(place, 1))
    of_rollouts = rows.groupby(["group", "sample"], sort=False)
    texts = {row["id"]: row["problem"] for row in read_jsonl(tmp_path / "results/problems/train/problems.jsonl")}
    checkpoint = Checkpoint(tmp_path / "results/base/llama/checkpoint")
    rendered = [render_prompt(settings.prompt, texts[id]) for id in of_rollouts["problem"].first()]
    prompts = encode_prompts(checkpoint, rendered, settings.prompt_form)
    assert {prompt[0] for prompt in prompts} == {0}
    expected = torch.tensor(rows["old_log_prob"].to_numpy())
    policy, responses = load_policy(checkpoint, "cpu"), of_rollouts["token"].agg(list).tolist()
    for begins in (True, False):
        batch = TokenBatch([prompt if begins else prompt[1:] for prompt in prompts], responses)
        log_probs, _ = score_in_chunks(policy, batch, settings.training.temperature, 8)
        assert (float((log_probs - expected).abs().max()) < 1e-4) is begins
