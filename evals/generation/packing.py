"""Sequences laid end to end without padding, for passes with gradients.

Shapes: B sequences, T the longest, N tokens that are computed, K of them whose outputs are read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from evals.generation.gradients import pick, spread


class Packing:
    """The places of the tokens: end to end for products and norms, [B, T] for attention.

    With ``share_prompts``, what several sequences begin with before their outputs are read is computed once, for in a
    causal model it is the same for all of them. Gradients of the copies add up, in another order than without it.
    """

    def __init__(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], device: torch.device, share_prompts: bool
    ) -> None:
        """Lay out ``sequences``; outputs are read from each one's start on."""
        self._shape = _, width = len(sequences), max(map(len, sequences))
        begun: dict[object, int] = {}  # a beginning -> the place of its first token
        tokens: list[int] = []
        positions: list[int] = []
        places: list[int] = []  # of a token's only or first copy in the grid
        sources: list[int] = []  # of each place in the grid; of padding, whose outputs nobody reads, any token
        read: list[int] = []
        for row, (sequence, start) in enumerate(zip(sequences, starts, strict=True)):
            key = tuple(sequence[: start + 1]) if share_prompts else row
            if key not in begun:
                begun[key] = len(tokens)
                tokens += sequence[: start + 1]
                positions += range(start + 1)
                places += range(row * width, row * width + start + 1)
            rest = len(tokens)
            tokens += sequence[start + 1 :]
            positions += range(start + 1, len(sequence))
            places += range(row * width + start + 1, row * width + len(sequence))
            sources += range(begun[key], begun[key] + start + 1)
            sources += [*range(rest, len(tokens)), *[0] * (width - len(sequence))]
            read += [begun[key] + start, *range(rest, len(tokens))]
        self.tokens, self.positions, self._places = (
            torch.tensor(values, device=device) for values in (tokens, positions, places)
        )
        kept, outputs = torch.unique(torch.tensor(read), return_inverse=True)
        self.kept = kept.to(device)  # places of the tokens whose outputs are read, [K]
        is_shared = len(begun) < len(sequences)
        self._sources = torch.tensor(sources, device=device) if is_shared else None
        self._outputs = outputs.to(device) if is_shared else None

    def padded(self, rows: Tensor) -> Tensor:
        """Values [N, ...] as [B, T, ...]."""
        if self._sources is None:
            copies = spread(rows, self._places, self._shape[0] * self._shape[1])
        else:
            copies = rows.index_select(0, self._sources)
        return copies.view(*self._shape, *rows.shape[1:])

    def packed(self, rows: Tensor) -> Tensor:
        """Values [B, T, ...] as [N, ...]."""
        return pick(rows.flatten(0, 1), self._places)

    def outputs(self, rows: Tensor) -> Tensor:
        """Values of the kept tokens [K, ...] for each sequence's positions from its start on, in order."""
        return rows if self._outputs is None else rows.index_select(0, self._outputs)
