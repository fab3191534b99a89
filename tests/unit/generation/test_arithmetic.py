"""Arithmetic: the functions that stand in for torch's, and what manifests and tables say of it."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from evals.core import arithmetic
from evals.core.errors import UserError
from evals.core.files import read_json, write_json
from evals.core.manifest import Manifest, read_manifest
from evals.core.records import Condition, Run
from evals.generation.arithmetic import _FUNCTIONS, _product, set_up
from evals.generation.checkpoint import Checkpoint, ServedModel
from evals.generation.devices import claim_devices, drivers, require_driver
from evals.generation.plan import SamplePlan
from evals.generation.settings import EvaluationSettings
from evals.tables.notes import arithmetic_note
from tests.unit.engine.conftest import run_content, study_files
from tests.unit.generation.conftest import settings_of

__all__ = ["study_files"]
REPOSITORY = Path(__file__).parents[3]
HERE = {"packages": {"torch": "2.0", "numpy": "2.1"}, "arithmetic": {"processor": "P", "code_paths": "portable"}}
ELSEWHERE = {**HERE, "arithmetic": {"processor": "Q", "code_paths": "the machine's own", "obstacle": "it has no AVX2"}}


def run_python(*words: str) -> str:
    """What a Python process of its own prints, in which neither numpy nor torch is loaded at the start."""
    inherited = {name: value for name, value in os.environ.items() if name not in arithmetic.CODE_PATHS}
    environment = {**inherited, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, *words]
    return subprocess.run(
        command, check=True, env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.mark.skipif(bool(arithmetic.processor()[1]), reason=f"no portable code paths: {arithmetic.processor()[1]}")
def test_base_model_training_and_samples_have_the_same_bytes_as_everywhere() -> None:
    golden = read_json(REPOSITORY / "tests" / "golden.json")
    assert json.loads(run_python("-m", "tests.golden")) == golden


def test_kernels_that_are_kept_are_few_unless_the_environment_says_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in (("7", "7"), (None, "64")):
        monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", given or "")
        if given is None:
            monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
        set_up(torch.get_num_threads(), portable=False)
        assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == expected


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory by rules of its own")
def test_a_pass_takes_the_memory_that_earlier_ones_freed() -> None:
    script = """
import resource
from evals.generation import arithmetic
arithmetic.set_up(1)
import torch
faults = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
for _ in range(3):
    parts = [torch.ones(1 << 20) for _ in range(10)]
    del parts
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[1] - faults[0], faults[3] - faults[2])
"""
    first, third = map(int, run_python("-c", script).split())
    assert third < first / 2


@pytest.mark.skipif(bool(arithmetic.processor()[1]), reason=f"no portable code paths: {arithmetic.processor()[1]}")
def test_torch_takes_the_functions_once_it_is_set_up() -> None:
    program = """
from evals.generation import arithmetic
arithmetic.set_up(1)
import numpy as np, torch
from evals.core.arithmetic import describe
a, b = torch.randn(200, 300, requires_grad=True), torch.randn(70, 300, requires_grad=True)
product = torch.nn.functional.linear(a, b)
assert np.array_equal(product.detach().numpy(), a.detach().numpy() @ b.detach().numpy().T)
product.sum().backward()
assert torch.allclose(b.grad, a.detach().sum(0).expand(70, 300), rtol=1e-4, atol=1e-4)
values = torch.rand(1000)
assert np.array_equal(values.sqrt().numpy(), np.sqrt(values.numpy()))
print(describe()["code_paths"], describe()["torch_kernels"])
"""
    assert run_python("-c", program).split() == ["portable", "AVX2"]


def test_the_commands_load_no_numpy_before_the_code_paths_are_chosen() -> None:
    program = "import sys, rlvr.cli.application; print({'numpy', 'torch'} & sys.modules.keys())"
    assert run_python("-c", program) == "set()\n"


def test_a_process_that_has_loaded_numpy_keeps_its_code_paths() -> None:
    program = """
