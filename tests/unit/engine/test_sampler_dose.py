"""A sampler that differs from the trainer by a dose, and what corrections and terms of the loss make of a run."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from evals.core.errors import InvalidInput
from evals.core.run_spec import LocalRun
from evals.core.sampling import SamplingParameters
from evals.core.training_settings import SamplerDose
from evals.generation.checkpoint import Checkpoint
from evals.generation.decoder_model import DecoderModel
from evals.grading import GradingPool
from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.policy import TokenBatch, score_in_chunks, token_log_probs, unpack
from rlvr.engines.local.sampler_dose import DosedDraw, rounded
from rlvr.methods.rollout_batch import sampler_metrics
from rlvr.runs.state import StateStore, save_checkpoint
from rlvr.study.catalogue import entry_of_run, load_catalogue, resolve_method
from tests.unit.engine.conftest import MakeRun

DOSES: dict[str, dict[str, Any]] = {
    "int4": {"weights": "int4"},
    "bfloat16": {"weights": "bfloat16"},
    "stale": {"stale": 1},
    "top_p": {"top_p": 0.8},
    "noise": {"noise": 0.5},
}


def entry(name: str) -> dict[str, Any]:
    """The part of a catalogue entry that a run has."""
    return entry_of_run(resolve_method(name, {}, load_catalogue(), "test"))


def train(run: LocalRun, steps: int, learner: Learner | None = None) -> Learner:
    learner = learner or Learner(run, "cpu")
    with GradingPool(workers=1) as pool:
        for _ in range(steps):
            learner.position.metrics.append(learner.step(pool))
    return learner


def resumed_after(steps: int, run: LocalRun, directory: Path) -> Learner:
    """A run that was saved after so many steps, continued by one."""
    store, resumed = StateStore(directory, "a" * 64), Learner(run, "cpu")
    train(run, steps).save(store)
    state = store.latest()
    assert state is not None
    resumed.restore(state)
    return train(run, 1, resumed)


def weights_of(learner: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


def same(left: Learner, right: Learner) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights_of(left), weights_of(right), strict=True))


@pytest.mark.parametrize(("precision", "levels"), [("int8", 127), ("int3", 3)])
def test_integers_are_the_nearest_of_a_rows_levels(precision: str, levels: int) -> None:
    weights = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    weights[2] = 0.0
    found = rounded(weights, precision)
    steps = weights.abs().amax(dim=1, keepdim=True) / levels
    assert bool(((found - weights).abs() <= steps / 2 * (1 + 1e-5)).all()) and len(found[0].unique()) <= 2 * levels + 1
    torch.testing.assert_close(rounded(found, precision), found)
    assert torch.equal(rounded(weights[0], precision), weights[0])  # a vector, as of a norm
    assert torch.equal(rounded(weights, "bfloat16"), weights.bfloat16().float())


def test_the_samplers_log_probs_are_those_of_what_it_draws_from() -> None:
    """Of the likeliest tokens that reach one half, renormalised; with noise, of a distribution of every draw's own."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    names, running = [f"s/{i}" for i in range(200)], torch.arange(200)
    rows = torch.zeros(200, dtype=torch.int64)
    for dose, expected in (({"top_p": 0.5}, [4 / 7, 3 / 7]), ({}, [0.4, 0.3, 0.2, 0.1])):
        parameters = SamplingParameters(max_new_tokens=1, temperature=1.0, top_p=1.0)
        draw = DosedDraw(parameters, names, 1, torch.device("cpu"), SamplerDose(**dose))
        drawn = draw([logits], rows, running, 0)
        assert sorted(set(drawn.tolist())) == list(range(len(expected)))
        torch.testing.assert_close(draw.log_probs[:, 0].exp(), torch.tensor(expected)[drawn])
    noisy = DosedDraw(parameters, names, 1, torch.device("cpu"), SamplerDose(noise=0.5))
    noisy([logits], rows, running, 0)
    assert len(noisy.log_probs.unique()) > 190


def test_dose_zero_has_the_bytes_of_no_dose(make_run: MakeRun) -> None:
    assert same(train(make_run(), 2), train(make_run(training={"sampler": {"stale": 0, "noise": 0.0}}), 2))


