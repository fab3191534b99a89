"""A stand-in for a GPU, in a process of its own: tensors that say they are on cuda:0 and refuse to meet the CPU's.

They hold a tensor of the CPU, which computes. An operation on both kinds raises what CUDA raises, and numpy() of one
fails as there. It shows no kernels, memory, speed or order of sums. `python -m tests.unit.engine.stand_in COMPILED
JOBS` makes the jobs of a JSON file, ``{name: {kind, ...}}``, and prints a line of JSON for each.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# Before torch, which asks once whether there is a GPU.
_LIBRARY = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL) if __name__ == "__main__" else None

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map  # noqa: E402

CUDA = torch.device("cuda", 0)
_GUARD = """
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
using namespace c10;
static const Device gpu(DeviceType::CUDA, 0);
static const Stream stream(Stream::DEFAULT, gpu);
struct Guard final : impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return gpu; }
  Device getDevice() const override { return gpu; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return stream; }
  Stream getDefaultStream(Device) const override { return stream; }
  Stream exchangeStream(Stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeDevice(const DeviceIndex) const override {}
};
namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  void deviceSynchronize(DeviceIndex) const override {}
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}
extern "C" void install() { impl::registerDeviceGuard(DeviceType::CUDA, new Guard()); }
"""
_ATEN = torch.ops.aten
_COPIES = {_ATEN.copy_.default, _ATEN._to_copy.default, _ATEN.copy.default}
_BY_INDEX = {_ATEN.index.Tensor, _ATEN.index_put_.default, _ATEN.index_put.default, _ATEN._index_put_impl_.default}


def compile_guard(directory: Path) -> Path:
    """Compile what torch asks for the current GPU."""
    source, library = directory / "guard.cpp", directory / "guard.so"
    source.write_text(_GUARD)
    home = Path(torch.__file__).parent
    command = ["c++", "-shared", "-fPIC", "-std=c++20", "-O0", f"-I{home}/include", str(source), "-o", str(library)]
    command += [f"-L{home}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{home}/lib"]
    subprocess.run(command, check=True)
    return library


class Cuda(torch.Tensor):
    """A tensor of the stand-in."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Cuda:
        tensor: Cuda = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=CUDA,
        )
        tensor.held = held
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(function, args, kwargs or {})

    def new_tensor(  # type: ignore[override]
        self, data: Any, *, dtype: Any = None, device: Any = None, **more: Any
    ) -> Any:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or CUDA, **more)

    def numpy(self, **more: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *more: Any) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.held.tolist()


def _refuse_mixture(function: Any, args: Any, tensors: list[torch.Tensor], target: Any) -> None:
    """Raise what CUDA raises where an operation has tensors of both kinds, or a generator of the other one."""
    ours = [each for each in tensors if isinstance(each, Cuda)]
    others = [each for each in tensors if not isinstance(each, Cuda) and each.dim() > 0]
    if not ours or not others or function in _COPIES:
        return
    if function in _BY_INDEX and isinstance(args[0], Cuda):
        values = args[2] if len(args) > 2 else None
        if not isinstance(values, torch.Tensor) or isinstance(values, Cuda) or values.dim() == 0:
            return  # a GPU takes places that are on the CPU
    raise RuntimeError(f"{function}: Expected all tensors to be on the same device, but found cuda:0 and cpu")


