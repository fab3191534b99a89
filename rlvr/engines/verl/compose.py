"""A launch held against verl itself: its configuration, its checks, its registries. Imports verl; needs no GPU."""

from __future__ import annotations

import os
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from rlvr.engines.verl import PINNED
from rlvr.engines.verl.launch import Launch
from rlvr.engines.verl.this_run import this_run


def require_verl() -> None:
    """See that the verl of this adapter is here.

    Raises:
        UserError: it is not.
    """
    try:
        found = version("verl")
    except PackageNotFoundError as error:
        raise UserError(
            f"verl: is not installed in this Python; accepted: verl {PINNED} (see docs/paper_scale.md)"
        ) from error
    if found != PINNED:
        raise UserError(f"verl: is {found}; accepted: {PINNED}, which the adapter is written for")


def compose(launch: Launch) -> Any:
    """Compose verl's configuration with the launch's overrides; check it as verl does, and against its registries.

    Sets the launch's environment in this process.

    Raises:
        UserError: verl is not here, or does not accept the launch; one line.
    """
    require_verl()
    os.environ.update(launch.environment)
    this_run.cache_clear()
    warnings.filterwarnings("ignore")  # of the engines that verl does not find
    try:
        return _composed(launch)
    except (AssertionError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"verl: {_first_line(error)}") from error
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("hydra", "omegaconf"):
            raise
        raise UserError(f"verl: {_first_line(error)}") from error


def _composed(launch: Launch) -> Any:
    import verl.trainer.ppo.core_algos as algorithms  # imports the plugin, by the environment
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.utils.import_utils import load_extern_type

    from rlvr.engines.verl.plugin import register_method

    register_method()
    spec = find_spec("verl")
    assert spec is not None and spec.origin is not None
    with initialize_config_dir(str(Path(spec.origin).parent / "trainer" / "config"), version_base=None):
        config = hydra_compose("ppo_trainer", overrides=launch.words[len(launch.command) :])
    validate_config(config, need_reference_policy(config), need_critic(config))
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    # An unknown loss is not refused by verl's own check.
    algorithms.get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)
    algorithms.get_adv_estimator_fn(config.algorithm.adv_estimator)
    get_reward_manager_cls(config.reward.reward_manager.name)
    sampler = config.trainer.v1.sampler.custom_sampler
    if sampler.get("path"):
        load_extern_type(sampler.path, sampler.name)
    if config.trainer.save_freq < 1:
        raise ValueError(f"trainer.save_freq is {config.trainer.save_freq}; nothing would be saved to continue from")
    return config


def _first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
