"""Low-rank adapters: what they compute and train, what is saved of them, and the ordinary model that is left.

peft is not among the locked packages of a study; `make test-engines`, whose environment has it, runs these tests too.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.func import functional_call
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from evals.core.errors import InvalidInput, UserError
from evals.core.files import sha256_file
from evals.core.training_settings import Lora
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.contrast import gradients
from rlvr.engines.local.learner import Learner, Updater
from rlvr.engines.local.policy import Policy, TokenBatch, load_policy, score_in_chunks, unpack
from rlvr.engines.local.train import train
from rlvr.methods.method import compose
from rlvr.runs.state import save_trained
from tests.unit.engine.conftest import EXECUTION, MakeRun

REASON = "the package peft is installed for adapters alone"
LORA = {"rank": 2, "alpha": 4}
GENERATOR = torch.Generator().manual_seed(5)
RESPONSES = [torch.randint(3, 20, (n,), generator=GENERATOR).tolist() for n in (1, 7, 3, 5)]
TOKENS = TokenBatch([[5, 6, 7]] * 4, RESPONSES)


def adapted_policy(base: Path, dtype: str = "float32", **lora: Any) -> Policy:
    """The policy of a base model with adapters that change it."""
    pytest.importorskip("peft", reason=REASON)
    from rlvr.engines.local.lora import adapted

    checkpoint = Checkpoint(base / "checkpoint")
    policy = adapted(load_policy(checkpoint, "cpu", dtype), checkpoint, Lora.parse({**LORA, **lora}, "lora"), 1)
    generator = torch.Generator().manual_seed(2)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return policy


def test_one_update_is_that_of_a_calculation_by_hand(make_run: MakeRun, llama: Path) -> None:
    """In float64, by transformers' model with W + alpha / rank B A for weights and the equations of AdamW."""
    policy = adapted_policy(llama, rank=32, alpha=16)  # the width of the model
    run = make_run({"updates_per_step": 1, "gradient_clip": 0.05, "warmup_updates": 0})
    training, method = run.training, compose(run.method, "method")
    mask = TOKENS.response_mask
    old = unpack(score_in_chunks(policy, TOKENS, 1.0, 4)[0], mask) - 0.1
    advantages = torch.tensor([1.0, -1.0, 0.5, -2.0])[:, None].expand(4, 7)
    before = {name: weight.detach().double() for name, weight in policy.named_parameters()}
    frozen = load_file(llama / "checkpoint/model.safetensors")

    theirs = AutoModelForCausalLM.from_pretrained(llama / "checkpoint", dtype=torch.float64)
    leaves = {name: weight.clone().requires_grad_() for name, weight in before.items()}
    stems = {name: name.removesuffix("weight") for name in frozen}
    merged = {
        name: frozen[name].double() + 0.5 * leaves[f"{stem}lora_B.weight"] @ leaves[f"{stem}lora_A.weight"]
        for name, stem in stems.items()
        if f"{stem}lora_A.weight" in leaves
    }
    assert len(merged) == 14 and len(leaves) == 28  # seven products in each of two layers
    scored = []
    for prompt, response in zip(TOKENS.prompts, TOKENS.responses, strict=True):
        tokens = torch.tensor([[*prompt, *response]])
        logits = functional_call(theirs, merged, (tokens,)).logits[0, len(prompt) - 1 : -1]
        scored.append(logits.log_softmax(-1).gather(-1, tokens[0, len(prompt) :, None])[:, 0])
    log_probs = unpack(torch.cat(scored), mask)
    ratios = (log_probs - old.double()).exp()
    low, high = method.loss.epsilon_low, method.loss.epsilon_high  # type: ignore[attr-defined]
    smaller = torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)
    (-smaller[mask].sum() / mask.sum()).backward()
    slopes = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    norm = torch.stack([slope.square().sum() for slope in slopes.values()]).sum().sqrt()
    assert norm > 2 * training.gradient_clip and len(slopes) == len(leaves)

    metrics = Updater(policy, method, training, 1).update(
        TOKENS, old, advantages, torch.arange(4), [torch.arange(4)], 0, 0
    )
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    rate, decay = training.learning_rate, training.weight_decay
    for name, weight in policy.named_parameters():
        slope = slopes[name] * training.gradient_clip / (norm + 1e-6)
        expected = before[name] * (1 - rate * decay) - rate * slope / (slope.abs() + 1e-8)
        large = slope.abs() > 1e-6  # a first step of AdamW has the sign of the slope, which rounding may change near 0
        assert large.float().mean() > 0.9
        torch.testing.assert_close(weight.detach().double()[large], expected[large], atol=2e-6, rtol=1e-5)
    assert {name for name, weight in policy.weights().items() if not torch.equal(weight, frozen[name])} == set(merged)
    assert_same_base(policy, frozen)


def assert_same_base(policy: Policy, base: Mapping[str, torch.Tensor]) -> None:
    """The weights without what the adapters add are those of the base model, to the bit."""
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            weight.data.zero_()
    assert policy.weights().keys() == base.keys()
    assert all(torch.equal(weight, base[name]) for name, weight in policy.weights().items())


