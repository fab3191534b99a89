"""The run of a process of verl: its grader, and the numbers of its prompts."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from evals.core.files import write_json
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.verl import registered
from rlvr.engines.verl.launch import CLUSTER_VARIABLE, RUN_VARIABLE
from rlvr.engines.verl.registered import group_ids
from tests.unit.verl.conftest import CLUSTER, run_content


def test_prompts_are_numbered_as_they_come() -> None:
    assert group_ids(["x", "a", "x", "b"]).tolist() == [0, 1, 0, 2]


def byte_level(directory: Path) -> tuple[Checkpoint, Tokenizer]:
    """A checkpoint whose tokens are bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "config.json", {"model_type": "llama", "eos_token_id": 0})
    return Checkpoint(directory), tokenizer


VERIFIERS = Path(__file__).parents[3] / "config/verifiers"
VERIFIER = """
def verify(problem, response):
    return 0.25 if response == problem["solution"] else response == problem["answer"]
"""


CODE = json.dumps({"inputs": ["1 2"], "outputs": ["3"]})


@pytest.mark.parametrize(
    ("verifier", "row", "rewards"),
    [
        (None, None, {"2": 0, r"\boxed{2}": 1, "1 + 1": 0}),
        (VERIFIER, {"answer": "2", "solution": "1 + 1"}, {"2": 1, r"\boxed{2}": 0, "1 + 1": 0.25}),
        ("program.py", {"answer": "4567890123"}, {"b=a+4\n\\boxed{b}": 1, "b=a+3\n\\boxed{b}": 0}),
        ("program_tests.py", {"answer": CODE}, {"```python\nprint(3)\n```": 1, "```\nprint(input())\n```": 0}),
    ],
)
def test_rewards_are_those_of_the_grader_or_of_a_verifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verifier: str | None, row: Any, rewards: dict[str, float]
) -> None:
    content = run_content()
    if verifier is not None:
        content["verifier"] = {"directory": "results/verifiers/train", "version": 1}
        (tmp_path / "verl").mkdir()
        source = (VERIFIERS / verifier).read_text() if verifier.endswith(".py") else verifier
        (tmp_path / "verl/verifier.py").write_text(source)
    for variable, name, each in ((RUN_VARIABLE, "run.json", content), (CLUSTER_VARIABLE, "cluster.json", CLUSTER)):
        write_json(tmp_path / name, each)
        monkeypatch.setenv(variable, str(tmp_path / name))
    for cached in (registered.current_run, registered._pool):
        cached.cache_clear()
    truth = "2" if row is None else json.dumps({"id": "p", **row})
    checkpoint, tokenizer = byte_level(tmp_path)
    try:
        graded = {
            text: registered.grade(checkpoint, [], tokenizer.encode(text).ids, True, truth).reward for text in rewards
        }
        assert graded == rewards
    finally:
        registered._pool().close()
        for cached in (registered.current_run, registered._pool):
            cached.cache_clear()
