"""A real Slurm on this machine alone: a controller, and two nodes that are as good as machines of their own.

A node has a name, an address, processes and shared memory of its own (namespaces of Linux), and shares the file system
with the others, so that software cannot tell it from a machine, and killing it is a power cut. It takes root, and
Debian's packages: ``apt-get install slurmctld slurmd slurm-client munge iproute2``; no systemd, and no cgroups.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import yaml

from rlvr.study.study_file import read_study_file

NODES = ("node1", "node2")
STEPS = 60
PATIENCE_SECONDS = 3600
"""The limit of a wait for one event, long enough for any machine; what can no longer come ends the wait at once."""
REPOSITORY = Path(__file__).resolve().parents[1]
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip")
_NODE = ["unshare", "--uts", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
_NETWORKS = range(1, 250)
_FIRST_PORT = 16800  # of a controller; those of the nodes are in networks of their own
_GPUS = 8

# No limit of Slurm's own ends a job that a slow machine only delays: a node is down when it is said to be.
_CONFIGURATION = """\
ClusterName=rehearsal
SlurmctldHost={host}({controller})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
SlurmdTimeout=0
MessageTimeout=100
BatchStartTimeout={patience}
UnkillableStepTimeout={patience}
MinJobAge={patience}
ReturnToService=2
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

_LAUNCH = """\
# `python -m rlvr.study.launch`, whose executor asks Slurm every second: by itself it asks less and less often.
import sys
from snakemake_executor_plugin_slurm import Executor
from rlvr.study.launch import main
Executor.next_seconds_between_status_checks = property(lambda executor: 1.0, lambda executor, seconds: None)
Executor.cancel_jobs = lambda executor, jobs: None  # as where it is interrupted while it asks, and knows of no job
main(sys.argv[1:])
"""


def reason_for_none() -> str | None:
    """Why Slurm cannot run here, in one line; None if it can."""
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"{', '.join(lacking)}: not installed (apt-get install slurmctld slurmd slurm-client munge iproute2)"
    name = f"rlvr-{os.getpid()}"
    network = (
        f"ip link add {name} type bridge && ip link delete {name} && ip netns add {name} && ip netns delete {name}"
    )
    node = "hostname node && mount -t tmpfs tmpfs /dev/shm && ip link add eth0 type veth peer name eth1"
    trial = f"{network} && {' '.join(_NODE)} --net sh -c '{node}'"
    tried = subprocess.run(["sh", "-c", trial], capture_output=True, text=True, check=False)
    said = ["", *tried.stderr.strip().splitlines()][-1]
    return f"nodes and networks of a Slurm cannot be made here: {said}" if tried.returncode != 0 else None


