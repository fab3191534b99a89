"""One rank of verl's engine with a method's components, without Ray or vLLM, on recorded rollout batches.

``python verl_rank.py BATCH...`` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment. Rank 0 writes
``found.pt`` beside each batch: what all ranks found, in the order of the recorded batch.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from rlvr.engines.verl.launch import Places, launch
from rlvr.engines.verl.metrics import PREFIX

warnings.filterwarnings("ignore")
ATTENTION = "packed_on_cpu"
PACKED = {
    "actor_rollout_ref.model.use_remove_padding": True,
    "+actor_rollout_ref.model.override_config.attn_implementation": ATTENTION,
}
"""Options of verl by which sequences are packed and shared as on GPUs."""


def main() -> None:
    distributed.init_process_group("gloo", timeout=timedelta(seconds=300))
    for path in sys.argv[1:]:
        compute(Path(path))
    distributed.destroy_process_group()


def attend_on_cpu() -> None:
    """Put torch's attention in flash-attn's place, where verl has it shared; after verl has its platform."""
    import verl.models.transformers.monkey_patch as sharing
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations import flash_attention
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    sharing._flash_attention_forward = attend
    flash_attention._flash_attention_forward = attend  # type: ignore[attr-defined]
    AttentionInterface.register(ATTENTION, flash_attention.flash_attention_forward)
    AttentionMaskInterface.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])
    distributed.all_to_all = all_to_all


def attend(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *_arguments: Any, **named: Any
) -> Tensor:
    """Causal attention [1, T, H, D] over sequences in a row, each of which begins where its positions begin anew."""
    heads = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(heads, 2), value.repeat_interleave(heads, 2)
    length, positions = query.shape[1], named.get("position_ids")
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    if attention_mask is None and positions is not None:  # none when the log-probs of one sequence are probed
        sequence = (positions == 0).cumsum(-1)[0]
        allowed &= sequence[:, None] == sequence[None, :]
    attended = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=allowed,
        scale=named["softmax_scale"],
    )
    return attended.transpose(1, 2)


def all_to_all(outputs: list[Tensor], inputs: list[Tensor], group: Any = None, async_op: bool = False) -> None:
    """Exchange tensors, which gloo cannot do with lists."""
    gathered = [torch.empty((len(inputs), *inputs[0].shape), dtype=inputs[0].dtype) for _ in inputs]
    distributed.all_gather(gathered, torch.stack(list(inputs)), group=group)
    for output, from_rank in zip(outputs, gathered, strict=True):
        output.copy_(from_rank[distributed.get_rank(group)])


def compute(path: Path) -> None:
    """Old log-probs, token weights and all updates of one recorded batch."""
    from evals.core.run_spec import Cluster, VerlRun
    from rlvr.engines.verl.checks import compose_config
    from rlvr.engines.verl.gathering import rank_layout
    from rlvr.methods.assignments import mini_batch_ids

    given, directory = json.loads(path.read_text(encoding="utf-8")), path.parent
    run, cluster = VerlRun.read(directory / "run.json"), Cluster.read(directory / "cluster.json")
    repository = Path(__file__).parents[2]
    places = Places(run=directory, study=Path(given["study"]), repository=repository, state=directory / "state")
    started = launch(run, cluster, places)
    config = compose_config(replace(started, overrides={**started.overrides, **(PACKED if given["packed"] else {})}))
    if given["packed"]:
        attend_on_cpu()
    # Beside this script: verl installs a package ``tests`` of its own, which comes before ours.
    from engine_rank import EngineRank, RankBatch  # type: ignore[import-not-found]
    from verl.utils.metric import Metric

    one = EngineRank(run, cluster, config)
    rank, ranks = one.engine.get_data_parallel_rank(), one.engine.get_data_parallel_size()

    mini_batches = [torch.tensor(part) for part in given["mini_batches"]]
    layout = rank_layout(mini_batches, torch.tensor([len(r) for r in given["responses"]]), ranks)
    own = layout.view(ranks, -1)[rank]
    batch = RankBatch(
        [given["prompts"][row] for row in own],
        [given["responses"][row] for row in own],
        torch.tensor(given["advantages"])[own],
        torch.tensor(given["groups"])[own],
        mini_batch_ids(mini_batches, len(layout))[own],
        layout.argsort()[own],
        *([given[name][row] for row in own] for name in ("sampler", "reference", "counted")),
    )
    scores = one.score(batch)
    weighted = [advantage * weights for advantage, weights in zip(batch.advantages, scores.weights, strict=True)]
    share = len(own) // len(mini_batches)
    grad_norms, sliced, last = [], [], {}
    with one.engine.train_mode():
        for start in range(0, len(own), share):
            part = slice(start, start + share)
            metrics = one.update(batch.select(part), scores.log_probs[part], weighted[part])
            if one.engine.is_mp_src_rank_with_outputs():  # of ranks that share sequences, one has it
                grad_norms.append(float(metrics["grad_norm"]))
                last = {name: float(each.aggregate()) for name, each in metrics.items() if isinstance(each, Metric)}
            sliced.append(own[part].tolist())
    sent = save_and_load(one.engine, directory) if run.training.lora else {}
    state = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in one.engine.module.state_dict().items()
    }
    gathered: list[Any] = [None] * distributed.get_world_size()
    found = zip(scores.log_probs, scores.entropies, scores.weights, strict=True)
    mine = {
        row: [values.tolist() for values in of_rollout] for row, of_rollout in zip(own.tolist(), found, strict=True)
    }
    distributed.all_gather_object(gathered, (mine, sliced, last))
    gathered = gathered[:: cluster.sequence_parallel]  # ranks that share sequences find the same
    if distributed.get_rank() == 0:
        whole = {row: values for part, *_ in gathered for row, values in part.items()}
        metrics = [last for *_, last in gathered]
        torch.save(
            {
                "log_probs": [whole[row][0] for row in sorted(whole)],
                "entropies": [whole[row][1] for row in sorted(whole)],
                "weights": [whole[row][2] for row in sorted(whole)],
                "weight_metrics": scores.metrics,
                "grad_norms": grad_norms,
                "metrics": {
                    name.removeprefix(PREFIX): sum(of_rank[name] for of_rank in metrics) / len(metrics)
                    for name in metrics[0]
                },
                "mini_batches": [
                    sorted(row for of_rank in parts for row in of_rank)
                    for parts in zip(*(rows for _, rows, _ in gathered), strict=True)
                ],
                "sent": sent,
                "state": {name: value.float() for name, value in state.items()},
            },
            directory / "found.pt",
        )


def save_and_load(engine: Any, directory: Path) -> dict[str, Tensor]:
    """What vLLM would be sent; then the state is saved, what was trained is forgotten, and the state is loaded."""
    sent = dict(engine.get_per_tensor_param()[0])
    place = str(directory / "state" / "actor")
    engine.save_checkpoint(place)
    with torch.no_grad():
        for weights in engine.module.parameters():
            if weights.requires_grad:
                weights.zero_()
    engine.load_checkpoint(place)
    return sent


if __name__ == "__main__":
    main()
