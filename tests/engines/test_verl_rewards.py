"""The reward manager that verl calls, on tensors as verl has them: the verdicts are evaluation's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evals.core.files import write_json
from evals.generation.plan import encode_prompts
from rlvr.engines.verl import registered
from rlvr.engines.verl.launch import CLUSTER_VARIABLE, RUN_VARIABLE
from tests.unit.generation.test_thinking import PROBLEM, RESPONSES, a_model
from tests.unit.verl.conftest import CLUSTER, run_content

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")


def test_thinking_is_rewarded_as_evaluation_grades_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "run.json", run_content())
    write_json(tmp_path / "cluster.json", CLUSTER)
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "run.json"))
    monkeypatch.setenv(CLUSTER_VARIABLE, str(tmp_path / "cluster.json"))
    for cached in (registered.current_run, registered._pool):
        cached.cache_clear()
    from rlvr.engines.verl.plugin import GradingRewardManager

    manager = object.__new__(GradingRewardManager)
    found, expected = list[tuple[float, float]](), list[tuple[float, float]]()
    try:
        for number, (opening, special, opens, text, finished, correct) in enumerate(RESPONSES.values()):
            model, whole = a_model(tmp_path / str(number), opening, special, opens)
            (prompt,) = encode_prompts(model, [PROBLEM["problem"]], "chat")
            response = whole.encode(text + "<|end|>" * finished, add_special_tokens=False)
            longest = len(response) + (3 if finished else 0)
            # verl pads prompts on the left and responses on the right.
            prompts, responses = torch.zeros(len(prompt) + 2).long(), torch.zeros(longest).long()
            prompts[2:], responses[: len(response)] = torch.tensor(prompt), torch.tensor(response)
            mask = torch.tensor([0] * 2 + [1] * (len(prompt) + len(response)) + [0] * (longest - len(response)))
            batch = {"prompts": prompts, "responses": responses, "attention_mask": mask}
            item = SimpleNamespace(batch=batch, non_tensor_batch={"reward_model": {"ground_truth": PROBLEM["answer"]}})
            manager._longest, manager._checkpoint = longest, model
            answer = asyncio.run(manager.run_single([item]))
            found.append((answer["reward_score"], answer["reward_extra_info"]["truncated"]))
            expected.append((float(correct), float(not finished)))
    finally:
        registered._pool().close()
        for cached in (registered.current_run, registered._pool):
            cached.cache_clear()
    assert found == expected and len(set(found)) == 3
