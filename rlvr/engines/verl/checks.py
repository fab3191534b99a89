"""Checks of a run and its launch before GPUs are asked for.

verl finds a misfit of batch sizes only at run time, in a remote worker. :func:`check` is arithmetic on run.json,
cluster.json and the model's own config.json. :func:`compose_config` holds the launch against verl's own configuration,
checks and registries; it needs verl and no GPU.
"""

import os
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError, first_line
from evals.core.files import read_json
from evals.core.run_spec import Cluster, VerlRun
from evals.generation.checkpoint import checkpoint_files, file_with_code
from rlvr.engines.verl import PINNED
from rlvr.engines.verl.adapters import require_followed
from rlvr.engines.verl.launch import Launch
from rlvr.methods.advantages import TextShaping
from rlvr.methods.loss_terms import RewardTerm
from rlvr.methods.method import compose


def check(run: VerlRun, cluster: Cluster, checkpoint: Path | None) -> None:
    """Check a run before it is launched.

    ``checkpoint`` is the model's directory; None to leave out what only the model can tell.
    """
    method = compose(run.method, f"method {run.method_name}", run.training.max_new_tokens)
    training = run.training
    if training.rollouts_per_update % cluster.data_parallel:
        sizes = "prompts_per_step * samples_per_prompt / updates_per_step"
        message = f"a mini-batch has {training.rollouts_per_update} rollouts ({sizes})"
        raise InvalidInput(
            run.run, "training", message, f"a multiple of the {cluster.data_parallel} data-parallel ranks"
        )
    if not method.assignment.equal_sizes:
        message = "makes mini-batches of unequal sizes"
        raise InvalidInput(f"method {run.method_name}", "batching.assignment", message, "with engine local alone")
    if isinstance(method.reward_shaping, TextShaping):
        raise InvalidInput(f"method {run.method_name}", "reward_shaping", "reads responses", "with engine local alone")
    if isinstance(method.kl, RewardTerm):
        # verl scores a selected batch: nothing may need the penalised rewards earlier.
        accepted = "none beside kl: reward_term, or engine local"
        if method.selection is not None:
            raise InvalidInput(f"method {run.method_name}", "batching.selection", "is there", accepted)
        if method.needs_hidden_states:
            raise InvalidInput(f"method {run.method_name}", "token_weights", "are of hidden states", accepted)
    longest = training.max_prompt_tokens + training.max_new_tokens
    if cluster.tokens_per_device * cluster.sequence_parallel < longest:
        least = -(-longest // cluster.sequence_parallel)
        accepted = f"at least {least}, the longest prompt and response over sequence_parallel"
        raise InvalidInput("cluster", "tokens_per_device", f"is {cluster.tokens_per_device}", accepted)
    if checkpoint is not None:
        checkpoint_files(checkpoint)
        # Nothing may make transformers run code: verl's reward workers trust their tokenizer's.
        if (file := file_with_code(checkpoint)) is not None:
            raise UserError(f"{file}: brings code of its own; accepted: a checkpoint that transformers knows")
        context = read_json(path := checkpoint / "config.json").get("max_position_embeddings")
        if isinstance(context, int) and context < longest:
            message = f"max_prompt_tokens + max_new_tokens is {longest}"
            raise InvalidInput("run.json", "training", message, f"at most {context}, the context of {path}")
        require_followed(run, checkpoint)


def compose_config(launch: Launch) -> Any:
    """Compose verl's configuration with the launch's overrides, and check it as verl does, and against its registries.

    Sets the launch's environment in this process.
    """
    from rlvr.engines.verl.registered import current_run

    try:
        installed = version("verl")
    except PackageNotFoundError as error:
        accepted = f"verl {PINNED} (see docs/paper_scale.md)"
        raise UserError(f"verl: is not installed in this Python; accepted: {accepted}") from error
    if installed != PINNED:
        raise UserError(f"verl: is {installed}; accepted: {PINNED}, which the adapter is written for")
    os.environ.update(launch.environment)
    sys.path += [path for path in launch.environment["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    current_run.cache_clear()
    warnings.filterwarnings("ignore")  # of the engines that verl does not find
    try:
        return _composed(launch)
    except Exception as error:
        refusals = (AssertionError, ValueError, KeyError, TypeError, AttributeError)
        if isinstance(error, refusals) or type(error).__module__.split(".")[0] in ("hydra", "omegaconf"):
            raise UserError(f"verl: {first_line(error)}") from error
        raise


def _composed(launch: Launch) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    # The first import of verl imports the plugin, by the environment.
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.utils.import_utils import load_extern_type

    spec = find_spec("verl")
    assert spec is not None and spec.origin is not None
    with initialize_config_dir(str(Path(spec.origin).parent / "trainer" / "config"), version_base=None):
        config = hydra_compose("ppo_trainer", overrides=launch.words[len(launch.command) :])
    validate_config(config, need_reference_policy(config), need_critic(config))
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    get_reward_manager_cls(config.reward.reward_manager.name)
    sampler = config.trainer.v1.sampler.custom_sampler
    if sampler.get("path"):
        load_extern_type(sampler.path, sampler.name)
    return config
