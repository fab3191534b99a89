"""A claim's own samples are judged as in evaluation: of thinking that a prompt opens, and whose tags are special."""

from pathlib import Path

import pytest

from evals.core.records import Problem
from evals.core.sampling import SamplingParameters
from evals.generation.backend import Request
from evals.grading import GradingPool
from rlvr_claims.claims.sampling_settings import SAMPLES, accuracies
from rlvr_claims.counterfactual import Place, token_values
from tests.unit.generation.test_thinking import PROBLEM, RESPONSES, answered


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_judged_alike_wherever_it_is_graded(name: str, tmp_path: Path) -> None:
    case = answered(tmp_path, name)
    model, prompt, response, ids = case.model, case.prompt, case.response, case.response.tokens
    requests = [Request(prompt, str(number), len(ids)) for number in range(SAMPLES)]
    with GradingPool(workers=1) as pool:
        taken = accuracies(model.tokenizer, [Problem(**PROBLEM)], requests, [response] * SAMPLES, pool)
        place, longer = Place(prompt, [], ids[0], 0.5, "3", "x"), SamplingParameters(max_new_tokens=len(ids) + 1)
        (value,) = token_values(case.responds, model.tokenizer, [place], longer, model.end_tokens, 1, pool)
    assert (bool(taken[0]), bool(value.of_prefix)) == (case.correct, case.correct)
