"""One data-parallel rank of verl's engine with our pieces, without Ray or vLLM, on a recorded rollout batch.

``python verl_rank.py INPUT OUTPUT`` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment. Rank 0
writes what all ranks found, in the order of the recorded batch.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

warnings.filterwarnings("ignore")


def nested(rows: list[Any], dtype: torch.dtype | None = None) -> Tensor:
    return torch.nested.as_nested_tensor([torch.as_tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def main() -> None:
    from rlvr.engines.verl.compose import compose
    from rlvr.engines.verl.launch import Places, launch
    from rlvr.engines.verl.run import Cluster, VerlRun

    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    directory = Path(given["run"]).parent
    run, cluster = VerlRun.read(Path(given["run"])), Cluster.read(directory / "cluster.json")
    repository = Path(__file__).parents[2]
    places = Places(run=directory, study=Path(given["study"]), repository=repository, state=directory / "state")
    config = compose(launch(run, cluster, places))
    from verl.utils import tensordict_utils
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine import EngineRegistry
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import response_from_nested

    from rlvr.engines.verl import worker_fields as fields
    from rlvr.engines.verl.layout import mini_batch_ids, rank_layout

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo", timeout=timedelta(seconds=300))
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.model_config = model
    engine = EngineRegistry.new(
        model_type="language_model",
        backend=actor.engine.strategy,
        model_config=model,
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    engine.initialize()

    mini_batches = [torch.tensor(part) for part in given["mini_batches"]]
    ids = mini_batch_ids(mini_batches)
    layout = rank_layout(mini_batches, torch.tensor([len(r) for r in given["responses"]]), ranks)
    own = layout.view(ranks, -1)[rank].tolist()
    place = {row: number for number, row in enumerate(layout.tolist())}

    def batch(rows: list[int], more: dict[str, Any], plain: dict[str, Any]) -> Any:
        prompts, responses = [given["prompts"][row] for row in rows], [given["responses"][row] for row in rows]
        tensors = {
            "prompts": nested(prompts),
            "responses": nested(responses),
            "input_ids": nested([p + r for p, r in zip(prompts, responses, strict=True)]),
            "position_ids": nested([list(range(len(p) + len(r))) for p, r in zip(prompts, responses, strict=True)]),
            "response_mask": nested([[1] * len(r) for r in responses]),
            "loss_mask": nested([[1] * len(r) for r in responses]),
            fields.ADVANTAGE: torch.tensor([given["advantages"][row] for row in rows]),
            fields.GROUP: torch.tensor([given["groups"][row] for row in rows]),
            fields.MINI_BATCH: ids[rows],
            fields.ROW: torch.tensor([place[row] for row in rows]),
            **more,
        }
        settings = {
            "temperature": run.training.temperature,
            "use_remove_padding": False,
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": cluster.tokens_per_device,
            "use_fused_kernels": False,
            fields.STEP: 1,
            fields.FIRST_METRICS: {},
            **plain,
        }
        return tensordict_utils.get_tensordict(tensors, settings)

    data = batch(own, {}, {"calculate_entropy": True})
    with engine.eval_mode():
        found = engine.infer_batch(data)["model_output"]
    old = response_from_nested(found["log_probs"], data["response_mask"]).unbind()
    weights = found["token_weights"].unbind() if "token_weights" in found else [torch.ones(len(row)) for row in old]
    weighted = {row: given["advantages"][row] * weight.float() for row, weight in zip(own, weights, strict=True)}
    log_probs = dict(zip(own, old, strict=True))
    share = len(own) // len(mini_batches)
    grad_norms, metrics = [], []
    for start in range(0, len(own), share):
        rows = own[start : start + share]
        more = {
            "old_log_probs": nested([log_probs[row] for row in rows]),
            "advantages": nested([weighted[row] for row in rows]),
        }
        mini_batch = batch(rows, more, {"global_batch_size": share * ranks, "calculate_entropy": False})
        with engine.train_mode():
            output = engine.train_batch(mini_batch, partial(ppo_loss, config=actor))
        grad_norms.append(float(output["metrics"]["grad_norm"]))
        metrics.append({name: value for name, value in output["metrics"].items() if name != "grad_norm"})
    state = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in engine.module.state_dict().items()
    }
    gathered: list[Any] = [None] * ranks
    mine = {row: [log_probs[row].tolist(), weight.tolist()] for row, weight in zip(own, weights, strict=True)}
    distributed.all_gather_object(gathered, mine)
    if rank == 0:
        whole = {row: values for part in gathered for row, values in part.items()}
        torch.save(
            {
                "log_probs": [whole[row][0] for row in sorted(whole)],
                "weights": [whole[row][1] for row in sorted(whole)],
                "grad_norms": grad_norms,
                "state": {name: value.float() for name, value in state.items()},
            },
            sys.argv[2],
        )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
