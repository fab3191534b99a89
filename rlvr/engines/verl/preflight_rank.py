"""One process of ``preflight``: a training step on made-up tokens of the longest length, timed and measured.

``python -m rlvr.engines.verl.preflight_rank DIRECTORY STUDY`` with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in the environment; writes ``rank{RANK}.json`` in DIRECTORY.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as distributed

from evals.core.files import write_json
from evals.core.random import generator_for
from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.launch import Places, launch

if TYPE_CHECKING:
    from rlvr.engines.verl.rank import EngineRank  # imports verl, which has to find its platform first

_PROCESS_GROUP_SECONDS = 1800


@dataclass
class Measured:
    """What the parts of the step took on this process.

    Attributes:
        seconds: by part, in the order in which they were done.
        device_bytes: largest memory allocated on the device during each part.
        host_bytes: largest resident memory of the process up to the end of each part.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)
    host_bytes: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the block under ``name``."""
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


def main(directory: Path, study: Path) -> None:
    """Do the step and write what was measured."""
    warnings.filterwarnings("ignore")
    run, cluster = VerlRun.read(directory / "run.json"), Cluster.read(directory / "cluster.json")
    places = Places(run=directory, study=study, repository=Path(__file__).parents[3], state=directory / "state")
    from rlvr.engines.verl.compose import compose

    config = compose(launch(run, cluster, places))
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
    """One training step on made-up tokens, without rollouts."""
    from rlvr.engines.verl.rank import RankBatch
    from rlvr.engines.verl.this_run import this_run

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
    advantages = this_run().advantage.of_rollouts((rows % 2).float(), groups - groups[0], lengths)
    size = own // training.updates_per_step
    batch = RankBatch(
        tokens(training.max_prompt_tokens),
        tokens(training.max_new_tokens),
        advantages,
        groups,
        torch.arange(own) // size,
        rows,
    )
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
    main(Path(sys.argv[1]), Path(sys.argv[2]))