@pytest.mark.parametrize("name", DOSES)
def test_a_dose_sets_sampler_and_trainer_apart(name: str, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(method=entry("dapo_icepop"), training={"sampler": DOSES[name]})
    whole = train(run, 3)
    apart = [row["rollout_kl"] for row in whole.position.metrics]
    assert (apart[0] < 1e-9) == (name == "stale") and all(value > 1e-9 for value in apart[1:])
    assert all(0 < row["correction_weight"] <= 5 for row in whole.position.metrics)
    resumed = resumed_after(2, run, tmp_path)
    assert same(resumed, whole)
    assert resumed.position.metrics[-1]["rollout_kl"] == apart[-1]


def test_a_dose_is_refused_where_the_sampler_is_no_copy_of_the_trainer(make_run: MakeRun) -> None:
    with pytest.raises(InvalidInput) as error:
        make_run(training={"sampler": {"stale": 1}, "lora": {"rank": 2, "alpha": 4.0}})
    assert "lora" in error.value.accepted


@pytest.mark.parametrize("name", ["grpo", "grpo_kl_in_reward", "dapo_entropy_target"])
def test_terms_are_measured_timed_and_resumed(name: str, make_run: MakeRun, tmp_path: Path) -> None:
    method = entry(name)
    if name == "dapo_entropy_target":
        method["entropy_bonus"] = {"name": "target", "target": 9.0, "start": 0.1, "step": 0.01}
    run = make_run(method=method)
    whole = train(run, 2)
    first, second = whole.position.metrics
    if name == "dapo_entropy_target":
        assert [row["entropy_coefficient"] for row in (first, second)] == pytest.approx([0.1, 0.11])
    else:
        assert first["seconds_reference"] > 0 and "seconds_reference" not in train(make_run(), 1).position.metrics[0]
    if name == "grpo":
        assert 0 < first["reference_kl"] < second["reference_kl"]
    assert same(resumed_after(1, run, tmp_path), whole)


# The sampler's numbers against the trainer's before any update: of every token, and of those that a method weighs.

FORKING = {"name": "forking_tokens", "top_ratio": 0.25}


def reference(scored: list[list[float]], drawn: list[list[float]], chosen: list[list[bool]]) -> dict[str, float]:
    """The numbers of the chosen tokens of responses, one by one."""
    rows = [[s - d for s, d, c in zip(*row, strict=True) if c] for row in zip(scored, drawn, chosen, strict=True)]
    sizes = sorted(abs(each) for row in rows for each in row)
    outside = [not 0.8 <= math.exp(each) <= 1.28 for row in rows for each in row]
    sums = [abs(sum(row)) for row in rows if row]
    return {
        "sampler_difference_mean": sum(sizes) / len(sizes),
        "sampler_difference_p999": sizes[math.ceil(0.999 * len(sizes)) - 1],
        "sampler_difference_max": sizes[-1],
        "sampler_outside_clip": sum(outside) / len(outside),
        "sampler_response_difference_mean": sum(sums) / len(sums),
    }


def test_the_numbers_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = [1, 900, 3, 400]
    drawn = [(-torch.rand(length, generator=generator).double()).tolist() for length in lengths]
    scored = [[each + 0.4 * math.sin(7 * each) for each in row] for row in drawn]
    weights = [[float(place % 5 == 0) for place in range(length)] for length in lengths]

    def flat(rows: list[list[float]]) -> torch.Tensor:
        return torch.tensor([each for row in rows for each in row], dtype=torch.float64)

    found = sampler_metrics(flat(scored), flat(drawn), torch.tensor(lengths), flat(weights))
    ones = [[1.0] * length for length in lengths]
    of_all = sampler_metrics(flat(scored), flat(drawn), torch.tensor(lengths), flat(ones))
    everything = [[True] * length for length in lengths]
    expected = reference(scored, drawn, everything)
    heavy = reference(scored, drawn, [[each > 0 for each in row] for row in weights])
    kl = sum(math.exp(s - d) - 1 - (s - d) for s, d in zip(flat(scored).tolist(), flat(drawn).tolist(), strict=True))
    expected |= {"rollout_kl": kl / sum(lengths)}
    assert of_all == pytest.approx(expected)
    assert found == pytest.approx(expected | {f"{name}_weighted": value for name, value in heavy.items()})
    assert 0 < found["sampler_outside_clip"] < 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_step_compares_the_sampler_with_the_trainer(make_run: MakeRun, tmp_path: Path, dtype: str) -> None:
    """Of the own sampler: nothing but rounding in float32, and far more in bfloat16."""
    run = make_run(dtype=dtype, method={**make_run().method, "token_weights": FORKING})
    learner = Learner(run, "cpu")
    with GradingPool(workers=1) as pool:
        prepared = learner.prepare(pool)
    tokens, drawn = prepared.rollouts.tokens, prepared.rollouts.log_probs
    scored, _ = score_in_chunks(learner.model, tokens, 1.0, 8)
    metrics = learner.update(prepared)
    # In float32 the first mini-batch's pass is compared, and costs nothing.
    rows = prepared.mini_batches[0] if dtype == "float32" else torch.arange(len(tokens.responses))
    mask = prepared.batch.response_mask[rows]
    of_rows = torch.zeros(prepared.batch.response_mask.shape).masked_scatter(prepared.batch.response_mask, scored)
    one, other, weights = of_rows[rows], drawn[rows][:, : mask.shape[1]], prepared.weights[rows]
    expected = sampler_metrics(one[mask], other[mask], mask.sum(dim=1), weights[mask])
    found = {name: value for name, value in metrics.items() if name.startswith("sampler_")}
    assert found == pytest.approx({name: expected[name] for name in found}, abs=2e-6 if dtype == "float32" else 0)
    assert "sampler_difference_mean_weighted" in found
    assert (found["sampler_difference_max"] > 1e-4) == (dtype == "bfloat16")


# What the trainer computes of given responses, against a plain forward pass of transformers.

BATCH = TokenBatch([[5, 6, 7], [8, 9], [5, 6, 7, 8, 9], [4, 4]], [[10, 11, 1], [12, 1], [13], [14, 15, 16, 17]])
ARCHITECTURE = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
}


