"""A claim's own samples are judged as in evaluation: of thinking that a prompt opens, and whose tags are special."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.core.records import Problem
from evals.core.sampling import SamplingParameters
from evals.generation.plan import encode_prompts
from evals.generation.request import Request, Response
from evals.grading import GradingPool
from rlvr_claims.claims.sampling_settings import SAMPLES, accuracies
from rlvr_claims.counterfactual import Place, token_values
from tests.unit.generation.test_thinking import PROBLEM, RESPONSES, a_model


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_judged_alike_wherever_it_is_graded(name: str, tmp_path: Path) -> None:
    opening, special, opens, text, finished, correct = RESPONSES[name]
    model, whole = a_model(tmp_path, opening, special, opens)
    ids = whole.encode(text + "<|end|>" * finished, add_special_tokens=False)
    (prompt,) = encode_prompts(model, [PROBLEM["problem"]], "chat")
    response = Response(ids, finished, log_probs=[0.0] * len(ids))

    def responds(prompts: Sequence[Any], identities: Sequence[Sequence[str]], *_: Any) -> list[list[Response]]:
        return [[response for _ in names] for names in identities]

    requests = [Request(prompt, str(number), len(ids)) for number in range(SAMPLES)]
    with GradingPool(workers=1) as pool:
        taken = accuracies(model.tokenizer, [Problem(**PROBLEM)], requests, [response] * SAMPLES, pool)
        place, longer = Place(prompt, [], ids[0], 0.5, "3", "x"), SamplingParameters(max_new_tokens=len(ids) + 1)
        (value,) = token_values(responds, model.tokenizer, [place], longer, model.end_tokens, 1, pool)
    assert (bool(taken[0]), bool(value.of_prefix)) == (correct, correct)