def _call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat = tree_flatten((args, kwargs))[0]
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    _refuse_mixture(function, args, tensors, kwargs.get("device"))
    ours = {id(each.held): each for each in tensors if isinstance(each, Cuda)}
    target = kwargs.get("device")
    to_gpu = bool(ours) if target is None else torch.device(target).type == "cuda"
    if to_gpu and any(isinstance(each, torch.Generator) and each.device.type == "cpu" for each in flat):
        raise RuntimeError(f"{function}: Expected a 'cuda' device type for generator but found 'cpu'")
    if function is _ATEN.copy_.default:
        to_gpu = isinstance(args[0], Cuda)
    if target is not None and to_gpu:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = tree_map(lambda each: each.held if isinstance(each, Cuda) else each, (args, kwargs))

    def wrapped(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or isinstance(each, Cuda) or (not to_gpu and id(each) not in ours):
            return each
        return ours[id(each)] if id(each) in ours else Cuda(each.resolve_conj().resolve_neg())

    return tree_map(wrapped, function(*args, **kwargs))


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(function, args, kwargs or {})


def install() -> None:
    """Let this process have the stand-in; before anything of the project is imported."""
    assert _LIBRARY is not None
    _LIBRARY.install()
    torch.inference_mode = lambda mode=True: torch.no_grad()  # type: ignore  # it has no views of subclasses
    for name, answer in {
        **{"is_available": True, "device_count": 1, "current_device": 0, "get_device_name": "a stand-in"},
        **{"_lazy_init": None, "synchronize": None, "max_memory_allocated": 1 << 20, "empty_cache": None},
        **{"reset_peak_memory_stats": None, "mem_get_info": (70 << 30, 80 << 30)},
    }.items():
        setattr(torch.cuda, name, lambda *given, answer=answer: answer)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # or a module's weights are no longer of Cuda
    import safetensors.torch as files

    made, load, save = torch.tensor, files.load_file, files.save_file

    def tensor(data: Any, *, device: Any = None, **more: Any) -> Any:
        return made(data, **more) if device is None else made(data, **more).to(device)

    torch.tensor = tensor  # type: ignore[assignment]
    files.load_file = lambda path, device="cpu": {name: each.to(device) for name, each in load(path).items()}
    files.save_file = lambda tensors, path, metadata=None: save(  # type: ignore[assignment]
        {name: each.cpu() for name, each in tensors.items()}, path, metadata
    )


def _steps(run: str, device: str = "cuda", measured: bool = False, steps: int = 2) -> list[float]:
    """Make steps in which every other response is right, the largest passes before: their losses."""
    from evals.core.run_spec import LocalRun
    from rlvr.engines.local.contrast import ContrastLearner
    from rlvr.engines.local.learner import Learner
    from rlvr.engines.local.memory import largest_passes

    spec = LocalRun.read(Path(run))
    learner = (ContrastLearner if spec.contrast else Learner)(spec, device)
    for make in largest_passes(learner).values() if measured else ():
        make()
    losses = []
    for _ in range(steps):
        row = learner.step(_Alternating())  # type: ignore[arg-type]
        learner.position.metrics.append(row)
        losses.append(row["loss"])
    return losses


class _Alternating:
    """Finds every other response right, whatever it says."""

    def grade(self, cases: Sequence[Any]) -> list[Any]:
        from evals.grading.verdict import Reason, Verdict

        reasons = (Reason.MATCH if number % 2 else Reason.MISMATCH for number in range(len(cases)))
        return [Verdict.of("1", reason, 0.0) for reason in reasons]


def train_with_states(run: str) -> list[float]:
    """Train, and save a state after every step."""
    import pandas as pd

    from evals.core.run_spec import Execution, LocalRun
    from rlvr.engines.local.train import train

    train(LocalRun.read(Path(run)), Path(run).parent, Execution(device="cuda", checkpoint_interval=1))
    return [float(loss) for loss in pd.read_parquet(Path(run).with_name("metrics.parquet"))["loss"]]


def _warm_start(settings: dict[str, Any], base: str, solutions: str, out: str, device: str = "cuda") -> list[float]:
    import pandas as pd

    from rlvr.engines.local.fine_tune import FineTuningSettings, fine_tune

    chosen = FineTuningSettings.parse(settings, "settings")
    fine_tune(chosen, Path(base), [Path(solutions)], Path(out), device, 2, 1)
    return [float(loss) for loss in pd.read_parquet(Path(out) / "metrics.parquet")["loss"]]


def _mixture() -> list[float]:
    return (torch.ones(2, device="cuda") + torch.ones(2)).tolist()


JOBS: Mapping[str, Callable[..., list[float]]] = {
    "steps": _steps,
    "train": train_with_states,
    "warm start": _warm_start,
    "mixture": _mixture,
}


def _function(kind: str) -> Callable[..., list[float]]:
    """The function of a kind of job: one of ours, or ``module:function`` of another test."""
    module, _, name = kind.partition(":")
    return JOBS[kind] if kind in JOBS else getattr(import_module(module), name)


def main(jobs: Path) -> None:
    install()
    torch.set_num_threads(1)
    with _Mode():
        for name, job in json.loads(jobs.read_text()).items():
            try:
                said = {"losses": _function(job.pop("kind"))(**job)}
            except Exception:  # of any kind: the next job is made all the same
                said = {"error": traceback.format_exc()[-6000:]}
            print(json.dumps({"name": name, **said}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[2]))