@pytest.mark.parametrize("model", ["llama", "neox"])
def test_a_training_saves_adapters_alone_and_leaves_an_ordinary_model(
    model: str,
    make_run: MakeRun,
    train_until: Callable[..., Learner],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    some_right: None,
) -> None:
    pytest.importorskip("peft", reason=REASON)
    base = request.getfixturevalue(model)
    run = make_run({"steps": 3, "learning_rate": 0.01, "lora": LORA}, base=str(base), model="other")

    train(run, tmp_path / "whole", EXECUTION)
    stopped = train_until(2, run, tmp_path / "parts", EXECUTION)
    original = base / "checkpoint/model.safetensors"
    states = list((tmp_path / "parts").glob("state/*/step-*/tensors.safetensors"))
    assert len(states) == 2
    for state in states:
        assert state.stat().st_size < original.stat().st_size  # with two moments of each, at a width of 32
        names = [name for name in load_file(state) if name.startswith("model.")]
        assert {name.split(".lora_")[1][0] for name in names} == {"A", "B"}
    train(run, tmp_path / "parts", EXECUTION)
    results = [tmp_path / name / "checkpoint/model.safetensors" for name in ("whole", "parts")]
    assert sha256_file(results[0]) == sha256_file(results[1])

    before, after = load_file(original), load_file(results[0])
    products = {name for name in before if before[name].dim() == 2 and "embed" not in name and "lm_head" not in name}
    assert {name for name in before if not torch.equal(before[name], after[name])} == products
    assert_same_base(stopped.model, before)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/checkpoint", dtype=torch.float32)
    tokens = torch.tensor([[5, 6, 7, *RESPONSES[1]]])
    logits = theirs(tokens).logits[0, 2:-1].log_softmax(-1).gather(-1, tokens[0, 3:, None])[:, 0]
    found, _ = score_in_chunks(load_policy(Checkpoint(tmp_path / "whole/checkpoint"), "cpu"), TOKENS, 1.0, 4)
    torch.testing.assert_close(found[1:8], logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["llama", "neox", "from_scratch"])
def test_rollouts_trainer_and_merged_model_have_the_same_log_probabilities(
    model: str, dtype: str, make_run: MakeRun, study_files: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base = study_files / "base/tiny" if model == "from_scratch" else request.getfixturevalue(model)
    policy, run = adapted_policy(base, dtype), make_run(base=str(base))
    learner = Learner(run, "cpu")
    rollouts = learner._sampler.roll_out(policy.sampler(), learner.order.take(0, 4), "rollout/1/0", 0)
    log_probs = score_in_chunks(policy, rollouts.tokens, 1.0, 8)[0]
    mask = rollouts.tokens.response_mask
    limits: Any = {"atol": 1e-4, "rtol": 1e-4} if dtype == "float32" else {"atol": 0.15, "rtol": 0.02}
    torch.testing.assert_close(rollouts.log_probs[:, : mask.shape[1]][mask], log_probs, **limits)
    assert {weight.dtype for weight in policy.parameters()} == {torch.float32}
    assert not torch.allclose(log_probs, score_in_chunks(learner.model, rollouts.tokens, 1.0, 8)[0], atol=0.01)

    save_trained(policy.weights(), base / "checkpoint", tmp_path / "merged")
    merged = score_in_chunks(load_policy(Checkpoint(tmp_path / "merged"), "cpu", dtype), rollouts.tokens, 1.0, 8)[0]
    if model == "neox":
        torch.testing.assert_close(merged, log_probs, **limits)
    else:
        assert torch.equal(merged, log_probs)


def test_base_weights_are_kept_in_the_type_of_the_passes(llama: Path, neox: Path) -> None:
    for base, adapted in ((llama, "model.layers.1.mlp.down_proj"), (neox, "gpt_neox.layers.1.mlp.dense_4h_to_h")):
        weights = load_file(base / "checkpoint/model.safetensors")
        name = f"{adapted}.weight"
        policy = adapted_policy(base, "bfloat16")
        for each in policy.parameters():
            each.data.zero_()
        assert torch.equal(policy.weights()[name], weights[name].bfloat16().float())
        assert not torch.equal(policy.weights()[name], weights[name])


def test_the_gradients_that_are_compared_are_those_of_the_adapters(make_run: MakeRun, llama: Path) -> None:
    policy = adapted_policy(llama)
    slopes = [torch.ones(1, *TOKENS.response_mask.shape), torch.zeros(1, *TOKENS.response_mask.shape)]
    found = gradients(policy, TOKENS, make_run().training, slopes)
    assert [len(each) for each in found] == [sum(weight.numel() for weight in policy.parameters())] * 2
    assert found[0].any() and not found[1].any()


def test_layers_that_are_not_there_are_named(llama: Path) -> None:
    for name in ("query", "lm_head"):
        with pytest.raises(
            InvalidInput, match=rf"has '{name}'; accepted: all-linear, or some of down_proj, .*, v_proj$"
        ) as error:
            adapted_policy(llama, target_modules=["q_proj", name])
        assert error.value.key == "training.lora.target_modules"


def test_peft_that_is_missing(make_run: MakeRun, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    run = make_run({"lora": LORA}, base=str(llama))
    engines = (Path(__file__).parents[3] / "workflow/envs/engines.lock").read_text()
    (pin,) = re.findall(r"^peft==\S+", engines, re.MULTILINE)  # the version that was run here
    with pytest.raises(
        UserError, match=rf"^training\.lora: needs the package peft, .* \(pip install {re.escape(pin)}\)"
    ):
        Learner(run, "cpu")
    assert "lora" not in make_run().parameters()["training"]
    assert run.parameters()["training"]["lora"] == LORA
