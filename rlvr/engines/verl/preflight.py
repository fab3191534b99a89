"""One training step at the longest length on this node's devices, before hours are spent: its memory and its time.

No rollouts are made, so nothing of vLLM is in it. The processes are started here, one a device, without Ray; each has
the share of the batch that a data-parallel rank has in the real run.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import read_json, write_json
from evals.core.manifest import verify_outputs
from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.checks import check
from rlvr.engines.verl.launch import CLUSTER_VARIABLE, RUN_VARIABLE
from rlvr.engines.verl.machine import require_gpus
from rlvr.engines.verl.worker_log import ended, last_words

_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 30.0


def of_one_node(run: VerlRun, cluster: Cluster) -> tuple[VerlRun, Cluster]:
    """The run and cluster of the step: one node, with as many rollouts as its ranks have in the real run.

    Raises:
        UserError: a rank's devices are on several nodes, or its rollouts are no whole prompts a node.
    """
    if cluster.gpus_per_node % cluster.sequence_parallel:
        raise UserError(
            f"cluster: sequence_parallel: is {cluster.sequence_parallel}; accepted by preflight, which runs on one "
            f"node: a divisor of gpus_per_node, {cluster.gpus_per_node}"
        )
    node = cluster.model_copy(update={"nodes": 1})
    rollouts = run.training.rollouts_per_step // cluster.data_parallel * node.data_parallel
    prompts, rest = divmod(rollouts, run.training.samples_per_prompt)
    if rest or prompts % run.training.updates_per_step:
        raise UserError(
            f"cluster: nodes: is {cluster.nodes}, which gives a node {rollouts} rollouts; accepted by preflight: "
            f"whole prompts of {run.training.samples_per_prompt} in each of {run.training.updates_per_step} updates"
        )
    training = run.training.model_copy(update={"prompts_per_step": prompts})
    return run.model_copy(update={"training": training}), node


def preflight(run_file: Path, cluster: Cluster, python: str, study: Path, repository: Path) -> str:
    """Do the step; a report of it. Logs, measurements and the report stay in ``verl/preflight`` beside the run's file.

    Args:
        run_file: run.json.
        cluster: where the run is to be carried out.
        python: of the environment that verl is installed in.
        study: the directory that the study works in.
        repository: where our packages are.

    Raises:
        UserError: an input is missing, this node has too few devices, or a process failed; one line.
    """
    run = VerlRun.read(run_file)
    verify_outputs(study / run.base / "manifest.json", "base_model")
    check(run, cluster, study / run.base / "checkpoint")
    node_run, node = of_one_node(run, cluster)
    require_gpus(node)
    directory = run_file.resolve().parent / "verl" / "preflight"
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("rank*"):
        old.unlink()
    write_json(directory / "run.json", node_run.to_json())
    write_json(directory / "cluster.json", node.to_json())
    _run_ranks(directory, node.gpus_per_node, python, study, repository)
    measured = [read_json(directory / f"rank{rank}.json") for rank in range(node.gpus_per_node)]
    told = report(node_run, cluster, measured)
    write_json(directory / "measured.json", measured)
    return told


def _run_ranks(directory: Path, ranks: int, python: str, study: Path, repository: Path) -> None:
    """Start a process for each device, and wait for all; if one fails, the others are ended.

    Raises:
        UserError: one failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(repository),
        RUN_VARIABLE: str(directory / "run.json"),
        CLUSTER_VARIABLE: str(directory / "cluster.json"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
    }
    logs = [directory / f"rank{rank}.log" for rank in range(ranks)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, log in enumerate(logs):
            with log.open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [python, "-m", "rlvr.engines.verl.preflight_rank", str(directory), str(study)],
                        env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            time.sleep(_LOOK_SECONDS)
        failed = next((rank for rank, process in enumerate(processes) if process.poll()), None)
    finally:
        _end(processes)
    if failed is not None:
        said = last_words(logs[failed].read_text(encoding="utf-8", errors="replace"))
        raise UserError(f"preflight: device {failed}: {said or ended(processes[failed].returncode)} ({logs[failed]})")


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End those that still run."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def report(run: VerlRun, cluster: Cluster, measured: Sequence[Mapping[str, Any]]) -> str:
    """What was measured, a line a part and a column a device.

    Args:
        run: of the step, with the rollouts of one node.
        cluster: of the real run.
        measured: of each device, as preflight_rank.Measured.
    """
    training = run.training
    each = training.rollouts_per_step * cluster.sequence_parallel // cluster.gpus_per_node
    lines = [
        f"{run.run}: one step of {each} rollouts of {training.max_prompt_tokens} + {training.max_new_tokens} tokens on "
        f"each data-parallel rank of one node, {training.updates_per_step} updates; no rollouts are made, so nothing "
        "of vLLM is in it",
        "",
        f"{'':22}{'seconds':>10}{'device MiB':>12}{'host MiB':>10}",
    ]
    parts = list(measured[0]["seconds"])
    for part in parts:
        for rank, found in enumerate(measured):
            name = part if rank == 0 else ""
            memory = "".join(
                f"{found[kind][part] >> 20:>{width}}" if part in found[kind] else f"{'':>{width}}"
                for kind, width in (("device_bytes", 12), ("host_bytes", 10))
            )
            lines.append(f"{name:22}{found['seconds'][part]:>10.2f}{memory}  device {rank}")
    step_seconds = max(sum(list(found["seconds"].values())[1:]) for found in measured)
    peak = max(max(found["device_bytes"].values()) for found in measured)
    lines += ["", f"one step without its rollouts: {step_seconds:.1f} s; largest memory of a device: {peak >> 20} MiB"]
    if cluster.nodes > 1:
        lines.append(
            f"weights and optimizer are sharded over this node alone; on {cluster.nodes} nodes each device holds less"
        )
    return "\n".join(lines)