@pytest.fixture
def checkpoint(study_files: Path) -> Path:
    return study_files / "base" / "tiny" / "checkpoint"


@pytest.fixture
def model(checkpoint: Path) -> DecoderModel:
    return Checkpoint(checkpoint).model("cpu")


def of_transformers(checkpoint: Path) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return loaded


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_one_sequence_at_a_time(model: DecoderModel, checkpoint: Path, temperature: float) -> None:
    kept: list[torch.Tensor] = []
    log_probs, entropies = score_in_chunks(model, BATCH, temperature, 3, kept.append)
    hidden_states = torch.cat(kept)
    expected_log_probs, expected_entropies, expected_hidden = [], [], []
    reference = of_transformers(checkpoint)
    for prompt, response in zip(BATCH.prompts, BATCH.responses, strict=True):
        with torch.no_grad():
            output = reference(torch.tensor([[*prompt, *response]]), output_hidden_states=True)
        for position, token in enumerate(response, start=len(prompt)):
            distribution = torch.log_softmax(output.logits[0, position - 1].double() / temperature, dim=-1)
            expected_log_probs.append(distribution[token])
            expected_entropies.append(-(distribution.exp() * distribution).sum())
            expected_hidden.append(output.hidden_states[-1][0, position - 1])
    torch.testing.assert_close(log_probs.double(), torch.stack(expected_log_probs), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies.double(), torch.stack(expected_entropies), atol=1e-5, rtol=1e-5)
    assert hidden_states is not None
    torch.testing.assert_close(hidden_states, torch.stack(expected_hidden), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("longest", [30, 50])  # 8 times the head dimension lies between them
def test_gradients_are_those_of_transformers(tmp_path: Path, tied: bool, longest: int) -> None:
    tokenizer = build_tokenizer()
    reference = initial_model({**ARCHITECTURE, "tie_word_embeddings": tied}, tokenizer, 1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name:  # otherwise ones, which would hide a norm that is left out
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.mul_(5)
    save_checkpoint(reference, tokenizer, tmp_path)
    ours = Checkpoint(tmp_path).model("cpu")
    lengths = [(4, longest - 4), (1, 1), (longest - 9, 2), (7, 13)]
    prompts, responses = ([torch.randint(3, 40, (length,), generator=generator).tolist() for length in column]
                          for column in zip(*lengths, strict=True))  # fmt: skip
    factors = torch.randn(sum(map(len, responses)), generator=generator)
    (token_log_probs(ours, TokenBatch(prompts, responses), 0.7) * factors).sum().backward()
    for prompt, response, part in zip(prompts, responses, factors.split(list(map(len, responses))), strict=True):
        logits = reference(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1] / 0.7
        (logits.log_softmax(-1)[torch.arange(len(response)), torch.tensor(response)] * part).sum().backward()
    found = dict(ours.named_parameters())
    assert found.keys() == dict(reference.named_parameters()).keys()
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(found[name].grad, parameter.grad, atol=2e-5 * scale, rtol=1e-4, msg=name)


def test_unpacked_values_stand_in_their_own_row_and_pass_gradients() -> None:
    mask = BATCH.response_mask
    assert mask.sum(dim=1).tolist() == [3, 2, 1, 4]
    packed = torch.arange(1.0, 11.0, requires_grad=True)
    rows = unpack(packed, mask)
    assert rows.tolist() == [[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0], [7, 8, 9, 10]]
    (rows * rows).sum().backward()
    assert packed.grad is not None
    assert packed.grad.tolist() == [2 * value for value in range(1, 11)]
