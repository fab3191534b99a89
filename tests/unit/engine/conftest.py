"""A base model and a run small enough to train in a second."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import GPTNeoXConfig, LlamaConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from evals.core.files import sha256_file, write_json, write_jsonl
from evals.core.records import ProblemKind
from evals.core.run_spec import Execution, LocalRun
from evals.generation.checkpoint import import_model
from evals.grading import GradingPool, Reason, Verdict
from evals.problems.arithmetic import write_problems
from rlvr.base_model.corpus import FlawedArithmetic, draw_corpus
from rlvr.base_model.train import BaseModelSettings, build_tokenizer, train_base_model
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.rollout import Rollouts
from rlvr.engines.local.train import train
from tests.random_model import architecture

MakeRun = Callable[..., LocalRun]
EXECUTION = Execution(checkpoint_interval=1, lock_wait_seconds=1)

KINDS = [ProblemKind(family="chain", operands=2)]
BASE_SETTINGS = BaseModelSettings.parse(
    {
        "architecture": architecture(32, 48, 1, 64),
        "steps": 200,
        "batch_size": 32,
        "learning_rate": 0.01,
        "warmup_steps": 5,
        "weight_decay": 0.0,
        "gradient_clip": 1.0,
        "seed": 3,
    },
    "settings",
)
TRAINING = {
    "steps": 4,
    "prompts_per_step": 4,
    "samples_per_prompt": 4,
    "updates_per_step": 2,
    "micro_batch_size": 8,
    "max_new_tokens": 16,
    "temperature": 1.0,
    "sampling_batch_size": 64,
    "learning_rate": 0.001,
    "warmup_updates": 2,
    "weight_decay": 0.1,
    "gradient_clip": 1.0,
}
DAPO = {
    "version": 1,
    "advantage": {"name": "grpo"},
    "token_weights": None,
    "loss": {"name": "clipped"},
    "batching": {"assignment": {"name": "random_split"}, "selection": None},
}


SHAPE: Mapping[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"max_position_embeddings": 64, "initializer_range": 0.2, "bos_token_id": None},
}


def save_pretrained(directory: Path, kind: type[PreTrainedConfig], **changes: Any) -> Path:
    """A random model of an architecture with the laptop study's tokenizer."""
    torch.manual_seed(3)
    tokenizer = build_tokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = kind(**{**SHAPE, "vocab_size": len(tokenizer), **ends, **changes})
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def import_pretrained(directory: Path, kind: type[PreTrainedConfig], **changes: Any) -> Path:
    """The same, imported as a base model."""
    import_model(str(save_pretrained(directory / "model", kind, **changes)), directory / "base" / "other")
    return directory / "base" / "other"


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_pretrained(tmp_path_factory.mktemp("llama"), LlamaConfig, num_key_value_heads=2)


@pytest.fixture(scope="session")
def neox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_pretrained(tmp_path_factory.mktemp("neox"), GPTNeoXConfig)


@pytest.fixture(scope="session")
def study_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a base model and training problems."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("study")
    corpus = directory / "corpus.jsonl"
    write_jsonl(corpus, draw_corpus(KINDS, 200 * 32, 1, FlawedArithmetic((0.1,), (1.0,), 0.5, 1)))
    train_base_model(BASE_SETTINGS, corpus, directory / "base" / "tiny", checkpoint_interval=100, wait_seconds=1)
    draw_training_problems(1, directory / "problems")
    return directory


def draw_training_problems(seed: int, out: Path) -> None:
    write_problems("train", [{"family": "chain", "operands": 2}], "train", 10, seed, out)


def checkpoint_hash(directory: Path) -> str:
    return sha256_file(directory / "checkpoint" / "model.safetensors")


def timeless(directory: Path) -> pd.DataFrame:
    """The metrics that no clock and no memory has a part in."""
    metrics = pd.read_parquet(directory / "metrics.parquet")
    return metrics[[name for name in metrics if "seconds" not in name and "memory" not in name]]


def run_content(study_files: Path, training: dict[str, Any]) -> dict[str, Any]:
    """The run.json of a run on these files; ``training`` changes what it names."""
    return {
        "run": "tiny-dapo-s1",
        "model": "tiny",
        "base": str(study_files / "base" / "tiny"),
        "problems": str(study_files / "problems"),
        "prompt": "{problem}\n",
        "method_name": "dapo",
        "method": DAPO,
        "seed": 1,
        "training": {**TRAINING, **training},
    }


@pytest.fixture
def make_run(study_files: Path, tmp_path: Path) -> Callable[..., LocalRun]:
    """Builds a resolved run; keyword arguments change its top-level keys, ``training`` only what it names."""

    def build(training: dict[str, Any] | None = None, **changes: Any) -> LocalRun:
        write_json(tmp_path / "run.json", run_content(study_files, training or {}) | changes)
        return LocalRun.read(tmp_path / "run.json")

    return build


def run_steps(run: LocalRun, steps: int, learner: Learner | None = None) -> Learner:
    """A learner after so many steps of a run."""
    learner = learner or Learner(run, "cpu")
    with GradingPool(workers=1) as pool:
        for _ in range(steps):
            learner.position.metrics.append(learner.step(pool))
    return learner


@pytest.fixture
def train_until(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, LocalRun, Path, Execution], Learner]:
    """Train a run, and kill it when so many steps are done; returns the learner that was killed."""
    whole_step, killed = Learner.step, list[Learner]()

    def train_so_far(steps: int, run: LocalRun, directory: Path, execution: Execution) -> Learner:
        def step(learner: Learner, pool: Any) -> dict[str, float]:
            if learner.position.step == steps:
                killed.append(learner)
                raise KeyboardInterrupt
            return whole_step(learner, pool)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Learner, "step", step)
            train(run, directory, execution)
        return killed[-1]

    return train_so_far


@pytest.fixture
def some_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts of a random model, which solves nothing, are right where the sum of their tokens is odd."""

    def verdicts(rollouts: Rollouts, pool: Any) -> list[Verdict]:
        reasons = (Reason.MISMATCH, Reason.MATCH)
        return [Verdict.of(None, reasons[sum(response) % 2], 0.0) for response in rollouts.tokens.responses]

    monkeypatch.setattr(Rollouts, "verdicts", verdicts)
