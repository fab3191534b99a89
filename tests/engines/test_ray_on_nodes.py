"""A run of several nodes as one job of a real Slurm: a Ray of its own, and nothing left of it at its end.

It runs where root and Slurm's programs are there, as in continuous integration (.ci/run).
"""

import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm_cluster import NODES, REPOSITORY, SlurmCluster, processes_in

TRAINING = """\
import os, signal, subprocess, sys, time
from types import SimpleNamespace
from rlvr.engines.verl.processes import on_every_node
cluster = SimpleNamespace(nodes=2, platform="cuda")
os.environ["PATH"] = os.path.dirname(sys.argv[2]) + os.pathsep + os.environ["PATH"]  # as rlvr.engines.verl.train
for _ in range(3):  # as rlvr.engines.verl.train, where Ray is slow
    words = [*on_every_node(cluster, sys.argv[2], os.environ), "sh", "-c", sys.argv[1]]
    process = subprocess.Popen(words, start_new_session=True)
    while process.poll() is None and not os.path.exists("stop"):
        time.sleep(0.1)
    if process.returncode in (0, None):
        break
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
CLEAN = "env $(env | sed -n 's/^\\(SLURM_[^=]*\\)=.*/-u \\1/p' | grep -v '^-u SLURM_JOB_ID$')"


@pytest.fixture
def files_of_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the nodes have the files of their Ray."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("RAY_TMPDIR", short)
        yield Path(short)


def submit(slurm: SlurmCluster, place: Path, command: str) -> str:
    """Submit a run of two nodes as Snakemake's executor does, whose job is a step without Slurm's variables."""
    place.mkdir(exist_ok=True)
    (place / "training.py").write_text(TRAINING)
    step = (
        f"PYTHONPATH={REPOSITORY} RAY_AUTH_TOKEN={secrets.token_hex(32)} RAY_TMPDIR={os.environ['RAY_TMPDIR']} {CLEAN}"
    )
    step += " srun -n1 --cpu-bind=q --cpus-per-task=8 --nodes=2"
    step += f" {sys.executable} training.py '{command}' {sys.executable}"
    options = ["--parsable", "--nodes=2", "--gres=gpu:4", "--cpus-per-task=8", "--mem=30000", f"--chdir={place}"]
    return slurm.ask("sbatch", *options, f"--output={place}/output", "--wrap", step).strip()


def wait_until(slurm: SlurmCluster, place: Path, name: str) -> None:
    """Until the command of a run has made a file."""
    slurm.wait((place / name).exists, (place / "output").read_text, slurm.jobs)


def test_trainings_on_the_same_nodes_are_apart(slurm: SlurmCluster, tmp_path: Path, files_of_ray: Path) -> None:
    """One ends while the other's Ray works on both nodes, and goes on working; then nothing is left of either."""
    long, short = tmp_path / "long", tmp_path / "short"
    submit(slurm, long, f"touch begun; until [ -e go ]; do sleep 0.5; done; {sys.executable} on_each_node.py > seen")
    (long / "on_each_node.py").write_text(ON_EACH_NODE)
    wait_until(slurm, long, "begun")
    submit(slurm, short, f"{sys.executable} on_each_node.py > seen")
    (short / "on_each_node.py").write_text(ON_EACH_NODE)
    wait_until(slurm, short, "status")
    assert sorted((short / "seen").read_text().split()) == sorted(NODES), (short / "output").read_text()
    (long / "go").touch()
    slurm.wait_until_idle((long / "output").read_text)
    assert sorted((long / "seen").read_text().split()) == sorted(NODES), (long / "output").read_text()
    assert [(place / "status").read_text() for place in (long, short)] == ["0", "0"]
    assert processes_in(tmp_path) == []
    assert list(files_of_ray.iterdir()) == []


def test_no_process_is_left_on_any_node(slurm: SlurmCluster, tmp_path: Path, files_of_ray: Path) -> None:
    submit(slurm, tmp_path, "touch begun; sleep 100000")
    wait_until(slurm, tmp_path, "begun")
    assert len(processes_in(tmp_path)) > 2 and len(list(files_of_ray.iterdir())) == 2
    (tmp_path / "stop").touch()
    slurm.wait_until_idle((tmp_path / "output").read_text)
    # Without cgroups Slurm kills the tree that it sees. A worker begun meanwhile ends once it finds that its Ray has.
    slurm.wait(lambda: not processes_in(tmp_path), lambda: str(processes_in(tmp_path)))
