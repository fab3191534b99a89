"""The specification of a training run (run.json) and of where it is carried out: what the engines are given."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from evals.core.errors import InvalidInput, NotAccepted
from evals.core.files import read_json
from evals.core.numbers import Count, Index, NotNegative, Positive, Share
from evals.core.record import Record
from evals.core.training_settings import LocalTraining, TrainingSettings, VerlTraining

LOCAL, VERL = "local", "verl"
"""The engines."""
LOCAL_DTYPES = ("float32", "bfloat16")
"""The types that the local engine and the local sampler compute in."""
VERIFIER_FILE = "verifier.py"
"""The name of the copy that a study keeps of a user's own reward function."""
PLACEHOLDER = "{problem}"
"""The place of the problem's text in a prompt."""
_EXECUTION_OPTIONS = re.compile(
    r"\+*(?:(?:ray_kwargs|transfer_queue|global_profiler)\..+"
    r"|trainer\.(?:logger|rollout_data_dir|log_val_generations|esi_redundant_time)"
    r"|actor_rollout_ref\.actor\.fsdp_config\.(?:reshard_after_forward|forward_prefetch|wrap_policy\..+)"
    r"|actor_rollout_ref\.model\.enable_activation_offload"
    r"|actor_rollout_ref\.rollout\.(?:max_num_seqs|max_num_batched_tokens|enforce_eager|enable_chunked_prefill"
    r"|enable_prefix_caching|cudagraph_capture_sizes|disable_log_stats|load_format|agent\.num_workers"
    r"|checkpoint_engine\..+))"
)
"""Options of verl that say how a run is carried out; any other may change its results."""


class Example(Record):
    """A worked example that a few-shot prompt begins with."""

    problem: str = Field(description="the problem's text")
    solution: str = Field(description="the response that is shown")


class Service(Record):
    """A model that a server with OpenAI's interface has.

    Attributes:
        base_url: its address, with the version: ``http://127.0.0.1:8000/v1``.
        model: the name that the server knows it by.
        api_key_variable: name of the environment variable with the key, which is written nowhere.
        extra_body: what every request says besides, such as ``{"top_k": -1}``.
        timeout: seconds that a response may take.
    """

    base_url: str
    model: str
    api_key_variable: str = "OPENAI_API_KEY"
    extra_body: dict[str, Any] = Field(default={})
    timeout: Positive = 3600.0


class ContrastMeasurement(Record):
    """The measurement of a training's contrast with a reference method, while it trains (docs/evaluation.md).

    It changes no policy, but it is part of what a run is, for the run's metrics say what it found.

    Attributes:
        reference_method: the reference method's name in the study.
        method: its resolved catalogue entry.
        steps: rollout steps, from 1, at which gradients are compared; slopes of the loss are at every step.
    """

    reference_method: str
    method: dict[str, Any]
    steps: tuple[Count, ...]


class RunVerifier(Record):
    """A user's own reward function (docs/your_verifier.md).

    Attributes:
        directory: where the study keeps its copy.
        version: of what runs it.
    """

    directory: Path
    version: int


class _Run(Record):
    """One training: which model, which method, which problems, which seed.

    Attributes:
        run: readable id, also the name of the run's directory.
        base: directory of the base model's artifact.
        problems: directory of the training problems' artifact.
        prompt: template with ``{problem}`` in it once.
        method_name: the method's name in the study.
        method: the resolved catalogue entry.
        seed: of prompt order, rollouts and mini-batches.
        dtype: of the model's forward and backward passes and of the rollouts; weights and optimizer are kept in
            float32.
        prompt_form: "base" for plain text, "chat" for the user's turn of the model's own chat template.
        verifier: what gives the rewards instead of the project's grader; None where it does, and no key then.
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
    verifier: RunVerifier | None = Field(default=None, exclude_if=lambda verifier: verifier is None)

    @field_validator("prompt")
    @classmethod
    def _has_a_place_for_the_problem(cls, value: str) -> str:
        if value.count(PLACEHOLDER) != 1:
            raise NotAccepted(f"is {value!r}", f"text with {PLACEHOLDER} in it once")
        return value

    def parameters(self) -> dict[str, Any]:
        """Return what identifies the run: everything but paths, because the bytes behind them count."""
        paths: dict[str, Any] = {"base": True, "problems": True, "validation": {"problems"}, "verifier": {"directory"}}
        return self.model_dump(mode="json", exclude=paths)

    @property
    def verifier_file(self) -> Path | None:
        """The copy of the user's reward function, if there is one."""
        return self.verifier.directory / VERIFIER_FILE if self.verifier else None


