"""One data-parallel rank of verl's engine with a method's components, without Ray or vLLM, on recorded rollout batches.

``python verl_rank.py BATCH...`` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment. Rank 0 writes
``found.pt`` beside each batch: what all ranks found, in the order of the recorded batch.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed

warnings.filterwarnings("ignore")


def main() -> None:
    distributed.init_process_group("gloo", timeout=timedelta(seconds=300))
    for path in sys.argv[1:]:
        compute(Path(path))
    distributed.destroy_process_group()


def compute(path: Path) -> None:
    """Old log-probs, token weights and all updates of one recorded batch."""
    from evals.core.run_spec import Cluster, VerlRun
    from rlvr.engines.verl.checks import compose_config
    from rlvr.engines.verl.launch import Places, launch
    from rlvr.engines.verl.mini_batches import lay_out
    from rlvr.methods.assignments import mini_batch_ids
    from rlvr.methods.method import compose as compose_method

    given, directory = json.loads(path.read_text(encoding="utf-8")), path.parent
    run, cluster = VerlRun.read(directory / "run.json"), Cluster.read(directory / "cluster.json")
    repository = Path(__file__).parents[2]
    places = Places(run=directory, study=Path(given["study"]), repository=repository, state=directory / "state")
    config = compose_config(launch(run, cluster, places))
    from rlvr.engines.verl.rank import EngineRank, RankBatch

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    one = EngineRank(run, cluster, config)

    mini_batches = [torch.tensor(part) for part in given["mini_batches"]]
    method = compose_method(run.method)
    cut_by_engine = not method.assignment.equal_sizes
    layout = lay_out(method, mini_batches, torch.tensor([len(r) for r in given["responses"]]), ranks)
    own = layout.view(ranks, -1)[rank]
    batch = RankBatch(
        [given["prompts"][row] for row in own],
        [given["responses"][row] for row in own],
        torch.tensor(given["advantages"])[own],
        torch.tensor(given["groups"])[own],
        mini_batch_ids(mini_batches, len(layout))[own],
        layout.argsort()[own],
    )
    scores = one.score(batch)
    weighted = [advantage * weights for advantage, weights in zip(batch.advantages, scores.weights, strict=True)]
    share = len(own) if cut_by_engine else len(own) // len(mini_batches)
    grad_norms, sliced = [], []
    with one.engine.train_mode():
        for start in range(0, len(own), share):
            part = slice(start, start + share)
            metrics = one.update(batch.select(part), scores.log_probs[part], weighted[part])
            grad_norms.append(float(metrics["grad_norm"]))
            sliced.append(own[part].tolist())
    if cut_by_engine:
        sliced = [own[batch.mini_batches == number].tolist() for number in range(len(mini_batches))]
    state = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in one.engine.module.state_dict().items()
    }
    gathered: list[Any] = [None] * ranks
    found = zip(scores.log_probs, scores.entropies, scores.weights, strict=True)
    mine = {
        row: [values.tolist() for values in of_rollout] for row, of_rollout in zip(own.tolist(), found, strict=True)
    }
    distributed.all_gather_object(gathered, (mine, sliced))
    if rank == 0:
        whole = {row: values for part, _ in gathered for row, values in part.items()}
        torch.save(
            {
                "log_probs": [whole[row][0] for row in sorted(whole)],
                "entropies": [whole[row][1] for row in sorted(whole)],
                "weights": [whole[row][2] for row in sorted(whole)],
                "weight_metrics": scores.metrics,
                "grad_norms": grad_norms,
                "mini_batches": [
                    sorted(row for of_rank in parts for row in of_rank)
                    for parts in zip(*(rows for _, rows in gathered), strict=True)
                ],
                "state": {name: value.float() for name, value in state.items()},
            },
            directory / "found.pt",
        )


if __name__ == "__main__":
    main()
