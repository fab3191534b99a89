"""A run as verl trains it: what determines its outcome (run.json), and where it is carried out (cluster.json)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from evals.core.errors import UserError
from evals.core.files import read_json
from evals.problems.problem_set import PLACEHOLDER
from rlvr.engines.exact_keys import exact_keys

Precision = Literal["bfloat16", "float32"]
_COUNTS = ("steps", "prompts_per_step", "samples_per_prompt", "updates_per_step", "max_prompt_tokens", "max_new_tokens")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, on how much, and with which optimizer; the same for every method of a study.

    Attributes:
        steps: rollout steps.
        prompts_per_step: prompts in a rollout batch.
        samples_per_prompt: responses to each prompt, the group.
        updates_per_step: optimizer steps per rollout batch, each on a mini-batch of its own.
        max_prompt_tokens: longest prompt in tokens; longer ones are left out.
        max_new_tokens: longest response in tokens.
        temperature: of the rollouts.
        learning_rate: AdamW's, after warm-up.
        warmup_updates: optimizer steps over which the learning rate rises; verl raises it once per rollout step.
        weight_decay: AdamW's.
        gradient_clip: largest norm of the gradient.
    """

    steps: int
    prompts_per_step: int
    samples_per_prompt: int
    updates_per_step: int
    max_prompt_tokens: int
    max_new_tokens: int
    temperature: float
    learning_rate: float
    warmup_updates: int
    weight_decay: float
    gradient_clip: float

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts in a rollout batch."""
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def rollouts_per_update(self) -> int:
        """Rollouts in an optimizer mini-batch."""
        return self.rollouts_per_step // self.updates_per_step


@dataclass(frozen=True)
class VerlRun:
    """One training.

    Attributes:
        run: readable id, also the name of the run's directory.
        engine: "verl".
        model: name of the base model.
        base: directory of the base model's artifact.
        dtype: in which the model's forward and backward passes and the rollouts are computed; weights and optimizer
            are kept in float32.
        problems: directory of the training problems' artifact.
        prompt: template with ``{problem}`` in it.
        prompt_form: "base" for plain text, "chat" for the user's turn of the model's own chat template.
        method_name: the method's name in the study.
        method: the resolved catalogue entry.
        seed: of prompt order and mini-batches.
        training: settings shared by all methods.
    """

    run: str
    engine: Literal["verl"]
    model: str
    base: Path
    dtype: Precision
    problems: Path
    prompt: str
    prompt_form: Literal["base", "chat"]
    method_name: str
    method: Mapping[str, Any]
    seed: int
    training: TrainingSettings

    @classmethod
    def read(cls, path: Path) -> VerlRun:
        """Read ``run.json``.

        Raises:
            UserError: a key is unknown or missing, a value is not accepted, or the run is another engine's.
        """
        return cls.of(read_json(path), str(path))

    @classmethod
    def of(cls, content: Any, path: str) -> VerlRun:
        """The run of ``content``; ``path`` names it in messages.

        Raises:
            UserError: a key is unknown or missing, a value is not accepted, or the run is another engine's.
        """
        if isinstance(content, dict) and content.get("engine", "local") != "verl":
            raise UserError(f"{path}: engine: is {content.get('engine', 'local')!r}; accepted here: 'verl'")
        values = exact_keys(cls, content, path)
        for key, accepted in (("dtype", get_args(Precision)), ("prompt_form", ("base", "chat"))):
            if values[key] not in accepted:
                raise UserError(f"{path}: {key}: is {values[key]!r}; accepted: {', '.join(accepted)}")
        if values["prompt"].count(PLACEHOLDER) != 1:
            raise UserError(f"{path}: prompt: is {values['prompt']!r}; accepted: text with {PLACEHOLDER} in it once")
        training = TrainingSettings(**exact_keys(TrainingSettings, values["training"], f"{path}: training"))
        for key in _COUNTS:
            if getattr(training, key) < 1:
                raise UserError(f"{path}: training: {key}: is {getattr(training, key)}; accepted: 1 or more")
        return cls(
            **{**values, "base": Path(values["base"]), "problems": Path(values["problems"]), "training": training}
        )

    def parameters(self) -> dict[str, Any]:
        """What identifies the run, for its fingerprint and manifest; paths do not, the bytes behind them do."""
        values = dataclasses.asdict(self)
        del values["base"], values["problems"]
        return values


@dataclass(frozen=True)
class Cluster:
    """Where a run is carried out, and how it is spread; it changes its numbers by rounding alone.

    Attributes:
        platform: "cuda", or "cpu" for tests of this adapter on machines without a GPU.
        nodes: machines.
        gpus_per_node: devices of each; with "cpu" the number of processes that stand for them.
        sequence_parallel: devices that share the tokens of one sequence (Ulysses).
        rollout_tensor_parallel: devices that share one vLLM replica.
        tokens_per_device: tokens in one forward and backward pass of a device.
        gpu_memory_utilization: part of a device's memory that vLLM may take.
        offload: whether weights and optimizer wait in host memory while they are not used.
        checkpoint_interval: steps between saved states.
        checkpoints_kept: saved states that are kept.
        grading_workers: processes that grade.
        hidden_state_budget: mebibytes of hidden states that a device keeps in its memory; more lie in host memory.
        hidden_state_host_budget: mebibytes of hidden states that a node's host memory takes; more are computed anew
            at every reading.
    """

    platform: Literal["cuda", "cpu"]
    nodes: int
    gpus_per_node: int
    sequence_parallel: int
    rollout_tensor_parallel: int
    tokens_per_device: int
    gpu_memory_utilization: float
    offload: bool
    checkpoint_interval: int
    checkpoints_kept: int
    grading_workers: int
    hidden_state_budget: int
    hidden_state_host_budget: int

    @classmethod
    def read(cls, path: Path) -> Cluster:
        """Read ``cluster.json``.

        Raises:
            UserError: a key is unknown or missing, or a value is not accepted.
        """
        values = exact_keys(cls, read_json(path), str(path))
        if values["platform"] not in ("cuda", "cpu"):
            raise UserError(f"{path}: platform: is {values['platform']!r}; accepted: cuda, cpu")
        return cls(**values)

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel(self) -> int:
        """Ranks that hold different rollouts."""
        return self.devices // self.sequence_parallel
