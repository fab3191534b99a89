"""Rollouts by vLLM in the trainer's process: whose weights it samples with, what a step starts from, what is promised.

vLLM is in an environment of its own; `make test-engines` runs these tests there.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from evals.core.errors import UserError
from evals.core.files import read_parquet, sha256_file
from evals.core.manifest import verify_outputs
from evals.core.sampling import SamplingParameters
from evals.generation.backend import Response
from evals.generation.chat import end_tokens
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.policy import Policy, TokenBatch, load_policy, score_in_chunks
from rlvr.engines.local.train import train
from rlvr.engines.local.vllm_rollouts import VllmRollouts, key_value_bytes
from rlvr.methods.rollout_batch import rollout_kl
from tests.unit.engine.conftest import EXECUTION, MakeRun, import_pretrained

REASON = "vLLM is in .venv-engines: make test-engines"
VLLM = {"sampling_backend": "vllm"}
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 5]]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 whose head is its embedding; vLLM's attention for CPUs asks for heads of 32 at least."""
    sizes = {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}
    return import_pretrained(tmp_path_factory.mktemp("tied"), Qwen3Config, **sizes)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": False}
    return import_pretrained(tmp_path_factory.mktemp("untied"), LlamaConfig, **sizes)


def changed_policy(base: Path) -> Policy:
    """The policy of a base model after some training: every weight has changed."""
    policy, generator = load_policy(Checkpoint(base / "checkpoint"), "cpu"), torch.Generator().manual_seed(4)
    for weight in policy.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    return policy


@pytest.mark.parametrize("model", ["tied", "untied"])
def test_vllm_samples_with_the_new_weights(model: str, make_run: MakeRun, request: pytest.FixtureRequest) -> None:
    """Greedy responses are the decoder's, and log-probabilities the trainer's; after a second hand-over too."""
    pytest.importorskip("vllm", reason=REASON)
    base = request.getfixturevalue(model)
    run, checkpoint = make_run(VLLM, base=str(base), model="other"), Checkpoint(base / "checkpoint")
    ends = list(end_tokens(checkpoint, run.prompt_form))
    rollouts = VllmRollouts(checkpoint, run, "cpu", longest_prompt=5, end_tokens=ends)
    names = [["a", "b"], ["c", "d"], ["e", "f"]]
    sampling = SamplingParameters(max_new_tokens=run.training.max_new_tokens, temperature=0.7)
    threads = torch.get_num_threads()
    before = load_policy(checkpoint, "cpu")
    for policy in (changed_policy(base), before):
        sample = rollouts.sampler(policy)
        greedy = sampling.model_copy(update={"temperature": 0.0})
        theirs, ours = (each(PROMPTS, names, greedy, checkpoint.end_tokens, None) for each in (sample, _own(policy)))
        assert [[response.tokens for response in group] for group in theirs] == [
            [response.tokens for response in group] for group in ours
        ]
        drawn = [response for group in sample(PROMPTS, names, sampling, checkpoint.end_tokens) for response in group]
        tokens = TokenBatch([prompt for prompt in PROMPTS for _ in range(2)], [each.tokens for each in drawn])
        scored, _ = score_in_chunks(policy, tokens, 0.7, 6)
        said = torch.tensor([number for each in drawn for number in each.log_probs or ()])
        torch.testing.assert_close(said, scored, rtol=1e-4, atol=1e-4)
        assert rollout_kl(scored, said) < 1e-6
    again = [each for group in sample(PROMPTS, names, sampling, checkpoint.end_tokens) for each in group]
    assert [each.tokens for each in again] == [each.tokens for each in drawn], "a rollout's name is its seed"
    assert drawn[0].tokens != drawn[1].tokens
    torch.set_num_threads(threads)
    assert torch.get_num_threads() == threads, "torch takes orders again"


def _own(policy: Policy) -> Any:
    def sample(*given: Any) -> Any:
        return policy.sampler()(*given)

    return sample