class Validation(Record):
    """The scores that a run takes on held-out problems of its training distribution while it trains.

    Attributes:
        problems: directory of the problems' artifact.
        every: rollout steps between two scores; the first is the base model's, before step 1.
        samples_per_problem: samples of each problem, drawn as rollouts are, from random numbers of their own.
    """

    problems: Path
    every: Count
    samples_per_problem: Count


class LocalRun(_Run):
    """One training by the local engine.

    A run.json has dtype and prompt form where they are other than the laptop study's.

    Attributes:
        contrast: None where it is not measured; a run.json then has no such key.
    """

    dtype: Literal["float32", "bfloat16"] = Field(default="float32", exclude_if=lambda dtype: dtype == "float32")
    prompt_form: Literal["base", "chat"] = Field(default="base", exclude_if=lambda form: form == "base")
    training: LocalTraining
    validation: Validation | None = Field(default=None, exclude_if=lambda validation: validation is None)
    contrast: ContrastMeasurement | None = Field(default=None, exclude_if=lambda measured: measured is None)


class VerlRun(_Run):
    """One training by verl.

    Attributes:
        engine: "verl"; a local run has no such key.
        overrides: options of verl that may change results; None where there are none, and no key then.
    """

    engine: Literal["verl"]
    dtype: Literal["bfloat16", "float32"]
    prompt_form: Literal["base", "chat"]
    training: VerlTraining
    overrides: dict[str, Any] | None = Field(default=None, exclude_if=lambda overrides: overrides is None)


RunSpec = LocalRun | VerlRun


def divide_overrides(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of verl that may change results and belong to a run, and those that say how it is carried out."""
    execution = {key: value for key, value in overrides.items() if _EXECUTION_OPTIONS.fullmatch(key)}
    return {key: value for key, value in overrides.items() if key not in execution}, execution


def parse_run(content: Any, source: str) -> RunSpec:
    """Read the content of a run.json of either engine; without the key ``engine`` the run is the local engine's."""
    engine = content.get("engine", LOCAL) if isinstance(content, dict) else LOCAL
    if engine == VERL:
        return VerlRun.parse(content, source)
    if isinstance(content, dict) and "engine" in content:
        raise InvalidInput(source, "engine", f"is {engine!r}", "verl, or no such key for the local engine")
    return LocalRun.parse(content, source)


def read_run(path: Path) -> RunSpec:
    """Read a run.json of either engine."""
    return parse_run(read_json(path), str(path))


class Execution(Record):
    """The execution of a run by the local engine; nothing here changes its numbers."""

    device: Literal["cpu", "cuda"] = Field(default="cpu", description="that it runs on")
    checkpoint_interval: Count = Field(default=10, description="local: steps between saved states")
    lock_wait_seconds: NotNegative = Field(default=600.0, description="patience with another writer of this directory")
    grading_workers: Count = Field(default=1, description="local: processes that grade")
    hidden_state_budget: Index = Field(
        default=4096, description="local: MiB kept in memory; more are spilled to a file in --out"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="local: compute layers again for the gradient; saves memory"
    )
    rollouts_kept_every: Count | None = Field(
        default=None,
        description="local: steps between two whose rollouts are kept in rollouts/step-N, beside step 1; default: none",
    )


class Cluster(Record):
    """The machines and parallelism of a run by verl (cluster.json); they change numbers by rounding only.

    :class:`evals.core.config.base_models.ClusterChanges` says what each is. Where the platform is not "cuda",
    ``gpus_per_node`` is the number of processes that stand for devices. ``overrides`` are the options of verl that
    change no result; the others are a part of the run.
    """

    platform: str
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
    rollout_kl_limit: Positive = 0.1
    rollouts_kept_every: Count | None = Field(default=None, exclude_if=lambda every: every is None)
    overrides: dict[str, Any] = Field(default={}, exclude_if=lambda overrides: not overrides)

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel(self) -> int:
        """Ranks that hold different rollouts."""
        return self.devices // self.sequence_parallel

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        for key in ("sequence_parallel", "rollout_tensor_parallel"):
            if self.devices % (value := getattr(self, key)):
                raise NotAccepted(f"is {value}", f"a divisor of {self.devices} devices", key)
        parts, node = self.rollout_tensor_parallel, self.gpus_per_node
        if parts % node and node % parts:  # verl would give one vLLM parts of two nodes, and take them for one
            accepted = f"a divisor or a multiple of gpus_per_node, {node}"
            raise NotAccepted(f"is {parts}", accepted, "rollout_tensor_parallel")
        if self.checkpoints_kept < 2:
            accepted = "2 or more, so that a damaged one leaves another"
            raise NotAccepted(f"is {self.checkpoints_kept}", accepted, "checkpoints_kept")
        return self
