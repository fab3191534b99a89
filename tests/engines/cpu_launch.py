"""What a launch of verl has besides where processes stand for GPUs: a cluster with ``platform: cpu``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rlvr.engines.verl.launch import PLUGIN


def environment(repository: Path) -> dict[str, str]:
    """Variables of all of verl's processes; the platform's module is beside this file."""
    return {
        "PYTHONPATH": os.pathsep.join([str(repository), str(repository / "tests" / "engines")]),
        "VERL_USE_EXTERNAL_MODULES": f"rlvr_cpu_platform,{PLUGIN}",  # the platform before anything that asks for it
        "VERL_PLATFORM": "rlvr_cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # Ray's workers would give way to everything else that runs; and those that it starts in advance are of no
        # use, because those of a run have an environment of their own.
        "RAY_worker_niceness": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
    }


def overrides(devices: int) -> dict[str, Any]:
    """Options in place of those for GPUs, and beside them."""
    actor, model, rollout = (f"actor_rollout_ref.{part}" for part in ("actor", "model", "rollout"))
    return {
        "trainer.device": "cpu",
        f"{model}.use_remove_padding": False,
        f"{actor}.use_torch_compile": False,
        f"{actor}.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        f"+{model}.override_config.attn_implementation": "sdpa",
        f"{rollout}.enforce_eager": True,
        f"{rollout}.free_cache_engine": False,
        f"+{rollout}.enable_sleep_mode": False,
        f"{rollout}.agent.num_workers": 1,
        f"{rollout}.max_num_seqs": 256,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        # Ray hands out logical devices, one for each process that stands for one, and is not asked for real ones.
        "+ray_kwargs.ray_init.num_gpus": devices,
        "ray_kwargs.ray_init.num_cpus": 16,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init._node_ip_address": "127.0.0.1",
    }