def processes_in(place: Path) -> list[psutil.Process]:
    """The processes on any node that work in a directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(place):
                found.append(process)
    return found


@dataclass
class SlurmCluster:
    """A cluster of two nodes, each of which has many processors and 8 GPUs by its own account.

    Attributes:
        place: its directory.
        number: of its network, which no other cluster of this machine has.
        machines: the processes whose end is the end of a node, of the controller or of munge's daemon.
    """

    place: Path
    number: int
    machines: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each node."""
        return {node: f"10.213.{self.number}.{place}" for place, node in enumerate(NODES, start=1)}

    @property
    def controller(self) -> str:
        """The address of this machine for the nodes."""
        return f"10.213.{self.number}.254"

    @property
    def bridge(self) -> str:
        """The name of the network."""
        return f"rlvr-slurm-{self.number}"

    def namespace(self, node: str) -> str:
        """The name of a node's part of the network."""
        return f"{self.bridge}-{node}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which Slurm's commands find this cluster from where users log in."""
        return {"SLURM_CONF": str(self.place / "slurm.conf")}

    def ask(self, *words: str) -> str:
        """The answer of one of Slurm's commands."""
        answer = self._run(*words)
        assert answer.returncode == 0, f"{words}: {answer.stderr}"
        return answer.stdout

    def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        variables = {**os.environ, **self.environment}
        return subprocess.run(words, env=variables, capture_output=True, text=True, check=False)

    def jobs(self, states: str = "PENDING,RUNNING,COMPLETING") -> dict[str, tuple[int, str]]:
        """Jobs in these states, by their numbers: how often each was started again, and what it is for."""
        said = self.ask("squeue", "--noheader", "--Format=JobID:20,RestartCnt:10,Comment:200", f"--states={states}")
        rows = [line.split() for line in said.splitlines()]
        return {job: (int(restarts), comment) for job, restarts, comment in rows}

    def node_of(self, job: str) -> str:
        """The node that runs a job, once there is one."""
        return self.ask("squeue", "--noheader", "--format=%N", f"--jobs={job}").strip()

    def wait(
        self, condition: Callable[[], object], told: Callable[[], str], goes_on: Callable[[], object] = lambda: True
    ) -> None:
        """Until ``condition`` holds, as long as the cluster is up and what it comes from ``goes_on``."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert (goes_on() and time.monotonic() < deadline) or condition(), told()
            for name, machine in self.machines.items():
                assert machine.poll() is None, f"{name}: {(self.place / f'{name}.output').read_text()[-2000:]}"
            time.sleep(0.2)

    def begin_what_waits(self) -> None:
        """Let jobs that Slurm has taken back begin now; by itself it waits for two minutes."""
        for line in self.ask("squeue", "--noheader", "--states=PENDING", "--format=%i %r").splitlines():
            job, reason = line.split(maxsplit=1)
            if reason == "BeginTime":
                self._run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait_until_idle(self, told: Callable[[], str] = str) -> None:
        """Until no job is left."""
        self.wait(lambda: not self.jobs(), told)

    def wait_for_nodes(self) -> None:
        """Until jobs can be given to all nodes."""

        def states() -> str:
            return self._run(
                "sinfo", "--noheader", "--Node", "--format=%t"
            ).stdout  # nothing before the controller is up

        self.wait(lambda: states() and not set(states().split()) - {"idle", "mix", "alloc"}, states)

    def start(self, name: str, *words: str) -> None:
        """Start a process of the cluster, which does not outlive this one however it ends."""
        with (self.place / f"{name}.output").open("ab") as output:
            self.machines[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """End everything on a machine of the cluster at once."""
        machine = self.machines.pop(name)
        machine.send_signal(signal.SIGKILL)
        machine.wait()

    def switch_on(self, node: str) -> None:
        """Start a node, or start it again after a power cut."""
        (self.place / f"spool.{node}").mkdir(exist_ok=True)
        lines = [
            f"hostname {node}",
            f"mount --bind {self.place} /etc/slurm",  # where jobs look, which keep no variables of Slurm's
            f"mount --bind {self.place}/hosts /etc/hosts",
            "mount -t tmpfs tmpfs /dev/shm",
            "mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray",
            "slurmd -D & wait",  # not exec: process 1 of the node has to collect orphans
        ]
        network = f"--net=/run/netns/{self.namespace(node)}"
        self.start(node, "nsenter", network, *_NODE, "sh", "-ec", "\n".join(lines))

    def cut_power(self, node: str) -> None:
        """End everything on a node, and tell Slurm, which would notice it by itself after a while."""
        self.stop(node)
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")


class StudyOnSlurm:
    """A study in ``config`` cut down to one training, which saves its state after every step.

    Programs in ``bin`` of the directory are found by its jobs.
    """

    def __init__(self, config: str, directory: Path, slurm: SlurmCluster, seed: int = 1, **execution: Any) -> None:
        study = read_study_file(REPOSITORY / "config" / config)
        study |= {"seeds": [seed], "benchmarks": ["chain_3"], "methods": {"dapo": {}}}
        study["models"]["tiny"]["training"]["steps"] = 10
        study["training"]["steps"] = STEPS
        study["execution"] |= {"checkpoint_interval": 1, **execution}
        self.config, self.name = directory / "slurm.yaml", f"tiny-dapo-s{seed}"
        self.config.write_text(yaml.safe_dump(study))
        self.run = directory / "results/runs" / self.name
        self.started: list[subprocess.Popen[bytes]] = []
        self._directory, self._slurm = directory, slurm

    def start(self, *targets: str, memory: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[bytes]:
        """Start Snakemake with the profile; without a database of accounts, squeue alone knows how jobs ended.

        Args:
            targets: by themselves the runs.
            memory: what rules ask for instead, in megabytes; ``attempt`` is the number of the attempt.
        """
        asked = ["--slurm-status-command", "squeue"]
        asked += [word for rule, mb in memory.items() for word in ("--set-resources", f"{rule}:mem_mb={mb}")]
        words = ["--directory", str(self._directory), "--configfile", str(self.config), "--profile", "profiles/slurm"]
        with open(self._directory / "output.log", "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, *(targets or ["runs"]), *words, *asked],
                cwd=REPOSITORY,
                env={**os.environ, **self._slurm.environment, "PATH": f"{os.environ['PATH']}:{self._directory}/bin"},
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
            )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End what a test that has failed left."""
        for process in self.started:
            process.kill()
            process.wait()
        self._slurm.ask("scancel", "--user=root")

    def output(self) -> str:
        log = self._directory / "output.log"
        return log.read_text() if log.exists() else ""

    def steps(self) -> int:
        """The steps that the training has told of."""
        try:
            return int(json.loads((self.run / "progress.json").read_text())["step"])
        except FileNotFoundError:
            return 0

    def wait(self, condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
        """Until ``condition`` holds, while Snakemake runs."""

        def holds() -> object:
            self._slurm.begin_what_waits()
            return condition()

        self._slurm.wait(holds, self.output, lambda: process.poll() is None)

    def wait_for_end(self, process: subprocess.Popen[bytes]) -> int:
        """The status of Snakemake, once it has ended."""
        self.wait(lambda: process.poll() is not None, process)
        return process.wait()

    def wait_for_training(self, process: subprocess.Popen[bytes], restarts: int = 0) -> tuple[str, str]:
        """Slurm's number of the training that has done a step after so many restarts, and its node."""
        training = f"rule_train_wildcards_{self.name}"
        self.wait(lambda: (restarts, training) in self._slurm.jobs("RUNNING").values(), process)
        done = self.steps()
        self.wait(lambda: self.steps() > done, process)
        (job,) = (job for job, (_, comment) in self._slurm.jobs("RUNNING").items() if comment == training)
        return job, self._slurm.node_of(job)


@contextlib.contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A cluster that is up, and ends with the block.

    Its directory has a short path: a node's socket lies in it, whose whole name has at most 107 characters.
    """
    number, place = _free_network(), Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cluster = SlurmCluster(place, number)
    try:
        _write_files(cluster)
        Path("/etc/slurm").mkdir(exist_ok=True)
        _connect(cluster)
        files = [f"--{name}-file={place}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        cluster.start("munged", "munged", "--foreground", "--force", f"--socket={place}/munge.socket", *files)
        cluster.wait((place / "munge.socket").exists, str)
        cluster.start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            cluster.switch_on(node)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        for name in reversed(list(cluster.machines)):
            cluster.stop(name)
        names = [f"ip netns delete {cluster.namespace(node)}" for node in NODES]
        for words in (*names, f"ip link delete {cluster.bridge}"):
            subprocess.run(words.split(), capture_output=True, check=False)
        shutil.rmtree(place, ignore_errors=True)


def _free_network() -> int:
    """The number of a bridge that this call has made: one that exists, of another cluster or left by it, is refused."""
    for number in _NETWORKS:
        words = f"ip link add {SlurmCluster(Path(), number).bridge} type bridge".split()
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return number
    raise AssertionError(f"no bridge can be made: {' '.join(words)}")


def _write_files(cluster: SlurmCluster) -> None:
    place = cluster.place
    (place / "state").mkdir(parents=True)
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    host = socket.gethostname()
    nodes = "\n".join(
        f"NodeName={node} NodeAddr={address} CPUs=64 RealMemory=1000000 Gres=gpu:{_GPUS}"
        for node, address in cluster.addresses.items()
    )
    values = {"host": host, "controller": cluster.controller, "port": _FIRST_PORT + cluster.number, "place": place}
    configuration = _CONFIGURATION.format(**values, nodes=nodes, patience=PATIENCE_SECONDS)
    (place / "slurm.conf").write_text(configuration, encoding="utf-8")
    (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")  # named, it looks for none
    for number in range(_GPUS):
        (place / f"gpu{number}").touch()
    (place / "gres.conf").write_text(f"Name=gpu File={place}/gpu[0-{_GPUS - 1}]\n", encoding="utf-8")
    names = {"localhost": "127.0.0.1", **cluster.addresses, host: cluster.controller}
    (place / "hosts").write_text("".join(f"{address} {name}\n" for name, address in names.items()), encoding="utf-8")


def _connect(cluster: SlurmCluster) -> None:
    _each(f"ip address add {cluster.controller}/24 dev {cluster.bridge}", f"ip link set {cluster.bridge} up")
    for node, address in cluster.addresses.items():
        space, link = cluster.namespace(node), f"slurm{cluster.number}-{node}"
        _each(
            f"ip netns add {space}",
            f"ip link add {link} type veth peer name eth0 netns {space}",
            f"ip link set {link} master {cluster.bridge} up",
            f"ip -n {space} address add {address}/24 dev eth0",
            f"ip -n {space} link set eth0 up",
            f"ip -n {space} link set lo up",
        )


def _each(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)
