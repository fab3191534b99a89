"""The line of verl's log that a user needs: the worker's own, not what died after it."""

from __future__ import annotations

import pytest

from rlvr.engines.verl.worker_log import ended, last_words

_WORKER = "\x1b[36m(WorkerDict pid=71, ip=10.0.0.2)\x1b[0m "


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