import numpy
from evals.core.arithmetic import choose_code_paths, describe
choose_code_paths()
print(describe()["code_paths"])
"""
    assert run_python("-c", program) == "the machine's own\n"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_functions_agree_with_torch(dtype: torch.dtype) -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randint(-4, 5, shape).to(dtype)  # products and sums of these are exact in every type

    a, b, c = draw(5, 7), draw(7, 3), draw(5, 3)
    for left in (a, a.T.contiguous().T, draw(5, 14)[:, ::2], draw(1, 7).expand(5, 7)):
        for right in (b, draw(3, 7).T, draw(14, 6)[::2, ::2]):
            assert torch.equal(_FUNCTIONS["mm"](left, right), left @ right)
            assert torch.equal(_FUNCTIONS["addmm"](c, left, right, beta=2, alpha=3), 2 * c + 3 * (left @ right))
            assert torch.equal(
                _FUNCTIONS["addmm_"](c.clone(), left, right, beta=2, alpha=3), 2 * c + 3 * (left @ right)
            )
    stacked = draw(2, 4, 5).transpose(1, 2)
    assert torch.equal(
        _FUNCTIONS["bmm"](stacked, draw(1, 4, 3).expand(2, 4, 3) * 0 + 1), stacked @ torch.ones(4, 3).to(dtype)
    )
    assert torch.equal(_FUNCTIONS["baddbmm"](draw(2, 5, 4) * 0 + 1, stacked, draw(2, 4, 4) * 0), draw(2, 5, 4) * 0 + 1)
    assert torch.equal(_FUNCTIONS["sqrt"](a * a), (a * a).sqrt())
    assert torch.equal(_FUNCTIONS["mv"](a, b[:, 0]), a @ b[:, 0])
    assert torch.equal(_FUNCTIONS["dot"](a[0], b[:, 1]), (a @ b)[0, 1])
    assert _product(draw(0, 3), draw(3, 2)).shape == (0, 2)
    assert torch.equal(_product(draw(2, 0), draw(0, 3)), torch.zeros(2, 3).to(dtype))


def test_beta_zero_ignores_what_it_multiplies() -> None:
    nothing, one = torch.full((2, 2), float("nan")), torch.ones(2, 2)
    assert torch.equal(_FUNCTIONS["addmm"](nothing, one, one, beta=0), 2 * one)
    assert torch.equal(_FUNCTIONS["addmm_"](nothing.clone(), one, one, beta=0), 2 * one)


def test_one_line_says_what_decides_the_digits() -> None:
    portable, own = arithmetic.label(HERE), arithmetic.label(ELSEWHERE)
    assert arithmetic.summary([]) == ""
    assert arithmetic.summary([portable] * 2) == (
        "Arithmetic: portable code paths (torch 2.0, numpy 2.1); every x86-64 processor with AVX2 gives these digits."
    )
    assert arithmetic.summary([own]).startswith(
        "Arithmetic: the code paths of Q (torch 2.0, numpy 2.1; it has no AVX2)"
    )
    mixed = arithmetic.summary([portable, own, portable])
    assert mixed.startswith("Arithmetic is mixed") and "2 of 3 results with portable" in mixed
    assert "not recorded" in arithmetic.summary([arithmetic.label({"packages": {}})])


def test_rows_that_mix_environments_are_named(tmp_path: Path) -> None:
    """As where some seeds were trained before a package was updated, and others after it."""
    rows = []
    for method, environments in {"dapo": (HERE, HERE), "delta": (HERE, ELSEWHERE)}.items():
        runs = [Run(run=f"tiny-{method}-s{n}", model="tiny", method=method, seed=n, title=method) for n in (1, 2)]
        rows.append(Condition("tiny", method, method.upper(), tuple(runs)))
        for run, environment in zip(runs, environments, strict=True):
            path = tmp_path / run.run / "manifest.json"
            Manifest("run", {}, {}, {}, "f").write(path)
            write_json(path, {**read_json(path), "environment": environment})
    manifests = sorted(tmp_path.glob("*/manifest.json"))
    (line,) = arithmetic_note(manifests, rows)
    assert line.startswith("Arithmetic is mixed") and line.endswith("Rows that mix them: DELTA.")
    (line,) = arithmetic_note(manifests[:2], rows[:1])
    assert "mix" not in line


@pytest.mark.parametrize(
    ("base", "first", "second", "end"),
    [
        (2, 1, 1, "every x86-64 processor with AVX2 gives these digits."),
        (1, 2, 2, "these digits. Threads: 2 of training runs."),
        (1, 1, 2, "threads: 2. Rows that mix them: dapo."),
    ],
)
def test_unusual_threads_are_named(tmp_path: Path, base: int, first: int, second: int, end: str) -> None:
    """The trainings of a table are of one number, of which a base model's, another job's, is none."""
    runs = [Run(run=f"tiny-dapo-s{n}", model="tiny", method="dapo", seed=n, title="dapo") for n in (1, 2)]
    for name, threads in {"tiny": base, runs[0].run: first, runs[1].run: second}.items():
        path = tmp_path / name / "manifest.json"
        Manifest("base_model" if name == "tiny" else "run", {}, {}, {}, "f").write(path)
        arithmetic_of = {**HERE["arithmetic"], "threads": threads}
        write_json(path, {**read_json(path), "environment": {**HERE, "arithmetic": arithmetic_of}})
    manifests = sorted(tmp_path.glob("*/manifest.json"))
    (line,) = arithmetic_note(manifests, [Condition("tiny", "dapo", "dapo", tuple(runs))])
    assert line.endswith(end) and line.startswith("Arithmetic is mixed" if first != second else "Arithmetic: portable")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_replay_takes_the_code_paths_of_the_training(study_files: Path, tmp_path: Path, dtype: str) -> None:
    """Other code paths round otherwise, and the replay would not repeat the run."""
    run_file = tmp_path / "run" / "run.json"
    write_json(run_file, run_content(study_files, {"steps": 1}) | {"dtype": dtype})
    run_python("-m", "rlvr", "train", str(run_file), "--threads", "1")
    replayed = ("--steps", "1", "--threads", "1", "--out", str(tmp_path / "table"))
    run_python("-m", "rlvr", "claims", "replay", str(run_file), *replayed)
    places = {"run": run_file.parent, "token_table": tmp_path / "table"}
    found = [read_manifest(place / "manifest.json", kind).environment["arithmetic"] for kind, place in places.items()]
    is_portable = dtype == "float32" and not arithmetic.processor()[1]
    assert [each["code_paths"] for each in found] == ["portable" if is_portable else "the machine's own"] * 2


# Processes that stand for GPUs: each has devices of its own, at any moment, and a killed one gives them back.

JOB = """
import os, sys, time
from pathlib import Path
from evals.generation.checkpoint import Checkpoint
from evals.generation.devices import claim_devices
locks, log, count, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
def say(word):
    with open(log, "a") as file:
        file.write(f"{word} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
claim_devices(count, locks)
claim_devices(count, locks)
say("start")
time.sleep(seconds)
say("end")
"""


def start(directory: Path, count: int, seconds: float, visible: str = "0,1,2,3") -> subprocess.Popen[bytes]:
    words = [str(directory / "locks"), str(directory / "log"), str(count), str(seconds)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
    return subprocess.Popen([sys.executable, "-c", JOB, *words], cwd=REPOSITORY, env=environment)


def lines(directory: Path) -> list[str]:
    path = directory / "log"
    return path.read_text().splitlines() if path.is_file() else []


def test_jobs_share_the_devices_out_and_all_are_used(tmp_path: Path) -> None:
    jobs = [start(tmp_path, 1 + number % 2, 0.6) for number in range(7)]
    assert [job.wait(60) for job in jobs] == [0] * 7
    busy: set[str] = set()
    most = 0
    for line in lines(tmp_path):
        word, devices = line.split()
        own = set(devices.split(","))
        assert own.isdisjoint(busy) if word == "start" else own <= busy, line
        busy = busy | own if word == "start" else busy - own
        most = max(most, len(busy))
    assert most == 4 and len(lines(tmp_path)) == 14


def test_a_killed_job_gives_its_devices_back(tmp_path: Path) -> None:
    first = start(tmp_path, 2, 60, "4,5")
    while not lines(tmp_path):
        time.sleep(0.02)
    second = start(tmp_path, 1, 0, "4,5")
    time.sleep(1.0)
    assert second.poll() is None and len(lines(tmp_path)) == 1
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert second.wait(30) == 0 and lines(tmp_path)[1:] == ["start 4", "end 4"]


def test_more_devices_than_there_are_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UserError, match="tensor_parallel_size: is 2 with 1 GPUs"):
        claim_devices(2, tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    claim_devices(1, tmp_path)
    assert not list(tmp_path.iterdir()), "nothing is known of the GPUs, and nothing claimed"


@pytest.fixture
def old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '570.195.03\\nNo devices were found\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("old_driver")
def test_an_old_driver_is_said_before_vllm_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EvaluationSettings.model_construct(backend="vllm", device="cuda")
    plan = SamplePlan([Checkpoint(tmp_path)], settings, [], [], 8, [], {}, {}, 0, False)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    with pytest.raises(UserError, match=r"driver of this machine is 570\.195\.03; accepted: 580\.65\.06 or newer"):
        plan.load_backend()


@pytest.mark.usefixtures("old_driver")
def test_a_server_needs_neither_torch_nor_a_gpu_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "server.json", {"base_url": "http://127.0.0.1:1/v1", "model": "m"})
    settings = settings_of(backend="server", device="cuda")
    plan = SamplePlan([ServedModel(tmp_path)], settings, [], [], 8, [], {}, {}, 0, False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it then fails
    assert type(plan.load_backend()).__name__ == "ServerBackend"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"


@pytest.mark.usefixtures("old_driver")
def test_torch_of_an_older_cuda_takes_an_older_driver() -> None:
    assert drivers() == ["570.195.03"]
    require_driver("12.8", drivers())
    require_driver(None, drivers())
    require_driver("13.0", ["580.65.06", "595.1"])


def test_without_nvidia_smi_no_driver_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert drivers() == []
