"""Compare a merged checkpoint with the shards that it was made of: ``python -m rlvr.engines.verl.merged ACTOR OUT``.

A process of verl's environment, whose torch wrote the shards and whose transformers has the trainer's model.
"""

import sys
from pathlib import Path


def first_difference(actor: Path, checkpoint: Path) -> str:
    """Say which parameter of a checkpoint has not the bits of its shards in ``actor``, in bfloat16; empty if all have.

    The shards stay on disk: in memory is the model in bfloat16.
    """
    import torch
    import torch.distributed.tensor  # shards are its tensors, which torch reads without unpickling
    from transformers import AutoModelForCausalLM

    files = sorted(actor.glob("model_world_size_*.pt"), key=lambda file: int(file.stem.rpartition("_")[2]))
    shards = [torch.load(file, map_location="cpu", weights_only=True, mmap=True) for file in files]
    # By the model and not by its file, which may name parameters otherwise and divide them otherwise.
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, local_files_only=True)
    with torch.no_grad():
        for name, merged in model.named_parameters():
            parts = [shard[name] for shard in shards if name in shard]
            rows = [part.to_local() if hasattr(part, "to_local") else part for part in parts]
            # Where groups of devices have the whole model each, the first group's shards are enough.
            if not rows or not torch.equal(torch.cat(rows)[: len(merged)].bfloat16(), merged.bfloat16()):
                return f"{checkpoint}: {name} is not that of the shards in {actor}"
    return ""


if __name__ == "__main__":
    if difference := first_difference(*map(Path, sys.argv[1:])):
        sys.exit(f"ValueError: {difference}")
