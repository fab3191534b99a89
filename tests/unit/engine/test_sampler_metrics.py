"""The sampler's numbers against the trainer's before any update: of every token, and of those that a method weighs."""

import math
from pathlib import Path

import pytest
import torch

from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.policy import score_in_chunks
from rlvr.methods.rollout_batch import sampler_metrics
from tests.unit.engine.conftest import MakeRun

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
