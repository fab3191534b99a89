from __future__ import annotations

import subprocess
import sys

import pytest

from evals.core.errors import UserError
from evals.generation.settings import EvaluationSettings

SETTINGS = {
    **{"prompt": "{problem}\n", "samples_per_problem": 4, "max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0},
    **{"sampling_batch_size": 4, "seed": 1, "sampling_threads": 1},
}


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("temperature", -1, "at least 0"),
        ("temperature", float("nan"), "finite number"),
        ("top_p", 0, "above 0"),
        ("top_p", 1.5, "at most 1"),
        ("samples_per_problem", 0, "at least 1"),
        ("max_new_tokens", 0, "at least 1"),
        ("sampling_batch_size", -3, "at least 1"),
        ("max_model_len", 0, "at least 2"),
        ("sampling_threads", 0, "at least 1"),
        ("prompt", "Solve it.", "{problem}"),
    ],
)
def test_numbers_out_of_range_are_refused_in_one_line(key: str, value: object, accepted: str) -> None:
    with pytest.raises(UserError) as error:
        EvaluationSettings.parse({**SETTINGS, key: value}, "")
    assert str(error.value).startswith(f"{key}: is ") and accepted in str(error.value)


def test_planning_does_without_torch() -> None:
    """A job whose samples are made has only to write them: to import torch would take most of its time."""
    command = "import sys, evals.generation.evaluate, rlvr.cli.stages, rlvr.stages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
