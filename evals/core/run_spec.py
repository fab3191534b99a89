"""The specification of a training run (run.json) and of where it is carried out: what the engines are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from evals.core.errors import InvalidInput
from evals.core.files import read_json
from evals.core.numbers import Count, Index, NotNegative, Positive, Share
from evals.core.record import Record

LOCAL, VERL = "local", "verl"
"""The engines."""
PLACEHOLDER = "{problem}"
"""The place of the problem's text in a prompt."""


class TrainingSettings(Record):
    """The length, sizes and optimizer of a training; the same for every method of a study unless it says otherwise.

    Attributes:
        steps: rollout steps.
        prompts_per_step: prompts in a rollout batch.
        samples_per_prompt: responses to each prompt, the group.
        updates_per_step: optimizer steps per rollout batch, each on a mini-batch of its own.
        max_new_tokens: longest response in tokens.
        temperature: of the rollouts.
        learning_rate: AdamW's, after warm-up.
        warmup_updates: optimizer steps over which the learning rate rises linearly to its value; verl raises it once
            per rollout step.
        weight_decay: AdamW's.
        gradient_clip: largest norm of the gradient.
    """

    steps: Count
    prompts_per_step: Count
    samples_per_prompt: Count
    updates_per_step: Count
    max_new_tokens: Count
    temperature: Positive
    learning_rate: Positive
    warmup_updates: Index
    weight_decay: NotNegative
    gradient_clip: Positive

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts in a rollout batch."""
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def rollouts_per_update(self) -> int:
        """Rollouts in an optimizer mini-batch, where all have one size."""
        return self.rollouts_per_step // self.updates_per_step


class LocalTraining(TrainingSettings):
    """The training settings of the local engine.

    Attributes:
        micro_batch_size: rollouts in one forward pass of the trainer.
        sampling_batch_size: rollouts decoded at a time.
    """

    micro_batch_size: Count
    sampling_batch_size: Count


class VerlTraining(TrainingSettings):
    """The training settings of verl.

    Attributes:
        max_prompt_tokens: longest prompt in tokens; longer ones are left out.
    """

    max_prompt_tokens: Count

    @field_validator("updates_per_step")
    @classmethod
    def _cuts_the_prompts(cls, value: int, info: ValidationInfo) -> int:
        """Verl cuts a batch into mini-batches by whole prompts."""
        prompts = info.data.get("prompts_per_step")
        if prompts is not None and prompts % value:
            raise ValueError(f"is {value}; accepted by verl: a divisor of prompts_per_step, {prompts}")
        return value

    @field_validator("warmup_updates")
    @classmethod
    def _warms_up_by_steps(cls, value: int, info: ValidationInfo) -> int:
        """Verl changes the learning rate between rollout steps."""
        updates = info.data.get("updates_per_step")
        if updates is not None and value % updates:
            raise ValueError(
                f"is {value}; accepted by verl, whose learning rate changes between rollout steps: a multiple of "
                f"updates_per_step, {updates}"
            )
        return value


class _Run(Record):
    """One training: which model, which method, which problems, which seed.

    Attributes:
        run: readable id, also the name of the run's directory.
        model: name of the base model.
        base: directory of the base model's artifact.
        problems: directory of the training problems' artifact.
        prompt: template with ``{problem}`` in it once.
        method_name: the method's name in the study.
        method: the resolved catalogue entry.
        seed: of prompt order, rollouts and mini-batches.
        training: sizes, length and optimizer.
    """

    run: str
    model: str
    base: Path
    problems: Path
    prompt: str
    method_name: str
    method: dict[str, Any]
    seed: int
    training: TrainingSettings

    _order: ClassVar[tuple[str, ...]]
    _training_order: ClassVar[tuple[str, ...]]

    @field_validator("prompt")
    @classmethod
    def _has_a_place_for_the_problem(cls, value: str) -> str:
        if value.count(PLACEHOLDER) != 1:
            raise ValueError(f"is {value!r}; accepted: text with {PLACEHOLDER} in it once")
        return value

    def parameters(self) -> dict[str, Any]:
        """The values that identify the run, for its fingerprint and its manifest.

        Paths are left out: the bytes behind them count.
        """
        values = self.to_json()
        values["training"] = {key: values["training"][key] for key in self._training_order}
        return {key: values[key] for key in self._order}


class LocalRun(_Run):
    """One training by the local engine."""

    training: LocalTraining

    _order = ("run", "model", "prompt", "method_name", "method", "seed", "training")
    _training_order = (
        *("steps", "prompts_per_step", "samples_per_prompt", "updates_per_step", "micro_batch_size", "max_new_tokens"),
        *("temperature", "sampling_batch_size", "learning_rate", "warmup_updates", "weight_decay", "gradient_clip"),
    )


class VerlRun(_Run):
    """One training by verl.

    Attributes:
        engine: "verl"; a local run has no such key.
        dtype: of the model's forward and backward passes and of the rollouts; weights and optimizer are kept in
            float32.
        prompt_form: "base" for plain text, "chat" for the user's turn of the model's own chat template.
    """

    engine: Literal["verl"]
    dtype: Literal["bfloat16", "float32"]
    prompt_form: Literal["base", "chat"]
    training: VerlTraining

    _order = (
        *("run", "engine", "model", "dtype", "prompt", "prompt_form", "method_name", "method", "seed", "training"),
    )
    _training_order = (
        *("steps", "prompts_per_step", "samples_per_prompt", "updates_per_step", "max_prompt_tokens", "max_new_tokens"),
        *("temperature", "learning_rate", "warmup_updates", "weight_decay", "gradient_clip"),
    )


RunSpec = LocalRun | VerlRun


def parse_run(content: Any, source: str) -> RunSpec:
    """Read the content of a run.json of either engine; without the key ``engine`` the run is the local engine's.

    Raises:
        InvalidInput: a key is unknown or missing, or a value is not accepted.
    """
    engine = content.get("engine", LOCAL) if isinstance(content, dict) else LOCAL
    if engine == VERL:
        return VerlRun.parse(content, source)
    if isinstance(content, dict) and "engine" in content:
        raise InvalidInput(source, "engine", f"is {engine!r}", "verl, or no such key for the local engine")
    return LocalRun.parse(content, source)


def read_run(path: Path) -> RunSpec:
    """Read a run.json of either engine; errors as for :func:`parse_run`, or the file is missing or is not JSON."""
    return parse_run(read_json(path), str(path))


class Execution(Record):
    """The execution of a run by the local engine; nothing here changes its numbers.

    Attributes:
        device: where the model is.
        checkpoint_interval: steps between saved states.
        lock_wait_seconds: how long to wait for another process that trains the same run.
        grading_workers: processes for answers that need symbolic comparison.
        hidden_state_budget: mebibytes of hidden states that are kept in memory; more are spilled to a file.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    checkpoint_interval: Count = 10
    lock_wait_seconds: NotNegative = 600.0
    grading_workers: Count = 1
    hidden_state_budget: Index = 4096