def test_a_training_by_vllm_continues_and_says_what_drew_its_rollouts(
    tied: Path,
    make_run: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    train_until: Callable[..., Learner],
    some_right: None,
) -> None:
    pytest.importorskip("vllm", reason=REASON)
    run = make_run({"steps": 3, "learning_rate": 0.01, **VLLM}, base=str(tied), model="other")
    train(run, tmp_path / "whole", EXECUTION)
    manifest = verify_outputs(tmp_path / "whole" / "manifest.json", "run")
    assert manifest.details["sampled_by"].startswith("vllm 0.")
    assert manifest.details["same_bytes"] == "as far as vLLM repeats its draws"
    assert manifest.parameters["training"]["sampling_backend"] == "vllm"
    rows = read_parquet(tmp_path / "whole" / "metrics.parquet")
    assert (rows["rollout_kl"] < 1e-6).all() and (rows["entropy"] > 0.1).all() and (rows["grad_norm"] > 0).all()

    train_until(1, run, tmp_path / "parts", EXECUTION)
    train(run, tmp_path / "parts", EXECUTION)
    weights = [sha256_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("whole", "parts")]
    assert weights[0] == weights[1], "vLLM repeats itself on a CPU"

    def forget(backend: Any, weights: Any) -> None:
        """Keep the base model's weights."""

    monkeypatch.setattr("evals.generation.vllm_backend.VllmBackend.take_weights", forget)
    run = make_run({"steps": 3, "learning_rate": 0.5, **VLLM}, base=str(tied), model="other")
    with pytest.raises(UserError, match="nats a token"):
        train(run, tmp_path / "forgetful", EXECUTION)


def test_vllm_may_take_any_kernel(tied: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's compiler refuses a process that asks for deterministic kernels; seen on a GPU (docs/results/gpu.md)."""
    asked_of_vllm: list[bool] = []

    class Backend:
        """vLLM's place, which notes what torch was asked for."""

        def __init__(self, *_: Any) -> None:
            asked_of_vllm.append(torch.are_deterministic_algorithms_enabled())

        def take_weights(self, _: Any) -> None:
            asked_of_vllm.append(torch.are_deterministic_algorithms_enabled())

        def generate(self, requests: Any) -> Any:
            for _ in requests:
                asked_of_vllm.append(torch.are_deterministic_algorithms_enabled())
                yield Response([3], finished=True)

    monkeypatch.setattr("rlvr.engines.local.vllm_rollouts.VllmBackend", Backend)
    monkeypatch.setattr("rlvr.engines.local.vllm_rollouts.engine_version", lambda _: "0")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        checkpoint, run = Checkpoint(tied / "checkpoint"), make_run(VLLM, base=str(tied), model="other")
        rollouts = VllmRollouts(checkpoint, run, "cpu", 5, [1])
        rollouts.sampler(load_policy(checkpoint, "cpu"))(
            [[5, 6]], [["a", "b"]], SamplingParameters(max_new_tokens=1), [1]
        )
        assert asked_of_vllm == [False] * 4
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_policy_ends_the_run_and_names_it(make_run: MakeRun) -> None:
    rollouts = VllmRollouts.__new__(VllmRollouts)
    rollouts._run = make_run(VLLM)
    drawn, scored = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.5])
    expected = ((math.exp(-0.5) - 1 + 0.5) + (math.exp(0.5) - 1 - 0.5)) / 2
    with pytest.raises(UserError, match=f"tiny-dapo-s1.*{expected:.3g} nats") as raised:
        rollouts.check(rollout_kl(scored, drawn))
    assert "accepted: 0.1" in str(raised.value)
    rollouts.check(rollout_kl(drawn, drawn))


def test_keys_and_values_are_counted_in_whole_blocks() -> None:
    config = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    of_token = 2 * 3 * 2 * 16 * 2  # keys and values, layers, heads, width of a head, bytes
    assert key_value_bytes(config, "bfloat16", rows=5, longest=129) == of_token * 128 * (5 * 2 + 1)
    assert key_value_bytes({"text_config": config}, "float32", 1, 1) == 2 * of_token * 128 * 2
    with pytest.raises(UserError, match="num_hidden_layers"):
        key_value_bytes({"model_type": "mamba"}, "float32", 1, 1)
