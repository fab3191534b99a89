"""verl's processes: what is missing is said before they start, and their own error is found."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.core.errors import InvalidInput, UserError
from rlvr.engines.verl.launch import RUN_VARIABLE
from rlvr.engines.verl.processes import (
    answers,
    check_ray,
    end_processes_of,
    ended,
    last_words,
    nodes_of_job,
    on_every_node,
    own_ray_directory,
    registered_ray,
    require_gpus,
)
from tests.unit.verl.conftest import make_cluster

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
def test_a_driver_that_is_too_old_is_said_before_anything_starts(
    driver: str, fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_ray_is_the_one_that_is_meant() -> None:
    one, two = make_cluster(nodes=1), make_cluster(nodes=2)

    def check(cluster: object, address: str | None, registered: str | None = None, up: bool = True) -> None:
        environment = {} if address is None else {"RAY_ADDRESS": address}
        check_ray(cluster, environment, registered, lambda host, port: up)  # type: ignore[arg-type]

    check(one, None)
    check(two, "10.0.0.1:6379")
    check(two, "[fe80::1]:6379")
    check(two, "auto", registered="10.0.0.1:6379")
    for cluster, address, registered, up, message in (
        (two, None, None, True, "nodes: is 2, and RAY_ADDRESS is not set; accepted: 1, in a Slurm job as many"),
        (
            one,
            None,
            "10.0.0.1:6379",
            True,
            r"one that you started before runs .*`ray stop` ends it\), or RAY_ADDRESS=10\.0\.0\.1:6379 to use it",
        ),
        (two, "10.0.0.1:6379", None, False, "nothing answers at 10.0.0.1:6379"),
        (two, "ray://a/b", None, True, "RAY_ADDRESS: is 'ray://a/b'; accepted: HOST:PORT"),
    ):
        with pytest.raises(UserError, match=message) as error:
            check(cluster, address, registered, up)
        assert "\n" not in str(error.value)


def register_ray(directory: Path, port: int) -> None:
    (directory / "ray").mkdir(parents=True)
    (directory / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{port}\n")


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine that answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_ray_of_one_s_own_that_runs_is_found_where_ray_leaves_its_address(tmp_path: Path, port: int) -> None:
    assert registered_ray({"TMPDIR": str(tmp_path)}) is None
    register_ray(tmp_path, port)
    assert registered_ray({"TMPDIR": str(tmp_path)}) == f"127.0.0.1:{port}"
    assert registered_ray({"RAY_TMPDIR": str(tmp_path), "TMPDIR": "/nowhere"}) == f"127.0.0.1:{port}"


@pytest.mark.parametrize("whose", ["another user's", "one's own that has ended"])
def test_verl_s_ray_keeps_apart_from_one_that_is_not_to_be_joined(
    whose: str, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"TMPDIR": str(tmp_path)}
    assert own_ray_directory(there, on_several_nodes=False) == {}
    if whose == "another user's":
        register_ray(tmp_path, port)
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
    else:
        register_ray(tmp_path, 1)
    assert registered_ray(there) is None
    found = Path(own_ray_directory(there, on_several_nodes=False)["RAY_TMPDIR"])
    try:
        assert found.stat().st_mode & 0o777 == 0o700 and list(found.iterdir()) == []
        assert len(f"{found}/ray/session_2026-11-25_18-16-42_445584_4194304/sockets/plasma_store") <= 107
    finally:
        found.rmdir()
    assert own_ray_directory({**there, "RAY_ADDRESS": "10.0.0.1:6379"}, on_several_nodes=False) == {}


def test_ray_that_registers_itself_on_every_node_has_a_directory_of_its_own() -> None:
    found = own_ray_directory({"TMPDIR": "/nowhere"}, on_several_nodes=True)
    Path(found["RAY_TMPDIR"]).rmdir()
    assert own_ray_directory({"RAY_TMPDIR": "/nowhere"}, on_several_nodes=True) == {}


def test_a_port_answers_or_does_not(port: int) -> None:
    assert answers("127.0.0.1", port)
    assert not answers("127.0.0.1", 1)
    assert not answers("127.0.0.1", 99999)


def log(*lines: str) -> str:
    return (
        "\n".join(["INFO starting", *lines, "2026-11-21 - WARNING - Setting to 4. [repeated 30x across cluster]"])
        + "\n"
    )


def test_a_worker_s_own_error_is_found_under_what_ray_makes_of_it() -> None:
    text = log(
        _WORKER + "Traceback (most recent call last):",
        _WORKER + '  File "engine.py", line 7, in forward',
        _WORKER + "ValueError: 3 of 64 rollouts failed; their workers' errors are above",
        "ray.exceptions.RayTaskError(ValueError): ray::TaskRunnerV1.run() (pid=70, ip=10.0.0.2)",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    )
    assert last_words(text) == "ValueError: 3 of 64 rollouts failed; their workers' errors are above"


def test_an_error_behind_vllm_s_prefix_is_found() -> None:
    prefix = "(TaskRunnerV1 pid=1) (EngineCore pid=2) ERROR 11-21 10:14:40 [core.py:1] "
    text = log(prefix + "RuntimeError: bad kernel", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered")
    assert last_words(text) == "RuntimeError: bad kernel"


def test_an_error_behind_torch_s_prefix_and_hydra_s_wrapping_is_found() -> None:
    text = log(
        "[rank0]: ValueError: The checkpoint has model type `nonsense`.",
        "[rank0]: The above exception was the direct cause of the following exception:",
        "[rank0]:     raise InstantiationException(message) from e",
        "[rank0]: hydra.errors.InstantiationException: Error in call to target 'HFModelConfig':",
        "[rank0]: ValueError('The checkpoint has model type `nonsense`.')",
    )
    assert last_words(text) == "ValueError: The checkpoint has model type `nonsense`."


def test_an_error_that_points_to_another_one_is_not_it() -> None:
    text = log(
        "(vLLMHttpServer pid=1) (Worker pid=2) ERROR 11-21 12:09:56 [multiproc_executor.py:941] ValueError: VLLM_PORT",
        "Exception: WorkerProc initialization failed due to an exception. See stack trace for root cause.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )
    assert last_words(text) == "ValueError: VLLM_PORT"


def test_without_a_cause_the_consequence_is_said() -> None:
    line = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    assert last_words(log(line)) == line


def test_an_error_of_slurm_s_own_is_said_where_no_exception_is_the_cause() -> None:
    launch = "srun: error: Task launch for StepId=7.0 failed on node node2: Communication connection failure"
    later = "srun: error: Application launch failed: Communication connection failure"
    exit_code = "srun: error: node1: task 0: Exited with exit code 1"
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    program = "slurmstepd-node1: error: execve(): ray: No such file or directory"
    assert last_words(log("srun: Job 7 step creation temporarily disabled", launch, later)) == launch
    assert last_words(log(launch, died)) == launch
    assert last_words(log(program, exit_code)) == program
    assert last_words(log("ValueError: bad kernel", launch, exit_code)) == "ValueError: bad kernel"
    assert last_words(log(died, exit_code)) == died


@pytest.mark.parametrize("line", ["Exception: The node gave up.", "a.b.Error: x", "Exit: 3"])
def test_an_exception_without_a_name_of_its_own_is_one(line: str) -> None:
    assert last_words(log(line)) == line


def test_a_log_without_an_error_has_nothing_to_say() -> None:
    assert last_words(log("UserWarning: x is not available: ModuleNotFoundError(\"No module named 'x'\")")) is None
    assert last_words("") is None


def test_an_error_without_words_is_placed() -> None:
    assert last_words(log("    assert x == y", "AssertionError")) == "AssertionError at: assert x == y"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("torch.distributed.DistNetworkError: port: 29500, code: -98, name: EADDRINUSE", "a port was taken"),
        ("OSError: [Errno 98] Address already in use", "a port was taken"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4 GiB", "tokens_per_device"),
        ("ValueError: Total available GPUs 4 is less than total desired GPUs 8", "fewer GPUs than cluster asks for"),
        ("OSError: [Errno 28] No space left on device", "a disk is full"),
    ],
)
def test_known_causes_come_with_advice(line: str, advice: str) -> None:
    found = last_words(log(_WORKER + line))
    assert found is not None and found.startswith(line) and advice in found and "\n" not in found


def test_an_end_without_words_is_told_by_its_status() -> None:
    assert ended(-9) == "killed by SIGKILL"
    assert ended(1) == "exit status 1, and no error in the log"


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
    answer = subprocess.run(
        [sys.executable, "-c", code, str(run_file)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), RUN_VARIABLE: str(run_file)},
        capture_output=True,
        text=True,
        check=False,
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
    check_ray(two, job, None, lambda host, port: False, nodes_of_job(job))
    with pytest.raises(UserError, match="nodes: is 4, and RAY_ADDRESS is not set; accepted: 3, in a Slurm job"):
        check_ray(make_cluster(nodes=4), job, None, lambda host, port: False, nodes_of_job(job))
    words = on_every_node(two, "/env/bin/python", job)
    patience = ["RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600", "RAY_py_gcs_connect_timeout_s=600"]
    assert words[:6] == ["env", "SLURM_JOB_NODELIST=node1,node2", *patience, "RAY_AUTH_MODE=token", "srun"]
    assert "RAY_AUTH_MODE=disabled" in on_every_node(two, "/env/bin/python", {**job, "RAY_AUTH_MODE": "disabled"})
    ray = words.index("/env/bin/ray")
    assert words[ray + 1 :] == [
        *("symmetric-run", "--address", "node1:6379", "--min-nodes", "2", "--", "env", "RAY_ADDRESS=node1:6379")
    ]
    assert on_every_node(make_cluster(nodes=1), "/env/bin/python", job) == []
    assert on_every_node(two, "/env/bin/python", {**job, "RAY_ADDRESS": "elsewhere:6379"}) == []
