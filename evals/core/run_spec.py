"""The specification of a training run (run.json) and of where it is carried out: what the engines are given."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from evals.core.errors import InvalidInput, refuse
from evals.core.files import read_json
from evals.core.numbers import Count, NotNegative, Positive, Several, Share
from evals.core.record import Record, setting
from evals.core.training_settings import LocalTraining, TrainingSettings, VerlTraining
from evals.core.values import Matching, Prompt, Text

LOCAL, VERL = "local", "verl"  # the engines
LOCAL_DTYPES = ("float32", "bfloat16", "float16")  # the types that the local engine and the local sampler compute in
VERIFIER_FILE = "verifier.py"  # the name of the copy that a study keeps of a user's own reward function
COMPONENT_FILE = "component.py"
"""The name of the results' copy of a file in which the user declares components (docs/your_method.md)."""
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
OptionOfVerl = Annotated[str, Matching(r"\+{0,2}[\w.-]+", "an option of verl, such as a.b.c")]


def _without_secrets(address: str) -> str:
    refuse(re.search("[@?#]", address), "has a user, a password or a query", "an address alone: a key has a variable")
    return address


class Service(Record):
    """A model that a server with OpenAI's interface has."""

    base_url: Annotated[
        str, AfterValidator(_without_secrets), Matching(r"https?://\S+", "an address such as http://127.0.0.1:8000/v1")
    ] = setting("address of the server, with the version")
    model: Text = setting("the name that the server knows it by")
    api_key_variable: Annotated[str, Matching(r"\w+_API_KEY", "a variable whose name ends in _API_KEY")] = setting(
        "environment variable with the key", "OPENAI_API_KEY"
    )
    extra_body: dict[str, Any] = setting("extra JSON fields for each request; null removes a field", {})
    timeout: Positive = setting("seconds that a response may take", 3600.0)

    def check_whole(self) -> None:
        secret = r'"([^"]*(?:api[_-]?key|secret(?:[_-]?key)?|password|authori[sz]ation|access[_-]?token)|token)": '
        named = re.search(secret, json.dumps(self.extra_body), re.I)
        accepted = "no keys or passwords: api_key_variable names the variable of the key"
        refuse(named, f"has {named[1] if named else ''}", accepted, "extra_body")


class Head(Record):
    """The precision of a model's head."""

    head_dtype: Literal["float32"] | None = setting(
        "precision of the language-model head; default: the model's; engine and backend local, of Llama, Qwen2 and "
        "Qwen3",
        None,
    )


class ContrastMeasurement(Record):
    """The measurement of a run's contrast with a reference method, while it trains (docs/evaluation.md).

    It changes no policy, but it is part of what a run is, for the run's metrics say what it found.
    """

    reference_method: str  # the reference method's name in the study
    method: dict[str, Any]  # its resolved catalogue entry
    steps: tuple[Count, ...]  # from 1, at which gradients are compared; slopes of the loss are at every step


class RunVerifier(Record):
    """A user's own reward function (docs/your_verifier.md)."""

    directory: Path  # where the study keeps its copy
    version: int  # of what runs it


