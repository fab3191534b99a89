"""The distribution that the sampler draws from, and whose random numbers each sample uses."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoModelForCausalLM

from evals.core.errors import UserError
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from evals.generation.request import Response
from evals.generation.sampler import sample, uniform_stream

PROMPTS = ["Compute 3+4 from left to right, modulo 10.\n", "7\n", "Let a=3;b=a+7. Compute b modulo 10.\n"]


def draw(checkpoint: Path, names: list[list[str]], parameters: SamplingParameters) -> list[list[Response]]:
    prompts = [encoding.ids for encoding in load_tokenizer(checkpoint).encode_batch(PROMPTS[: len(names)])]
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
    prompt = load_tokenizer(checkpoint).encode(PROMPTS[0]).ids
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
