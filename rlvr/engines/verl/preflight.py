"""One training step at the longest length on this node's devices, before hours are spent: its memory and its time.

No rollouts are made, so nothing of vLLM is in it. The processes are started here, one a device, without Ray, as
``python -m rlvr.engines.verl.preflight DIRECTORY STUDY`` with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
in the environment; each has the share of the batch that a data-parallel rank has in the real run, and writes
``rank{RANK}.json`` in DIRECTORY.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, write_json
from evals.core.manifest import verify_outputs
from evals.core.random import generator_for
from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl import RESPONSE_FRACTION
from rlvr.engines.verl.checks import check, compose_config
from rlvr.engines.verl.hidden_states import HiddenStateSize, hidden_state_size
from rlvr.engines.verl.launch import CLUSTER_VARIABLE, RUN_VARIABLE, Places, launch
from rlvr.engines.verl.processes import ended, last_words, require_gpus

if TYPE_CHECKING:
    from rlvr.engines.verl.rank import EngineRank  # imports verl, which has to find its platform first

_PROCESS_GROUP_SECONDS = 1800
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 30.0


def step_of_one_node(run: VerlRun, cluster: Cluster, hidden: HiddenStateSize | None) -> tuple[VerlRun, Cluster]:
    """The run and cluster of the step: one node, two updates of two full micro-batches each on every rank.

    More of them take more time, but no more memory: the first update makes the optimizer's state, the second
    micro-batch finds the gradients of the first. ``hidden`` is the size of the real run's hidden states; those of the
    step, which are fewer, go where the real ones go.
    """
    training = run.training
    if cluster.gpus_per_node % cluster.sequence_parallel:
        accepted = f"a divisor of gpus_per_node, {cluster.gpus_per_node}, for preflight, which runs on one node"
        raise InvalidInput("cluster", "sequence_parallel", f"is {cluster.sequence_parallel}", accepted)
    node = cluster.model_copy(update={"nodes": 1})
    if hidden is not None and (place := hidden.place(cluster)) != "device":
        host = cluster.hidden_state_host_budget if place == "host" else 0
        node = node.model_copy(update={"hidden_state_budget": 0, "hidden_state_host_budget": host})
    own = min(2 * _rollouts_together(run, cluster), training.rollouts_per_update // cluster.data_parallel)
    # A prompt for each rank and update, so that no prompt's rollouts are divided.
    shape = {"prompts_per_step": 2 * node.data_parallel, "samples_per_prompt": own, "updates_per_step": 2}
    return run.model_copy(update={"training": training.model_copy(update=shape)}), node


def _rollouts_together(run: VerlRun, cluster: Cluster) -> int:
    """The rollouts of the longest kind in one micro-batch."""
    longest = run.training.max_prompt_tokens + run.training.max_new_tokens
    return cluster.tokens_per_device * cluster.sequence_parallel // longest


def preflight(run_file: Path, cluster: Cluster, python: str, study: Path, repository: Path) -> str:
    """Do the step; returns a report of it. Logs and measurements stay in ``verl/preflight`` beside the run's file.

    ``study`` is the directory that the study works in, ``repository`` the one of this project's packages.
    """
    run = VerlRun.read(run_file)
    verify_outputs(study / run.base / "manifest.json", "base_model")
    checkpoint = study / run.base / "checkpoint"
    method = check(run, cluster, checkpoint)
    hidden = hidden_state_size(run, cluster, method, read_json(checkpoint / "config.json"), RESPONSE_FRACTION)
    node_run, node = step_of_one_node(run, cluster, hidden)
    require_gpus(node)
    directory = run_file.resolve().parent / "verl" / "preflight"
    for old in directory.glob("rank*"):
        old.unlink()
    write_json(directory / "run.json", node_run.to_json())
    write_json(directory / "cluster.json", node.to_json())
    _run_ranks(directory, node.gpus_per_node, python, study, repository)
    measured = [read_json(directory / f"rank{rank}.json") for rank in range(node.gpus_per_node)]
    write_json(directory / "measured.json", measured)
    return report(run, cluster, node_run, measured, hidden)


def _run_ranks(directory: Path, ranks: int, python: str, study: Path, repository: Path) -> None:
    """Start a process for each device, and wait for all; if one fails, the others are ended."""
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
    words = [python, "-m", "rlvr.engines.verl.preflight", str(directory), str(study)]
    try:
        for rank, log in enumerate(logs):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            with log.open("wb") as output:
                processes.append(subprocess.Popen(words, env=own, stdout=output, stderr=subprocess.STDOUT))
        while any(process.poll() is None for process in processes) and not any(process.poll() for process in processes):
            time.sleep(_LOOK_SECONDS)
        failed = next((rank for rank, process in enumerate(processes) if process.poll()), None)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
    if failed is not None:
        said = last_words(logs[failed].read_text(encoding="utf-8", errors="replace"))
        raise UserError(f"preflight: device {failed}: {said or ended(processes[failed].returncode)} ({logs[failed]})")


def report(
    run: VerlRun,
    cluster: Cluster,
    of_node: VerlRun,
    measured: Sequence[Mapping[str, Any]],
    hidden: HiddenStateSize | None,
) -> str:
    """Format what was ``measured``, as Measured of each device: a line for each part and device.

    ``of_node`` is the run of the step; ``run``, ``cluster`` and ``hidden`` are those of the real one.
    """
    training, own = run.training, of_node.training.samples_per_prompt
    lines = [
        f"{run.run}: two updates of {own} rollouts of {training.max_prompt_tokens} + {training.max_new_tokens} tokens "
        f"on each data-parallel rank of one node, {_rollouts_together(run, cluster)} in a micro-batch; no rollouts are "
        "made, so nothing of vLLM is in it"
    ]
    if hidden is not None:
        lines.append(f"as with responses of {RESPONSE_FRACTION:.0%} of the longest, {hidden.description(cluster)}")
    lines += ["", f"{'':22}{'seconds':>10}{'device MiB':>12}{'host MiB':>10}"]
    for part in measured[0]["seconds"]:
        for rank, found in enumerate(measured):
            name, seconds = part if rank == 0 else "", found["seconds"][part]
            memory = (found[kind][part] >> 20 if part in found[kind] else "" for kind in ("device_bytes", "host_bytes"))
            lines.append("{:22}{:>10.2f}{:>12}{:>10}  device {}".format(name, seconds, *memory, rank))
    # The first update compiles and makes the optimizer's state.
    parts = ("old log-probs", "token weights", "update 2", "update 2")
    seconds = max(sum(found["seconds"].get(part, 0.0) for part in parts) for found in measured) / (2 * own)
    rollouts = training.rollouts_per_step // cluster.data_parallel
    peak = max(max(found["device_bytes"].values()) for found in measured)
    whole = f"{seconds * rollouts:.1f} s for a whole step of {rollouts} such rollouts a rank, without making them"
    lines += ["", f"by that, {whole}", f"largest memory of a device: {peak >> 20} MiB"]
    if cluster.nodes > 1:
        several = f"on {cluster.nodes} nodes each device holds less"
        lines.append(f"weights and optimizer are sharded over this node alone; {several}")
    return "\n".join(lines)


@dataclass
class Measured:
    """The cost of the parts of the step on this process, in the order in which they were done."""

    seconds: dict[str, float] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)  # largest memory allocated there during each part
    host_bytes: dict[str, int] = field(default_factory=dict)  # the process's largest up to the end of each part

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        from verl.utils.device import get_torch_device

        device = get_torch_device()
        device.synchronize()
        device.reset_peak_memory_stats()
        started = time.monotonic()
        yield
        device.synchronize()
        self.seconds[name] = time.monotonic() - started
        self.device_bytes[name] = int(device.max_memory_allocated())
        self.host_bytes[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(directory: Path, study: Path) -> None:
    """Do the step on this process's device and write what was measured."""
    import torch.distributed as distributed

    warnings.filterwarnings("ignore")
    run, cluster = VerlRun.read(directory / "run.json"), Cluster.read(directory / "cluster.json")
    places = Places(run=directory, study=study, repository=Path(__file__).parents[3], state=directory / "state")
    config = compose_config(launch(run, cluster, places))
    from verl.utils.device import get_torch_device
    from verl.utils.distributed import initialize_global_process_group_ray

    from rlvr.engines.verl.rank import EngineRank

    get_torch_device().set_device(int(os.environ["LOCAL_RANK"]))
    initialize_global_process_group_ray(_PROCESS_GROUP_SECONDS)
    measured = Measured()
    with measured.part("model and optimizer"):
        rank = EngineRank(run, cluster, config)
    step(rank, run, measured)
    write_json(directory / f"rank{os.environ['RANK']}.json", asdict(measured))
    distributed.destroy_process_group()


