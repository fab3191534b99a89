"""The hidden states of a rollout batch, kept from the old-log-prob pass for the token weights.

They stay in the model's precision. Up to a budget they are in memory, beyond it in a file that is mapped into memory
and has no name any more, so that nothing is left of it however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from evals.core.errors import UserError


class HiddenStateStore:
    """[N, D], filled from the top."""

    def __init__(self, tokens: int, width: int, dtype: torch.dtype, budget_bytes: int, directory: Path) -> None:
        """Make room for ``tokens`` rows.

        Args:
            tokens: N.
            width: D.
            dtype: type of the rows.
            budget_bytes: largest store that is kept in memory.
            directory: where a larger one is mapped from.

        Raises:
            UserError: the file cannot be made as large as it has to be.
        """
        self.spilled = tokens * width * dtype.itemsize > budget_bytes
        self._filled = 0
        if not self.spilled:
            self._rows = torch.empty(tokens, width, dtype=dtype)
            return
        descriptor, name = tempfile.mkstemp(dir=directory, prefix="hidden_states.")
        try:
            os.posix_fallocate(descriptor, 0, tokens * width * dtype.itemsize)
            flat = torch.from_file(name, shared=True, size=tokens * width, dtype=dtype)
        except OSError as error:
            size = tokens * width * dtype.itemsize >> 20
            raise UserError(f"{directory}: no room for {size} MiB of hidden states ({error})") from error
        finally:
            os.close(descriptor)
            os.unlink(name)
        self._rows = flat.view(tokens, width)

    def append(self, rows: Tensor) -> None:
        """Keep the next rows [n, D]."""
        self._rows[self._filled : self._filled + len(rows)] = rows
        self._filled += len(rows)

    def rows(self) -> Tensor:
        """All rows [N, D].

        Raises:
            ValueError: fewer rows were kept than there is room for.
        """
        if self._filled != len(self._rows):
            raise ValueError(f"{self._filled} of {len(self._rows)} hidden states were kept")
        return self._rows