def parts_in_files(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Find the components of a method's entry that a file of the user's declares."""
    within = [entry[part] for part in ("batching", "loss") if isinstance(entry.get(part), Mapping)]
    for part in (part for parts in (entry, *within) for part in parts.values()):
        if isinstance(part, dict) and "file" in part:
            yield part


class _Run(Record):
    """One training: which model, which method, which problems, which seed."""

    run: str  # readable id, also the name of the run's directory
    model: str
    base: Path  # directory of the base model's artifact
    problems: Path  # directory of the training problems' artifact
    prompt: Prompt  # template with {problem} in it once
    method_name: str  # the method's name in the study
    method: dict[str, Any]  # the resolved catalogue entry
    seed: int  # of prompt order, rollouts and mini-batches
    training: TrainingSettings
    chat_template_kwargs: dict[str, Any] = Field(default={})  # what the template is told
    verifier: RunVerifier | None = None  # what gives the rewards in place of the project's grader

    def to_json(self) -> dict[str, Any]:
        """The content of run.json, which has no key that is left at its default."""
        return self.identity()

    def parameters(self) -> dict[str, Any]:
        """Return what identifies the run: everything but paths, because the bytes behind them count."""
        paths: dict[str, Any] = {"base": True, "problems": True, "validation": {"problems"}, "verifier": {"directory"}}
        return self.model_dump(mode="json", exclude=paths, exclude_defaults=True)

    @property
    def component_files(self) -> tuple[Path, ...]:
        """The results' copies of the user's files with components of the method, or of that of its contrast."""
        contrast = getattr(self, "contrast", None)  # of the local engine
        entries = [self.method, contrast.method] if contrast else [self.method]
        files = [part["file"] for entry in entries for part in parts_in_files(entry)]
        return tuple(map(Path, dict.fromkeys(files)))

    @property
    def verifier_file(self) -> Path | None:
        """The copy of the user's reward function, if there is one."""
        return self.verifier.directory / VERIFIER_FILE if self.verifier else None


class ValidationSchedule(Record):
    """The times and sizes of the scores that a run takes on held-out problems."""

    every: Count = setting("rollout steps between two scores")
    samples_per_problem: Count = setting("samples of each problem")


class Validation(ValidationSchedule):
    """The scores that a run takes while it trains on the problems in the directory ``problems``."""

    problems: Path


class LocalRun(_Run, Head):
    """One training by the local engine."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of passes and rollouts; weights are kept in float32
    prompt_form: Literal["base", "chat"] = "base"  # plain text, or the user's turn of the model's own chat template
    training: LocalTraining
    validation: Validation | None = None
    contrast: ContrastMeasurement | None = None  # None where it is not measured

    def check_whole(self) -> None:
        by_vllm, found = self.training.sampling_backend != "local", f"is {self.head_dtype} with sampling_backend vllm"
        refuse(by_vllm and self.head_dtype is not None, found, "none, or local", "head_dtype")


class VerlRun(_Run):
    """One training by verl."""

    engine: Literal["verl"]  # "verl"; a local run has no such key
    dtype: Literal["bfloat16", "float32"]
    prompt_form: Literal["base", "chat"]
    training: VerlTraining
    overrides: dict[str, Any] = Field(default={})  # options of verl that may change results


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


class TrainingExecution(Record):
    """The execution of a run by either engine; nothing here changes its numbers."""

    checkpoint_interval: Count = setting("training steps between saved states", 10)
    grading_workers: Count = setting("processes for symbolic comparison", 1)
    rollouts_kept_every: Count | None = setting(
        "training steps between two whose rollouts are kept token by token, beside step 1 (docs/tokens.md); default: "
        "none",
        None,
    )


class OneDevice(Record):
    """The device of a job that computes in its own process."""

    device: Literal["cpu", "cuda"] = setting("where models are", "cpu")


class Execution(TrainingExecution, OneDevice):
    """The execution of a run by the local engine; nothing here changes its numbers."""

    gradient_checkpointing: bool = setting(
        "whether layers are computed again for the gradient: less memory, a third more time; engine local", False
    )
    lock_wait_seconds: NotNegative = setting(
        "seconds to wait for another process that writes into the same directory", 600.0
    )


class Machines(Record):
    """The machines and the parallelism of runs by verl; they change numbers by rounding only."""

    platform: Annotated[str, Matching(r"[A-Za-z_]\w*", "cuda, or the name of a Python module")] = setting(
        "cuda, or the Python module of another platform, as `tests/engines/cpu_launch.py` for CPUs", "cuda"
    )
    nodes: Count = setting("machines")
    gpus_per_node: Count = setting("GPUs of each machine, or processes where the platform is not cuda")
    sequence_parallel: Count = setting("GPUs that share a sequence", 1)
    rollout_tensor_parallel: Count = setting("GPUs that share a vLLM replica", 1)
    tokens_per_device: Count = setting("tokens in one forward pass of a GPU")
    gpu_memory_utilization: Share = setting("share of GPU memory for vLLM", 0.6)
    offload: bool = setting("whether weights and optimizer wait in host memory", False)
    checkpoints_kept: Several = setting("saved states", 2)
    rollout_kl_limit: Positive = setting(
        "KL divergence of vLLM from the trainer, in nats a token, above which a run ends", 0.1
    )
    overrides: dict[OptionOfVerl, Any] = setting(
        "options of verl, as Hydra has them, but none that the project sets (docs/paper_scale.md)", {}
    )

    @property
    def devices(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel(self) -> int:
        """Ranks that hold different rollouts."""
        return self.devices // self.sequence_parallel

    def check_whole(self) -> None:
        for key in ("sequence_parallel", "rollout_tensor_parallel"):
            value = getattr(self, key)
            refuse(self.devices % value, f"is {value}", f"a divisor of {self.devices} devices", key)
        parts, node = self.rollout_tensor_parallel, self.gpus_per_node
        is_cut = parts % node and node % parts  # verl would give one vLLM parts of two nodes, and take them for one
        accepted = f"a divisor or a multiple of gpus_per_node, {node}"
        refuse(is_cut, f"is {parts}", accepted, "rollout_tensor_parallel")


class Cluster(TrainingExecution, Machines):
    """The execution of a run by verl: cluster.json. ``overrides`` are those options of verl that change no result."""
