"""What a training records of itself: its distance to the base model, passes over its problems, its optimizer."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from evals.core.errors import InvalidInput
from evals.core.manifest import read_manifest
from evals.core.run_spec import Execution
from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.rollout import Rollouts
from rlvr.engines.local.train import train
from tests.unit.engine.conftest import MakeRun


def test_scores_along_a_training_have_the_distance_to_the_base_model(
    make_run: MakeRun, study_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers computes both models, from the responses that the policy drew."""
    validation = {"problems": str(study_files / "problems"), "every": 2, "samples_per_problem": 2}
    run = make_run({"learning_rate": 0.01}, validation=validation)
    learner, drawn, measure = Learner(run, "cpu"), [], Learner._base_kl

    def recorded(own: Learner, rollouts: Rollouts) -> float:
        drawn.append(rollouts.tokens)
        return measure(own, rollouts)

    monkeypatch.setattr(Learner, "_base_kl", recorded)
    with GradingPool(workers=1) as pool:
        learner.validate(pool)
        for _ in range(2):
            learner.position.metrics.append(learner.step(pool))
        learner.validate(pool)
    start, end = (row["base_kl"] for row in learner.position.validation)
    assert start == 0 and end > 1e-4
    base = study_files / "base" / "tiny" / "checkpoint"
    models = [AutoModelForCausalLM.from_pretrained(base).double() for _ in range(2)]
    models[1].load_state_dict({name: value.double() for name, value in learner.model.weights().items()}, strict=False)
    terms = []
    for prompt, response in zip(drawn[1].prompts, drawn[1].responses, strict=True):
        tokens, own = torch.tensor([[*prompt, *response]]), torch.tensor(response)[:, None]
        with torch.no_grad():
            of_base, of_policy = (
                model(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1).gather(1, own) for model in models
            )
        log_ratio = of_base - of_policy
        terms.append((log_ratio.exp() - 1 - log_ratio)[:, 0])
    assert end == pytest.approx(float(torch.cat(terms).mean()), rel=1e-3)


def test_a_training_counts_passes_over_its_problems(make_run: MakeRun, tmp_path: Path) -> None:
    train(make_run({"adam_beta2": 0.95}), tmp_path / "run", Execution())
    metrics = pd.read_parquet(tmp_path / "run" / "metrics.parquet")
    assert metrics["training_passes"].tolist() == pytest.approx([0.4, 0.8, 1.2, 1.6])  # 4 of 10 problems a step
    optimizer = {"name": "AdamW", "betas": [0.9, 0.95], "epsilon": 1e-8}
    assert read_manifest(tmp_path / "run" / "manifest.json", "run").details["optimizer"] == optimizer
    parameters = make_run({"adam_beta2": 0.95, "adam_epsilon": 1e-8}).parameters()["training"]
    assert parameters["adam_beta2"] == 0.95 and not {"adam_beta1", "adam_epsilon"} & parameters.keys()
    with pytest.raises(InvalidInput, match="adam_beta1"):
        make_run({"adam_beta1": 1.0})
