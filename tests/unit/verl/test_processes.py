"""verl's processes: what is missing is said before they start, and their own error is found."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json
from evals.core.training_settings import Lora
from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.engines.verl.adapters import ADAPTERS, add_adapters, kept, reach, require_followed
from rlvr.engines.verl.launch import RUN_VARIABLE
from rlvr.engines.verl.processes import (
    end_processes_of,
    error_in,
    nodes_of_job,
    on_every_node,
    require_gpus,
    require_machine,
)
from tests.commands import ended
from tests.slurm_cluster import REPOSITORY, processes_in
from tests.unit.verl.conftest import make_cluster, make_run

_WORKER = "\x1b[36m(WorkerDict pid=71, ip=10.0.0.2)\x1b[0m "


def test_too_few_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '580.65.06\\n595.1\\n'\n")  # the driver of each GPU, as it is asked for
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    require_gpus(make_cluster(nodes=1, gpus_per_node=2, rollout_tensor_parallel=2))
    require_gpus(make_cluster(nodes=1, platform="cpu_launch", sequence_parallel=1))
    with pytest.raises(InvalidInput, match="2 at most"):
        require_gpus(make_cluster(nodes=1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(InvalidInput, match="1 at most"):
        require_gpus(make_cluster(nodes=1, gpus_per_node=2, rollout_tensor_parallel=2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as people hide all of them
    with pytest.raises(InvalidInput, match="0 at most"):
        require_gpus(make_cluster(nodes=1, gpus_per_node=2, rollout_tensor_parallel=2))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(InvalidInput, match="0 at most"):
        require_gpus(make_cluster(nodes=1, gpus_per_node=2, rollout_tensor_parallel=2))


@pytest.mark.parametrize(("driver", "fits"), [("570.195.03", False), ("580.65", False), ("580.65.06", True)])
def test_an_old_driver_is_said_first(driver: str, fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho {driver}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cluster = make_cluster(nodes=1, gpus_per_node=1, rollout_tensor_parallel=1, sequence_parallel=1)
    if fits:
        return require_gpus(cluster)
    with pytest.raises(UserError, match=rf"driver of this machine is {driver}; accepted: 580\.65\.06 or newer"):
        require_gpus(cluster)
    return None


def test_the_last_exception_is_said_without_colours_and_prefixes() -> None:
    text = "\n".join(
        [
            "INFO starting",
            _WORKER + '  File "engine.py", line 7, in forward',
            "(TaskRunnerV1 pid=1) (EngineCore pid=2) ERROR 11-21 10:14:40 [core.py:1] RuntimeError: bad kernel",
            _WORKER + "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4 GiB",
            "UserWarning: x is not available: ModuleNotFoundError(\"No module named 'x'\")",
        ]
    )
    assert error_in(text, 1) == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4 GiB"
    assert error_in(text.rsplit("\n", 2)[0], 1) == "RuntimeError: bad kernel"
    died = "ray.exceptions.RayTaskError(ValueError): ray::TaskRunnerV1.run() (pid=70, ip=10.0.0.2)"
    assert error_in(died, 1) == died
    assert error_in("    assert x == y\nAssertionError", 1) == "AssertionError"
    assert error_in("Exception: " + "x" * 400, 1) == ("Exception: " + "x" * 400)[:300]


def test_an_end_without_an_exception_is_told_by_its_status() -> None:
    assert error_in("bye", -9) == "killed by SIGKILL"
    assert error_in("", 1) == "exit status 1"


def sleeper(run_file: Path | None) -> subprocess.Popen[bytes]:
    """A process, in a session of its own as vLLM's engines are, that works for a run or for none."""
    words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    more = {} if run_file is None else {RUN_VARIABLE: str(run_file)}
    process = subprocess.Popen(words, env={**os.environ, **more}, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline()  # its environment is there to be read
    return process


def test_processes_of_the_run_are_ended_and_no_others(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine" / "run.json", tmp_path / "other" / "run.json"
    processes = [sleeper(mine), sleeper(mine), sleeper(other), sleeper(None)]
    try:
        assert end_processes_of(mine) == 2
        assert [process.poll() is None for process in processes] == [False, False, True, True]
        assert end_processes_of(mine) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_caller_that_was_started_for_the_run_stays(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rlvr.engines.verl.processes import end_processes_of; "
        "print(end_processes_of(Path(sys.argv[1])))"
    )
    run_file = tmp_path / "run.json"
    answer = ended(
        [sys.executable, "-c", code, str(run_file)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), RUN_VARIABLE: str(run_file)},
    )
    assert (answer.returncode, answer.stdout) == (0, "0\n"), answer.stderr


def test_a_slurm_job_of_several_nodes_has_ray_on_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program, lines in {
        "squeue": 'echo "node[1-3] of $3"',  # --noheader --jobs ID
        "scontrol": 'test "$3" = "node[1-3] of 7" && printf "%s\\n" node1 node2 node3',
    }.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    two, job = make_cluster(nodes=2), {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1"}
    assert nodes_of_job(job) == ["node1", "node2", "node3"] and nodes_of_job({}) == []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    require_machine(make_cluster(nodes=2, platform="cpu_launch"))
    with pytest.raises(UserError, match="nodes: is 4, and RAY_ADDRESS is not set; accepted: 3, in a Slurm job"):
        require_machine(make_cluster(nodes=4))
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    require_machine(make_cluster(nodes=4))
    words = on_every_node(two, "/env/bin/python", job)
    assert words[:4] == ["env", "SLURM_JOB_NODELIST=node1,node2", "RAY_AUTH_MODE=token", "srun"]
    assert "RAY_AUTH_MODE=disabled" in on_every_node(two, "/env/bin/python", {**job, "RAY_AUTH_MODE": "disabled"})
    *ray, address, count, separator = words[words.index("/env/bin/python") :]
    assert ray == ["/env/bin/python", "-P", "-m", "rlvr.engines.verl.ray_nodes"] and (count, separator) == ("2", "--")
    host, port = address.split(":")
    with socket.create_server(("", int(port))):  # free: another training takes another one
        assert host == "node1"
    assert on_every_node(make_cluster(nodes=1), "/env/bin/python", job) == []
    assert on_every_node(two, "/env/bin/python", {**job, "RAY_ADDRESS": "elsewhere:6379"}) == []


RAY = """\
#!/bin/sh
trap "" TERM
(setsid sleep 100000 &)
touch begun
sleep 100000
"""
NODE = "from rlvr.engines.verl import ray_nodes as node; node._RAY = './ray'; node.main('localhost:{port}', 2, [], [])"


def test_a_second_sigterm_leaves_no_process_on_a_node(tmp_path: Path) -> None:
    (tmp_path / "ray").write_text(RAY)
    (tmp_path / "ray").chmod(0o755)
    variables = {"SLURMD_NODENAME": "another", "RAY_TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    with socket.create_server(("localhost", 0)) as head:
        words = [sys.executable, "-c", NODE.format(port=head.getsockname()[1])]
        node = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, **variables})
        try:
            while not (tmp_path / "begun").exists():
                assert node.poll() is None
                time.sleep(0.1)
            while node.poll() is None:
                node.terminate()
                time.sleep(0.2)
            assert processes_in(tmp_path) == []
            assert node.returncode == 128 + signal.SIGTERM
            assert list(tmp_path.glob("rlvr-*")) == []
        finally:
            for process in processes_in(tmp_path):
                process.kill()


# Adapters by verl: the checkpoint that is made of them, and how much of them is left in bfloat16.

SHAPES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
SHAPES |= {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32}
NAME = "model.layers.0.mlp.down_proj.weight"
LORA = Lora(rank=16, alpha=32.0)


def update(size: float, rows: int, columns: int) -> Tensor:
    """What adapters add whose A is as it was drawn, and whose B has numbers of one ``size``."""
    generator = torch.Generator().manual_seed(0)
    first = (2 * torch.rand(LORA.rank, columns, generator=generator) - 1) / columns**0.5
    return LORA.alpha / LORA.rank * size * torch.randn(rows, LORA.rank, generator=generator).sign() @ first


@pytest.mark.parametrize(("size", "left"), [(1e-5, 0.06), (1e-4, 0.51), (3e-4, 0.92), (3e-3, 1.0)])
def test_small_updates_vanish_in_bfloat16(size: float, left: float) -> None:
    weight = (0.02 * torch.randn(512, 512, generator=torch.Generator().manual_seed(1))).bfloat16()
    added = update(size, 512, 512)
    product, square = kept(weight, added)
    assert product / square == pytest.approx(left, abs=0.04)
    assert square == pytest.approx(float(added.double().square().sum()), rel=1e-6)


def test_adapters_are_added_to_the_base_model(tmp_path: Path) -> None:
    tokenizer, generator = build_tokenizer(), torch.Generator().manual_seed(5)
    initial_model({**SHAPES, "tie_word_embeddings": True}, tokenizer, seed=3).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    weights, lora = load_file(tmp_path / "base" / "model.safetensors"), Lora(rank=2, alpha=3.0)
    factors = {
        NAME.replace("weight", f"lora_{part}.weight"): torch.randn(shape, generator=generator)
        for part, shape in (("A", (2, 24)), ("B", (16, 2)))
    }
    save_file(factors, tmp_path / ADAPTERS)
    share = add_adapters(tmp_path / "base", tmp_path / ADAPTERS, lora, tmp_path / "checkpoint")
    first, second = factors.values()
    changed = {**weights, NAME: weights[NAME] + 1.5 * second @ first}
    found = load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert found.keys() == changed.keys() and share == pytest.approx(1.0, abs=0.01)
    assert all(torch.equal(found[each], changed[each].to(torch.bfloat16)) for each in found)
    assert read_json(tmp_path / "checkpoint" / "config.json")["dtype"] == "bfloat16"
    assert (tmp_path / "checkpoint" / "tokenizer.json").is_file()
    save_file({"model.layers.7.mlp.up_proj.lora_A.weight": first}, tmp_path / ADAPTERS)
    with pytest.raises(UserError, match=r"layers\.7\.mlp\.up_proj\.lora_A\.weight: of no weight of"):
        add_adapters(tmp_path / "base", tmp_path / ADAPTERS, lora, tmp_path / "other")


def test_adam_moves_a_number_by_all_learning_rates_at_most() -> None:
    settings = {"steps": 10, "updates_per_step": 4, "learning_rate": 1e-5}
    assert reach(make_run(**settings).training) == pytest.approx(4e-4)
    # The first four of five updates have a fifth, two, three and four fifths of the rate.
    assert reach(make_run(**settings, warmup_updates=5).training) == pytest.approx(3.8e-4)


@pytest.mark.parametrize(("learning_rate", "fits"), [(1e-6, False), (1e-4, True)])
def test_a_training_that_bfloat16_cannot_follow_is_refused(learning_rate: float, fits: bool, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    weights = {
        f"model.layers.{n}.mlp.up_proj.weight": 0.02 * torch.randn(256, 256, generator=generator) for n in (0, 1)
    }
    save_file({name: each.bfloat16() for name, each in weights.items()}, tmp_path / "model.safetensors")
    run = make_run(steps=5, updates_per_step=2, learning_rate=learning_rate, lora=LORA.to_json())
    if fits:
        return require_followed(run, tmp_path)
    with pytest.raises(InvalidInput, match=r"at most\) that \d% of it is left in bfloat16.*: at least 50%") as error:
        require_followed(run, tmp_path)
    assert error.value.key == "training.lora" and "\n" not in str(error.value)
    return None
