"""The memory of a run: its largest passes leave nothing behind, and one that cannot fit is refused."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from transformers import LlamaConfig

from evals.core.errors import UserError
from evals.core.files import read_parquet, sha256_file, write_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.generation import devices
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local import memory
from rlvr.engines.local.fine_tune import FineTuningSettings, fine_tune
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.memory import check_memory, largest_passes, pass_lengths, products
from rlvr.engines.local.train import train
from rlvr.methods.method import compose
from tests.commands import rlvr_bench
from tests.unit.engine.conftest import DAPO, MakeRun, import_pretrained
from tests.unit.engine.test_fine_tune import SETTINGS, tune

LINE = r"tiny-dapo-s1: memory: the largest passes take \d+ MiB of \d+ on cpu, measured in \d+ s\n"
LOSSES = {"dapo": DAPO, "coupled": {**DAPO, "loss": {"name": "gspo"}}}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure small models too."""
    monkeypatch.setattr(memory, "SMALL", 0)


@pytest.mark.parametrize("model", ["llama", "neox"])
@pytest.mark.parametrize("training", [{}, {"lora": {"rank": 2, "alpha": 4}}], ids=["all weights", "adapters"])
@pytest.mark.parametrize("on_gpu", [False, True], ids=["by a child", "in this process"])
def test_a_measured_training_has_the_bytes_of_one_that_is_not(
    model: str,
    training: dict[str, object],
    on_gpu: bool,
    make_run: MakeRun,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if training:
        pytest.importorskip("peft", reason="the package peft is installed for adapters alone")
    run = make_run({"steps": 2, "learning_rate": 0.01, **training}, base=str(request.getfixturevalue(model)))
    train(run, tmp_path / "plain", Execution())
    assert "memory" not in capsys.readouterr().out, "a small model"
    monkeypatch.setattr(memory, "SMALL", 0)
    if on_gpu:  # where no child can make them
        monkeypatch.setattr(memory, "_taken_by_child", lambda passes: ([make() or 1 for make in passes], ""))
    train(run, tmp_path / "measured", Execution())
    assert "memory: the largest passes take" in capsys.readouterr().out
    weights = [sha256_file(tmp_path / name / "checkpoint/model.safetensors") for name in ("plain", "measured")]
    assert weights[0] == weights[1]
    rows = [read_parquet(tmp_path / name / "metrics.parquet") for name in ("plain", "measured")]
    same = [name for name in rows[0] if not str(name).startswith("seconds") and name != "peak_memory_bytes"]
    assert rows[0][same].equals(rows[1][same])


def test_the_longest_passes(make_run: MakeRun, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample has all its tokens but for a quarter that lack one, and every pass its full length."""
    learner = Learner(make_run({"sampling_batch_size": 12}, base=str(llama)), "cpu")
    sampled, passes = [], []
    sample, states = type(learner.model).sampler, type(learner.model).states
    monkeypatch.setattr(
        type(learner.model),
        "sampler",
        lambda model: lambda *given: sampled.append(sample(model)(*given)) or sampled[-1],
    )
    monkeypatch.setattr(
        type(learner.model),
        "states",
        lambda model, sequences, starts: passes.append([*map(len, sequences)]) or states(model, sequences, starts),
    )
    for make in largest_passes(learner).values():
        make()
    responses = [response for group in sampled[0] for response in group]
    assert sorted(len(response.tokens) for response in responses) == [15] * 3 + [16] * 9
    longest = len(learner.longest_prompt) + 16
    assert passes == [[len(learner.longest_prompt)], [longest - 1] * 8]
    assert all(weight.grad is None for weight in learner.model.parameters())


def test_a_pass_has_what_limits_leave_it(make_run: MakeRun) -> None:
    def lengths(padded: bool = False, method: str = "dapo", **training: int) -> list[int]:
        return pass_lengths(make_run(training), compose(LOSSES[method], ""), 10, padded)

    assert lengths() == [10] * 8 and lengths(micro_batch_size=3) == [10] * 3
    assert lengths(micro_batch_tokens=25) == [10, 10, 5] and lengths(padded=True, micro_batch_tokens=25) == [10, 10]
    assert lengths(micro_batch_tokens=4) == [10] and lengths(micro_batch_size=2, micro_batch_tokens=25) == [10, 10]


def test_what_a_pass_takes_is_seen(llama: Path, measured: None, capsys: pytest.CaptureFixture[str]) -> None:
    def taken(mebibytes: int) -> int:
        check_memory("run", Checkpoint(llama / "checkpoint"), "cpu", {"update": lambda: torch.ones(mebibytes << 18)})
        return int(capsys.readouterr().out.split("take ")[1].split()[0])

    least = taken(1)
    assert least + 350 < taken(400) < least + 450 and abs(taken(1) - least) < 50, "a child's memory is its own"


def test_a_training_that_cannot_fit_is_refused(
    make_run: MakeRun, llama: Path, measured: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(llama / "checkpoint")
    with pytest.raises(UserError, match=r"run: out of memory: cpu has \d+ MiB, too little for update; smaller: traini"):
        passes = {"sampling": lambda: None, "update": lambda: os.kill(os.getpid(), signal.SIGKILL)}
        check_memory("run", checkpoint, "cpu", passes)
    with pytest.raises(UserError, match="too little for sampling; smaller: training"):
        check_memory("run", checkpoint, "cpu", {"sampling": lambda: torch.ones(1 << 50), "update": lambda: None})
    monkeypatch.setattr(memory, "_memory", lambda device: 1 << 20)
    with pytest.raises(UserError, match="tiny-dapo-s1: out of memory: cpu has 1 MiB, too little for sampling"):
        train(make_run(base=str(llama)), tmp_path / "run", Execution())
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_another_failure_ends_no_training(llama: Path, measured: None, capsys: pytest.CaptureFixture[str]) -> None:
    check_memory("run", Checkpoint(llama / "checkpoint"), "cpu", {"update": lambda: 1 / 0})
    assert capsys.readouterr().out == "run: memory: not measured (division by zero)\n"


def test_a_warm_start_is_measured(
    llama: Path, tmp_path: Path, measured: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solutions = tmp_path / "solutions.jsonl"
    write_jsonl(solutions, [{"problem": "1+1", "solution": "2" * length} for length in (9, 5, 1)])
    tune(llama, solutions, tmp_path / "warm", steps=1, batch_size=3, micro_batch_tokens=24)
    assert "warm: memory: the largest passes take" in capsys.readouterr().out
    monkeypatch.setattr(memory, "_memory", lambda device: 1 << 20)
    with pytest.raises(UserError, match=r"other: out of memory.* smaller: fine_tuning\.micro_batch_tokens"):
        tune(llama, solutions, tmp_path / "other", steps=1)
    assert not (tmp_path / "other" / "checkpoint").exists()


def test_the_memory_of_a_container_is_what_its_groups_allow(tmp_path: Path) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "memory" / "c").mkdir(parents=True)
    (root / "memory.max").write_text("max\n")
    (root / "a" / "memory.max").write_text("4096\n")
    (root / "a" / "b" / "memory.max").write_text("max\n")
    (root / "memory" / "memory.limit_in_bytes").write_text("512\n")
    groups.write_text("3:cpu:/x\n0::/a/b\n")
    assert list(memory._allowed(groups, root)) == [4096]
    groups.write_text("4:memory:/hidden/from/here\n0::/\n")
    assert list(memory._allowed(groups, root)) == [512]
    assert list(memory._allowed(tmp_path / "none", root)) == []


def test_the_sum_is_near_what_is_measured(
    make_run: MakeRun, tmp_path: Path, measured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a Llama of 26 million parameters, beside what the process holds without it."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "max_position_embeddings": 256}
    base = import_pretrained(tmp_path / "wide", LlamaConfig, **sizes, num_attention_heads=8, num_key_value_heads=4)
    training = {"max_new_tokens": 200, "micro_batch_size": 8, "sampling_batch_size": 16}
    run = make_run(training, base=str(base))
    before = {"update": lambda: None}
    check_memory("run", Checkpoint(base / "checkpoint"), "cpu", before)
    check_memory("run", Checkpoint(base / "checkpoint"), "cpu", largest_passes(Learner(run, "cpu")))
    printed = capsys.readouterr().out
    alone, whole = (int(line.split("take ")[1].split()[0]) for line in printed.splitlines() if "memory: " in line)
    expected = sum(products(run, Execution()).values()) >> 20
    assert whole - alone == pytest.approx(expected, rel=0.25), (whole, alone, products(run, Execution()))


def test_the_sum_for_a_device_elsewhere(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run({"lora": {"rank": 2, "alpha": 4}})
    bench = rlvr_bench("train")
    words = [str(tmp_path / "run.json"), "--device", "cuda", "--device-memory"]
    bench([*words, "24576"])
    printed = capsys.readouterr().out
    assert "of 24576 on cuda" in printed and printed.count("\n") == 7
    assert bench([*words, "0"]) == 2 and "which has 0" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


# Trainings on GPUs take one each; environment variables and locks stand for the GPUs.


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the locks, of which another process has that of GPU 4; torch sees no GPU at all."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv(devices._CLAIMED, raising=False)
    directory = tmp_path / f"rlvr-devices-{os.getuid()}"
    directory.mkdir()
    with FileLock(directory / "4.lock"):
        yield directory
    for lock in devices._held:
        lock.release()


@pytest.mark.parametrize("job", ["training", "warm start", "replay"])
def test_a_free_gpu(job: str, make_run: Callable[..., LocalRun], llama: Path, locks: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device: cuda was asked for, but torch sees no GPU; accepted here: cpu"):
        if job == "training":
            train(make_run(), tmp_path / "run", Execution(device="cuda", lock_wait_seconds=1))
        elif job == "replay":
            Learner(make_run(), "cuda")
        else:
            write_jsonl(tmp_path / "solutions.jsonl", [{"problem": "1+1", "solution": "2"}])
            settings = FineTuningSettings.parse(SETTINGS, "settings")
            fine_tune(settings, llama, [tmp_path / "solutions.jsonl"], tmp_path / "warm", "cuda", 5, 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5" and len(devices._held) == 1


def test_a_child_has_the_gpu_of_its_parent(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices.claim_devices(1)
    parent, taken = list(devices._held), os.environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setattr(devices, "_held", [])  # as in a child, which inherits the environment alone
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits for its parent"))
    devices.claim_devices(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == taken == "5" and not devices._held
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")  # a child that is given another one claims it
    devices.claim_devices(1)
    assert len(devices._held) == 1
    devices._held += parent


def test_slurms_own_numbers(locks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    devices.claim_devices(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4" and not capsys.readouterr().out
