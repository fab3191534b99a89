"""What has to hold of a run and its cluster before GPUs are asked for: arithmetic, lengths, what verl can carry out.

verl finds a misfit of batch sizes only at run time, in a remote worker, and never an unknown loss (``validate_config``
passes it). Everything here is arithmetic on the two files and the model's own config.json.
"""

from __future__ import annotations

from pathlib import Path

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json
from evals.core.run_spec import Cluster, VerlRun
from rlvr.methods.method import Method, compose


def check(run: VerlRun, cluster: Cluster, checkpoint: Path | None) -> Method:
    """Check a run before it is launched; its method.

    Args:
        run: the run.
        cluster: where it is to be carried out.
        checkpoint: the model's directory; None to leave out what only the model can tell.

    Raises:
        UserError: one line that names the key and what is accepted.
    """
    method = compose(run.method, f"method {run.method_name}")
    training = run.training
    if training.rollouts_per_update % cluster.data_parallel:
        raise InvalidInput(
            run.run,
            "training",
            f"a mini-batch has {training.rollouts_per_update} rollouts (prompts_per_step * samples_per_prompt / "
            "updates_per_step)",
            f"a multiple of the {cluster.data_parallel} data-parallel ranks",
        )
    if not method.assignment.equal_sizes and method.loss.coupling != "rollout":
        raise InvalidInput(
            f"method {run.method_name}",
            "batching.assignment",
            "makes mini-batches of unequal sizes, and the method has a loss that couples their rollouts",
            "either with verl, or both with engine local",
        )
    longest = training.max_prompt_tokens + training.max_new_tokens
    if cluster.tokens_per_device * cluster.sequence_parallel < longest:
        raise InvalidInput(
            "cluster",
            "tokens_per_device",
            f"is {cluster.tokens_per_device}",
            f"at least {-(-longest // cluster.sequence_parallel)}, the longest prompt and response over "
            "sequence_parallel",
        )
    if checkpoint is not None:
        _check_model(cluster, checkpoint, longest)
    return method


def _check_code(checkpoint: Path) -> None:
    """See that nothing in a checkpoint makes transformers run code: verl's reward workers trust their tokenizer's."""
    for path in sorted([*checkpoint.glob("*config.json"), *checkpoint.glob("*.py")]):
        content = {} if path.suffix == ".py" else read_json(path)
        if not isinstance(content, dict):
            raise UserError(f"{path}: is no JSON object; accepted: a Hugging Face checkpoint")
        if path.suffix == ".py" or "auto_map" in content:
            raise UserError(f"{path}: brings code of its own; accepted: a checkpoint that transformers knows")


def _check_model(cluster: Cluster, checkpoint: Path, longest: int) -> None:
    path = checkpoint / "config.json"
    if not path.is_file():
        raise UserError(f"{checkpoint}: holds no config.json; accepted: a Hugging Face checkpoint")
    _check_code(checkpoint)
    config = read_json(path)
    if not any(checkpoint.glob("*.safetensors")):
        raise UserError(f"{checkpoint}: holds no .safetensors file; accepted: weights in safetensors")
    context = config.get("max_position_embeddings")
    if isinstance(context, int) and context < longest:
        found = f"max_prompt_tokens + max_new_tokens is {longest}"
        raise InvalidInput("run.json", "training", found, f"at most {context}, the context of {path}")
    heads = config.get("num_attention_heads")
    for key, parts in (
        ("rollout_tensor_parallel", cluster.rollout_tensor_parallel),
        ("sequence_parallel", cluster.sequence_parallel),
    ):
        if isinstance(heads, int) and heads % parts:
            accepted = f"a divisor of the model's {heads} attention heads"
            raise InvalidInput("cluster", key, f"is {parts}", accepted)