def step(rank: EngineRank, run: VerlRun, measured: Measured) -> None:
    """Do one training step on made-up tokens, without rollouts."""
    import torch

    from rlvr.engines.verl.rank import RankBatch
    from rlvr.engines.verl.registered import current_run

    training = run.training
    own = training.rollouts_per_step // rank.engine.get_data_parallel_size()
    rows = rank.engine.get_data_parallel_rank() * own + torch.arange(own)
    generator = generator_for("preflight", int(rows[0]))

    def tokens(length: int) -> list[list[int]]:
        vocabulary = int(rank.engine.module.config.vocab_size)
        return torch.randint(vocabulary, (own, length), generator=generator).tolist()

    groups = rows // training.samples_per_prompt
    # Every other rollout is right, so that both sides of every prompt have tokens.
    lengths = torch.full((own,), training.max_new_tokens)
    advantages = current_run().method.advantages((rows % 2).float(), groups - groups[0], lengths, int(lengths[0]))
    size = own // training.updates_per_step
    prompts, responses = tokens(training.max_prompt_tokens), tokens(training.max_new_tokens)
    batch = RankBatch(prompts, responses, advantages, groups, torch.arange(own) // size, rows)
    with measured.part("old log-probs"):
        scores = rank.score(batch)
    of_weights = scores.metrics.get("seconds_token_weights", 0.0)
    measured.seconds["old log-probs"] -= of_weights
    measured.seconds["token weights"] = of_weights
    weighted = [advantage * weights for advantage, weights in zip(advantages, scores.weights, strict=True)]
    with rank.engine.train_mode():
        for number in range(training.updates_per_step):
            part = slice(number * size, (number + 1) * size)
            with measured.part(f"update {number + 1}"):
                rank.update(batch.select(part), scores.log_probs[part], weighted[part])


if __name__ == "__main__":
    measure(Path(sys.argv[1]), Path(sys.argv[2]))
