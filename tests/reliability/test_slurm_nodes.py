"""A training of several nodes as one job of a real Slurm: its command on every node, and nothing left of it at its end.

It runs where root and Slurm's programs are there (docs/paper_scale.md says how). A script stands for `ray`; the last
test takes the real one where `make test-engines` has installed it.
"""

import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm_cluster import NODES, RAY, SlurmCluster, processes_in, reason_for_none, slurm_cluster

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 300
TRAINING = """\
import os, signal, subprocess, sys, time
from types import SimpleNamespace
from rlvr.engines.verl.processes import on_every_node
cluster = SimpleNamespace(nodes=2, platform="cuda")
os.environ["PATH"] = os.path.dirname(sys.argv[2]) + os.pathsep + os.environ["PATH"]  # as rlvr.engines.verl.train
words = [*on_every_node(cluster, sys.argv[2], os.environ), "sh", "-c", sys.argv[1]]
process = subprocess.Popen(words, start_new_session=True)
while process.poll() is None and not os.path.exists("stop"):
    time.sleep(0.1)
if os.path.exists("stop"):
    os.killpg(process.pid, signal.SIGTERM)
with open("status", "w") as file:
    file.write(str(process.wait()))
sys.exit(process.returncode)
"""

ON_EACH_NODE = """\
import socket
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init()
host = ray.remote(lambda: socket.gethostname())
for node in ray.nodes():
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    print(ray.get(host.options(scheduling_strategy=there).remote()))
"""
WITH_RAY = REPOSITORY / ".venv-engines" / "bin" / "python"

CLEAN = "env $(env | sed -n 's/^\\(SLURM_[^=]*\\)=.*/-u \\1/p' | grep -v '^-u SLURM_JOB_ID$')"

if (reason := reason_for_none()) is not None:
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submit(slurm: SlurmCluster, place: Path, command: str, python: str | Path = "./python") -> str:
    """Submit a training of two nodes as Snakemake's executor does, whose job is a step without Slurm's variables."""
    (place / "ray").write_text(RAY)
    (place / "ray").chmod(0o755)
    (place / "training.py").write_text(TRAINING)
    step = f"PYTHONPATH={REPOSITORY} RAY_AUTH_TOKEN={secrets.token_hex(32)} {CLEAN}"
    step += " srun -n1 --cpu-bind=q --cpus-per-task=8 --nodes=2"
    step += f" {sys.executable} training.py '{command}' {python}"
    options = ["--parsable", "--nodes=2", "--gres=gpu:8", "--cpus-per-task=8", "--mem=1000", f"--chdir={place}"]
    return slurm.ask("sbatch", *options, f"--output={place}/output", "--wrap", step).strip()


def wait_until_over(slurm: SlurmCluster, place: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while slurm.jobs():
        assert time.monotonic() < deadline, (place / "output").read_text()
        time.sleep(0.2)


def test_verl_s_command_runs_once_ray_is_on_every_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    submit(slurm, tmp_path, "hostname > seen; echo $RAY_ADDRESS >> seen")
    wait_until_over(slurm, tmp_path)
    assert (tmp_path / "seen").exists(), (tmp_path / "output").read_text()
    (there,) = tmp_path.glob("there.*")
    assert sorted(there.read_text().split()) == sorted(NODES)
    head, address = (tmp_path / "seen").read_text().split()
    assert head in NODES and address == f"{head}:6379"


def test_nothing_is_left_on_any_node_when_it_is_stopped(slurm: SlurmCluster, tmp_path: Path) -> None:
    submit(slurm, tmp_path, "touch begun; sleep 100000")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline and slurm.jobs(), (tmp_path / "output").read_text()
        time.sleep(0.2)
    assert len(processes_in(tmp_path)) > 2
    (tmp_path / "stop").touch()
    wait_until_over(slurm, tmp_path)
    assert processes_in(tmp_path) == []


@pytest.mark.skipif(not WITH_RAY.exists(), reason="Ray is in the environment of make test-engines")
def test_ray_itself_joins_the_nodes_and_ends_with_the_command(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "on_each_node.py").write_text(ON_EACH_NODE)
    submit(slurm, tmp_path, f"{WITH_RAY} on_each_node.py > seen", WITH_RAY)
    wait_until_over(slurm, tmp_path)
    assert sorted((tmp_path / "seen").read_text().split()) == sorted(NODES), (tmp_path / "output").read_text()
    assert (tmp_path / "status").read_text() == "0"
    assert processes_in(tmp_path) == []
