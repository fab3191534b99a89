"""What has to hold of a run and its cluster before GPUs are asked for: arithmetic, lengths, what verl can carry out.

verl finds a misfit of batch sizes only at run time, in a remote worker, and never an unknown loss (``validate_config``
passes it). Everything here is arithmetic on the two files and the model's own config.json.
"""

from __future__ import annotations

from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json
from rlvr.engines.verl.run import Cluster, VerlRun
from rlvr.methods.method import Method, compose

_POSITIVE = ("temperature", "learning_rate", "gradient_clip")
_NOT_NEGATIVE = ("warmup_updates", "weight_decay")
_BUDGETS = ("hidden_state_budget", "hidden_state_host_budget")


def check(run: VerlRun, cluster: Cluster, checkpoint: Path | None) -> Method:
    """Check a run before it is launched; its method.

    Args:
        run: the run.
        cluster: where it is to be carried out.
        checkpoint: the model's directory; None to leave out what only the model can tell.

    Raises:
        UserError: one line that names the key and what is accepted.
    """
    try:
        method = compose(run.method)
    except ValueError as error:
        raise UserError(f"method {run.method_name}: {error}") from error
    _check_devices(cluster)
    _check_training(run, cluster)
    _check_method(run, cluster, method)
    _check_lengths(run, cluster)
    if checkpoint is not None:
        _check_model(run, cluster, checkpoint)
    return method


def _check_devices(cluster: Cluster) -> None:
    for key in ("nodes", "gpus_per_node", "grading_workers"):
        if getattr(cluster, key) < 1:
            raise UserError(f"cluster: {key}: is {getattr(cluster, key)}; accepted: 1 or more")
    for key in _BUDGETS:
        if getattr(cluster, key) < 0:
            raise UserError(f"cluster: {key}: is {getattr(cluster, key)}; accepted: 0 or more")
    if not 0 < cluster.gpu_memory_utilization <= 1:
        raise UserError(
            f"cluster: gpu_memory_utilization: is {cluster.gpu_memory_utilization}; accepted: above 0, at most 1"
        )
    for key, parts in (
        ("sequence_parallel", cluster.sequence_parallel),
        ("rollout_tensor_parallel", cluster.rollout_tensor_parallel),
    ):
        if parts < 1 or cluster.devices % parts:
            raise UserError(f"cluster: {key}: is {parts}; accepted: a divisor of {cluster.devices} devices")
    replica, node = cluster.rollout_tensor_parallel, cluster.gpus_per_node
    if replica % node and node % replica:  # verl would give one vLLM parts of two nodes, and take them for one
        raise UserError(
            f"cluster: rollout_tensor_parallel: is {replica}; accepted: a divisor or a multiple of gpus_per_node, "
            f"{node}"
        )
    if cluster.platform == "cpu" and cluster.sequence_parallel > 1:
        raise UserError("cluster: sequence_parallel: is more than 1 with platform cpu; accepted: 1")
    if cluster.checkpoint_interval < 1:
        raise UserError(
            f"cluster: checkpoint_interval: is {cluster.checkpoint_interval}; accepted: 1 or more, so that there is "
            "something to continue from"
        )
    if cluster.checkpoints_kept < 2:
        raise UserError(
            f"cluster: checkpoints_kept: is {cluster.checkpoints_kept}; accepted: 2 or more, so that a damaged one "
            "leaves another"
        )


def _check_training(run: VerlRun, cluster: Cluster) -> None:
    training = run.training
    for key in _POSITIVE:
        if not getattr(training, key) > 0:
            raise UserError(f"training: {key}: is {getattr(training, key)}; accepted: above 0")
    for key in _NOT_NEGATIVE:
        if not getattr(training, key) >= 0:
            raise UserError(f"training: {key}: is {getattr(training, key)}; accepted: 0 or more")
    if training.prompts_per_step % training.updates_per_step:
        raise UserError(
            f"training: updates_per_step: is {training.updates_per_step}; accepted by verl: a divisor of "
            f"prompts_per_step, {training.prompts_per_step}"
        )
    if training.rollouts_per_update % cluster.data_parallel:
        raise UserError(
            f"training: a mini-batch has {training.rollouts_per_update} rollouts (prompts_per_step * samples_per_prompt"
            f" / updates_per_step); accepted: a multiple of the {cluster.data_parallel} data-parallel ranks"
        )
    if training.warmup_updates % training.updates_per_step:
        raise UserError(
            f"training: warmup_updates: is {training.warmup_updates}; accepted by verl, whose learning rate changes "
            f"between rollout steps: a multiple of updates_per_step, {training.updates_per_step}"
        )


def _check_method(run: VerlRun, cluster: Cluster, method: Method) -> None:
    if not method.assignment.equal_sizes and method.loss.coupling != "rollout":
        raise UserError(
            f"method {run.method_name}: mini-batches of unequal sizes (batching.assignment) and a loss that couples "
            "their rollouts; accepted by verl: either, or both with engine local"
        )


def _check_lengths(run: VerlRun, cluster: Cluster) -> None:
    longest = run.training.max_prompt_tokens + run.training.max_new_tokens
    room = cluster.tokens_per_device * cluster.sequence_parallel
    if room < longest:
        raise UserError(
            f"cluster: tokens_per_device: is {cluster.tokens_per_device}; accepted: at least "
            f"{-(-longest // cluster.sequence_parallel)}, the longest prompt and response over sequence_parallel"
        )


def _check_code(checkpoint: Path) -> None:
    """See that nothing in a checkpoint makes transformers run code: verl's reward workers trust their tokenizer's."""
    for path in sorted([*checkpoint.glob("*config.json"), *checkpoint.glob("*.py")]):
        content = {} if path.suffix == ".py" else read_json(path)
        if not isinstance(content, dict):
            raise UserError(f"{path}: is no JSON object; accepted: a Hugging Face checkpoint")
        if path.suffix == ".py" or "auto_map" in content:
            raise UserError(f"{path}: brings code of its own; accepted: a checkpoint that transformers knows")


def _check_model(run: VerlRun, cluster: Cluster, checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    if not path.is_file():
        raise UserError(f"{checkpoint}: holds no config.json; accepted: a Hugging Face checkpoint")
    _check_code(checkpoint)
    config = read_json(path)
    if not any(checkpoint.glob("*.safetensors")):
        raise UserError(f"{checkpoint}: holds no .safetensors file; accepted: weights in safetensors")
    longest = run.training.max_prompt_tokens + run.training.max_new_tokens
    context = config.get("max_position_embeddings")
    if isinstance(context, int) and context < longest:
        raise UserError(
            f"training: max_prompt_tokens + max_new_tokens: is {longest}; accepted: at most {context}, the context of "
            f"{path}"
        )
    heads = config.get("num_attention_heads")
    for key, parts in (
        ("rollout_tensor_parallel", cluster.rollout_tensor_parallel),
        ("sequence_parallel", cluster.sequence_parallel),
    ):
        if isinstance(heads, int) and heads % parts:
            raise UserError(f"cluster: {key}: is {parts}; accepted: a divisor of the model's {heads} attention heads")
