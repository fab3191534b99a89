"""A small, random Qwen3 with the laptop study's tokenizer, saved as a checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.generation.settings import EvaluationSettings
from tests.artifacts import write_rows
from tests.random_model import save_random_model


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    save_random_model(directory)
    return directory


def write_problems(directory: Path, texts: Sequence[str]) -> Path:
    """A problem set with these texts, whose answers are all 1."""
    rows = [{"id": f"p{number}", "problem": text, "answer": "1"} for number, text in enumerate(texts)]
    return write_rows(directory / "problems.jsonl", "problems", rows)


def settings_of(**given: Any) -> EvaluationSettings:
    """Settings of sampling with what is ``given``."""
    content: dict[str, Any] = {"samples_per_problem": 2, "seed": 1, "prompt": "{problem}", "max_new_tokens": 12}
    content |= {"sampling_threads": 1, "temperature": 1.0, "top_p": 1.0, "sampling_batch_size": 5}
    return EvaluationSettings.parse({**content, **given}, "")
