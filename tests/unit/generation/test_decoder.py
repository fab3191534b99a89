"""The decoder against transformers' own model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from evals.core.errors import UserError
from evals.core.sampling import SamplingParameters
from evals.generation.architecture import DecoderConfig
from evals.generation.backend import Response
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from evals.generation.gradients import Packing
from evals.generation.sampler import sample, uniform_stream

PROMPTS = ["Compute 3+4 from left to right, modulo 10.\n", "Let a=3;b=a+7;c=b-1. Compute c modulo 10.\n", "7\n"]


def test_checkpoint_is_an_ordinary_one(checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    text = PROMPTS[1] + "b=3+7=0\n\\boxed{0}"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer(text)["input_ids"] == load_tokenizer(checkpoint).encode(text).ids
    assert model.config.eos_token_id == tokenizer.eos_token_id == Checkpoint(checkpoint).end_tokens[0]
    assert tokenizer("?")["input_ids"] == [tokenizer.unk_token_id]


SHAPE = {
    **{"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3},
}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SHAPE),
        LlamaConfig(**SHAPE, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e5}),
        LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, head_dim=8),
        LlamaConfig(**SHAPE | {"num_key_value_heads": 4}, rope_parameters=LLAMA3),
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
        Qwen2Config(**SHAPE),
        Qwen2Config(**SHAPE, tie_word_embeddings=True, rms_norm_eps=1e-5),
        Qwen3Config(**SHAPE, head_dim=32, attention_bias=True),
    ],
    ids=["llama", "tied", "biases", "llama3", "linear", "qwen2", "qwen2-tied", "qwen3-biases"],
)
def test_every_architecture_has_the_logits_of_transformers(config: PreTrainedConfig, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias") or "norm" in name:  # which start at 0 and 1
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    model.save_pretrained(tmp_path)
    ours = Checkpoint(tmp_path).model("cpu")
    lengths = [23, 40]
    sequences = [torch.randint(3, 300, (length,)).tolist() for length in lengths]
    expected = torch.cat([model(torch.tensor([each])).logits[0] for each in sequences])
    whole = ours.logits(ours.states(sequences, [0, 0]), 1.0)
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)
    factors = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)) / 100
    (whole * factors).sum().backward()
    (expected * factors).sum().backward()
    gradients = dict(model.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, atol=1e-3, rtol=1e-3)
    decoder = ours.decoder()
    cache = decoder.new_cache(1, 40)
    with torch.inference_mode():
        first = decoder.forward(torch.tensor([sequences[1][:-1]]), torch.arange(39)[None], _causal(39), cache)
        second = decoder.forward(torch.tensor([sequences[1][-1:]]), torch.tensor([[39]]), None, cache)
    torch.testing.assert_close(torch.cat([first, second]), expected[-2:], atol=1e-4, rtol=1e-4)


def _causal(length: int) -> torch.Tensor:
    return torch.full((length, length), float("-inf")).triu(1)[None, None]


def test_tokens_one_by_one_in_bfloat16_have_the_logits_of_float32(tmp_path: Path) -> None:
    """Up to the rounding of bfloat16, with a prompt that is padded beside one that is not."""
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE)).save_pretrained(tmp_path)
    tokens, hidden = torch.randint(3, 300, (2, 20)), torch.tensor([6, 0])
    positions = (torch.arange(20) - hidden[:, None]).clamp(min=0)
    padding = torch.zeros(2, 1, 1, 20).masked_fill_(torch.arange(20) < hidden[:, None, None, None], float("-inf"))
    padding = padding.where(~torch.eye(20, dtype=torch.bool), 0.0)  # a padded token may look at itself
    last = {}
    for dtype, read in (("float32", 20), ("bfloat16", 8)):
        decoder = Checkpoint(tmp_path).decoder("cpu", dtype)
        cache = decoder.new_cache(2, 30)
        seen = padding[:, :, :read, :read] + _causal(read)
        with torch.inference_mode():
            last[dtype] = decoder.forward(tokens[:, :read], positions[:, :read], seen, cache)
            for place in range(read, 20):
                seen = padding[:, :, place : place + 1, : place + 1]
                new = slice(place, place + 1)
                last[dtype] = decoder.forward(tokens[:, new], positions[:, new], seen, cache)
    difference = last["bfloat16"] - last["float32"]
    assert difference.square().mean().sqrt() < 0.05 * last["float32"].std()


def test_prompts_that_are_computed_once_change_rounding_only(checkpoint: Path) -> None:
    """Three rollouts of one prompt, two of another and a lone one; gradients of all copies of a prompt are added up."""
    first, second, lone = [5, 6, 7, 8], [5, 6, 9], [4]
    sequences = [[*first, 10, 11, 12], [*second, 13], [*first], [*second, 11, 12, 13, 14], [*first, 10, 12], [*lone, 6]]
    starts = [len(prompt) - 1 for prompt in (first, second, first, second, first, lone)]
    found = []
    for share in (False, True):
        model = Checkpoint(checkpoint).model("cpu", share_prompts=share)
        states = model.states(sequences, starts)
        factors = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
        (states * factors).sum().backward()
        found.append([states.detach(), *(parameter.grad for parameter in model.parameters())])
        packing = Packing(sequences, starts, torch.device("cpu"), share)
        assert len(packing.tokens) == (len(first) + len(second) + len(lone) + 11 if share else sum(map(len, sequences)))
    for once, each in zip(*found, strict=True):
        torch.testing.assert_close(once, each, atol=1e-4, rtol=1e-4)


def test_frequencies_that_a_checkpoint_holds_are_no_weights(checkpoint: Path) -> None:
    model = Checkpoint(checkpoint).model("cpu")
    weights: dict[str, Any] = dict(model.named_parameters())
    again = type(model)(model.config, {**weights, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert dict(again.named_parameters()).keys() == weights.keys()


def test_greedy_output_is_that_of_generate(checkpoint: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), load_tokenizer(checkpoint)
    prompts = [encoding.ids for encoding in tokenizer.encode_batch(PROMPTS)]
    parameters = SamplingParameters(max_new_tokens=24, temperature=0)
    ours = sample(
        Checkpoint(checkpoint).decoder("cpu"), prompts, [["a"]] * 3, parameters, Checkpoint(checkpoint).end_tokens
    )
    for prompt, (response,) in zip(prompts, ours, strict=True):
        output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[0, len(prompt) :].tolist()
        assert response.tokens == output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; the batched decoder accepts llama, qwen2, qwen3"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type is 'yarn'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "has a quantization_config"),
        ({"head_dim": None}, "lacks the key head_dim"),
    ],
)
def test_other_architectures_are_refused_by_name(checkpoint: Path, change: dict[str, object], message: str) -> None:
    config = AutoModelForCausalLM.from_pretrained(checkpoint).config.to_dict() | change
    with pytest.raises(UserError, match=message):
        DecoderConfig.from_json(config, "config.json")


def test_a_damaged_checkpoint_is_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        Checkpoint(tmp_path).decoder("cpu")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes()[:-100])
    with pytest.raises(UserError, match=r"config\.json: is not valid JSON"):
        Checkpoint(tmp_path).decoder("cpu")
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"model\.safetensors: is damaged"):
        Checkpoint(tmp_path).decoder("cpu")
    with pytest.raises(UserError, match=r"tokenizer\.json: is not a tokenizer"):
        load_tokenizer(tmp_path)


# The distribution that the sampler draws from, and whose random numbers each sample uses.

PROMPTS_OF_SAMPLER = ["Compute 3+4 from left to right, modulo 10.\n", "7\n", "Let a=3;b=a+7. Compute b modulo 10.\n"]


def draw(checkpoint: Path, names: list[list[str]], parameters: SamplingParameters) -> list[list[Response]]:
    prompts = [encoding.ids for encoding in load_tokenizer(checkpoint).encode_batch(PROMPTS_OF_SAMPLER[: len(names)])]
    return sample(Checkpoint(checkpoint).decoder("cpu"), prompts, names, parameters, Checkpoint(checkpoint).end_tokens)


def test_a_sample_depends_on_its_identity_alone(checkpoint: Path) -> None:
    """Not on the batch size, nor on which other samples are drawn beside it."""
    names = [[f"{row}/{number}" for number in range(9)] for row in range(3)]
    together = draw(checkpoint, names, SamplingParameters(max_new_tokens=20, sampling_batch_size=64))
    apart = draw(checkpoint, names, SamplingParameters(max_new_tokens=20, sampling_batch_size=2))
    fewer = draw(checkpoint, [row[:4] for row in names], SamplingParameters(max_new_tokens=20))
    assert together == apart
    assert [row[:4] for row in together] == fewer
    assert len({tuple(response.tokens) for response in together[0]}) > 1


def test_streams_are_independent_and_uniform() -> None:
    values = np.concatenate([uniform_stream(f"a/{number}", 50) for number in range(400)])
    assert stats.kstest(values, "uniform").pvalue > 0.001
    assert not np.array_equal(uniform_stream("a/1", 8), uniform_stream("a/11", 8))
    np.testing.assert_array_equal(uniform_stream("a/1", 8), uniform_stream("a/1", 50)[:8])


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.7)])
def test_first_two_tokens_follow_the_models_distribution(checkpoint: Path, temperature: float, top_p: float) -> None:
    """A chi-square test of 4,000 draws of two tokens against the exact probabilities from transformers."""
    parameters = SamplingParameters(max_new_tokens=2, temperature=temperature, top_p=top_p, sampling_batch_size=4000)
    (responses,) = draw(checkpoint, [[f"x/{number}" for number in range(4000)]], parameters)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    prompt = load_tokenizer(checkpoint).encode(PROMPTS_OF_SAMPLER[0]).ids
    vocabulary, end = model.config.vocab_size, Checkpoint(checkpoint).end_tokens[0]

    def distribution(context: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            probabilities = (model(context).logits[:, -1].double() / temperature).softmax(-1)
        ordered, order = probabilities.sort(descending=True, stable=True)
        ordered[(ordered.cumsum(-1) - ordered) >= top_p] = 0
        kept = torch.zeros_like(probabilities).scatter(-1, order, ordered)
        return kept / kept.sum(-1, keepdim=True)

    first = distribution(torch.tensor([prompt]))[0]
    second = distribution(torch.tensor([[*prompt, token] for token in range(vocabulary)]))
    expected: dict[tuple[int, ...], float] = {(end,): float(first[end])}
    for token in range(vocabulary):
        for following in range(vocabulary):
            if token != end:
                expected[token, following] = float(first[token] * second[token, following])
    counts = dict.fromkeys(expected, 0)
    for response in responses:
        counts[tuple(response.tokens)] += 1
    assert all(probability > 0 for pair, probability in expected.items() if counts[pair])
    common = [pair for pair, probability in expected.items() if probability * 4000 >= 5]
    observed = [counts[pair] for pair in common] + [4000 - sum(counts[pair] for pair in common)]
    wanted = [expected[pair] * 4000 for pair in common] + [4000 * (1 - sum(expected[pair] for pair in common))]
    if wanted[-1] < 1e-6:
        observed, wanted = observed[:-1], wanted[:-1]
    assert stats.chisquare(observed, np.array(wanted) * sum(observed) / sum(wanted)).pvalue > 0.001


def test_end_token_and_limit(checkpoint: Path) -> None:
    end = Checkpoint(checkpoint).end_tokens[0]
    (responses,) = draw(checkpoint, [[f"e/{number}" for number in range(300)]], SamplingParameters(max_new_tokens=12))
    assert {response.finished for response in responses} == {True, False}
    for response in responses:
        assert response.finished == (response.tokens[-1] == end)
        assert end not in response.tokens[:-1]
        assert len(response.tokens) == 12 or response.finished


def test_a_response_that_could_leave_the_context_is_refused(checkpoint: Path) -> None:
    with pytest.raises(UserError, match="accepted: at most the model's context of 128"):
        draw(checkpoint, [["a"]], SamplingParameters(max_new_tokens=126))