class Cluster(Record):
    """The machines and parallelism of a run by verl (cluster.json); they change numbers by rounding only.

    Attributes:
        platform: "cuda", or "cpu" for tests on machines without a GPU.
        nodes: machines.
        gpus_per_node: devices of each; with "cpu" the number of processes that stand for them.
        sequence_parallel: devices that share the tokens of one sequence (Ulysses).
        rollout_tensor_parallel: devices that share one vLLM replica.
        tokens_per_device: tokens in one forward and backward pass of a device.
        gpu_memory_utilization: share of a device's memory that vLLM may take.
        offload: whether weights and optimizer wait in host memory while they are not used.
        checkpoint_interval: steps between saved states.
        checkpoints_kept: saved states that are kept.
        grading_workers: processes that grade.
        hidden_state_budget: mebibytes of hidden states that a device keeps in its memory; more lie in host memory.
        hidden_state_host_budget: mebibytes of hidden states that a node's host memory takes; more are computed anew
            at every reading.
    """

    platform: Literal["cuda", "cpu"]
    nodes: Count
    gpus_per_node: Count
    sequence_parallel: Count
    rollout_tensor_parallel: Count
    tokens_per_device: Count
    gpu_memory_utilization: Share
    offload: bool
    checkpoint_interval: Count
    checkpoints_kept: int
    grading_workers: Count
    hidden_state_budget: Index
    hidden_state_host_budget: Index

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel(self) -> int:
        """Ranks that hold different rollouts."""
        return self.devices // self.sequence_parallel

    @field_validator("sequence_parallel", "rollout_tensor_parallel")
    @classmethod
    def _shares_the_devices(cls, value: int, info: ValidationInfo) -> int:
        if {"platform", "nodes", "gpus_per_node"} <= info.data.keys():
            node, devices = info.data["gpus_per_node"], info.data["nodes"] * info.data["gpus_per_node"]
            if devices % value:
                raise ValueError(f"is {value}; accepted: a divisor of {devices} devices")
            if info.field_name == "sequence_parallel":
                if info.data["platform"] == "cpu" and value > 1:
                    raise ValueError(f"is {value}; accepted with platform cpu: 1")
            elif value % node and node % value:  # verl would give one vLLM parts of two nodes, and take them for one
                raise ValueError(f"is {value}; accepted: a divisor or a multiple of gpus_per_node, {node}")
        return value

    @field_validator("checkpoints_kept")
    @classmethod
    def _leaves_another(cls, value: int) -> int:
        if value < 2:
            raise ValueError(f"is {value}; accepted: 2 or more, so that a damaged one leaves another")
        return value
