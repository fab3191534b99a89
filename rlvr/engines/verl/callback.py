"""What verl calls after it has saved a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from rlvr.engines.verl.checkpoints import record


class RecordShards(CheckpointCallback):
    """Writes the manifest of the state's files."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_unused: Any
    ) -> None:
        """Write it, after all ranks have written theirs."""
        record(Path(checkpoint_dir), global_step)
