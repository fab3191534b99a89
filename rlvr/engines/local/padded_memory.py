"""The memory of a model of transformers while it samples and is trained, counted on tensors without numbers.

torch's fake tensors have shapes and a device, and take no memory. The model's own modules run on them, forward and
backward, and what is made and still there is added up.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evals.core.training_settings import Lora
from evals.generation.checkpoint import Checkpoint
from evals.generation.transformers_backend import append_to_cache
from rlvr.engines.local.memory_parts import DRAWN, OF_ROWS, Part
from rlvr.engines.local.policy import log_probs_after
from rlvr.engines.local.transformers_policy import TransformersPolicy, untrained

logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
"""torch logs a traceback of every operation that has no shape rule; the caller says so in a line."""


class Held(TorchDispatchMode):
    """Counts the bytes of the storages that are made in its context: those that are there ``now``, and the ``most``."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """Count everything but the storages of ``known``."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._there = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation, and count what is new in its result."""
        if function is torch.ops.aten._grouped_mm.default:
            result = _products_of_experts(*args)
        else:
            result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self._there:
                self._there.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.now)
        return result

    def _forget(self, place: int, size: int) -> None:
        self._there.discard(place)
        self.now -= size


def _products_of_experts(first: Tensor, second: Tensor, ends: Tensor) -> Tensor:
    """The shape of products of groups of rows, [N, K] with [E, K, M] or [K, N] with [N, M].

    torch knows it in bfloat16 alone.
    """
    of_weights = second.dim() == 2
    return first.new_empty((len(ends),) * of_weights + (first.shape[0], second.shape[-1]))


@dataclass(frozen=True)
class Sampling:
    """Bytes while responses are sampled, beside the weights."""

    copies: int  # of the weights, in the type of the passes
    key_values: int  # at the end of the longest responses
    rest: int  # the most beside these, in the pass over the prompts or in the last one, or drawing their tokens


@dataclass(frozen=True)
class Update:
    """Bytes of a pass with gradients, beside the weights and their gradients."""

    copies: int  # of the weights, in the type of the passes
    activations: int  # what the pass keeps
    rest: int  # the most beside these, on the way back: logits, and gradients before they reach the weights


class PaddedModel:
    """The policy of a checkpoint on tensors without numbers."""

    def __init__(self, checkpoint: Checkpoint, dtype: str, again: bool = False, lora: Lora | None = None) -> None:
        policy = _without_numbers(checkpoint, getattr(torch, dtype), again, lora)
        self._fake, self._policy, self._dtype = FakeTensorMode(), policy, dtype
        with self._fake:
            _place(policy.model)
            for weight in policy.parameters():
                weight.grad = torch.empty_like(weight)  # those of the passes before
        gradients = [weight.grad for weight in policy.parameters() if weight.grad is not None]
        self._known = [*policy.model.parameters(), *policy.model.buffers(), *gradients]

    @property
    def head(self) -> tuple[int, int]:
        """The vocabulary and the width of the hidden states."""
        vocabulary, width = self._policy.head_weight.shape
        return vocabulary, width

    @torch.no_grad()
    def sampling(self, rows: int, prompt: int, longest: int) -> Sampling:
        """Count what sampling so many rows holds: prompts of ``prompt`` tokens, ``longest`` with their responses."""

        def append(tokens: int, cache: Any = None, before: int = 0) -> Any:
            new, mask = torch.zeros(rows, tokens, dtype=torch.long), torch.ones(rows, before + tokens, dtype=torch.long)
            output = append_to_cache(self._policy.model, new, mask, new, cache)
            torch.empty(DRAWN - 1, *output.logits[:, -1].shape)  # what drawing holds beside the logits
            return output

        with self._fake, self._policy.precision(), Held(self._known) as held:
            append(prompt)
            copies, of_prompts = held.now, held.most
            cache = append(longest - 1).past_key_values
            held.most = held.now
            cache = append(1, cache, longest - 1).past_key_values
            key_values = held.now - copies
            return Sampling(copies, key_values, max(of_prompts, held.most) - copies - key_values)

    def of_sampling(self, rows: int, prompt: int, longest: int) -> list[Part]:
        """List what :meth:`sampling` counts."""
        sampling = self.sampling(rows, prompt, longest)
        return [
            Part(f"weights as sampling takes them, {self._dtype}", sampling.copies, "sampling"),
            Part("keys and values", sampling.key_values, "sampling", OF_ROWS),
            Part("passes over prompts and tokens, and drawing", sampling.rest, "sampling", OF_ROWS),
        ]

    def of_passes(self, lengths: Sequence[int], targets: int, what: str, settings: str) -> list[Part]:
        """List what :meth:`update` counts, over sequences of ``lengths``."""
        update = self.update(len(lengths), max(lengths), targets)
        return [
            Part(f"weights as passes take them, {self._dtype}", update.copies, "update"),
            Part(f"activations of {what}", update.activations, "update", settings),
            Part("logits, and gradients on their way", update.rest, "update", settings),
        ]

    def update(self, rows: int, longest: int, targets: int) -> Update:
        """Count what a pass over so many rows of ``longest`` tokens holds; ``targets`` tokens have logits."""
        copies, _ = self._update(1, 1, 1)
        kept, rest = self._update(rows, longest, targets)
        return Update(copies, kept - copies, rest)

    def _update(self, rows: int, longest: int, targets: int) -> tuple[int, int]:
        """Count what a pass keeps, copies of the weights included, and the most beside that on the way back."""
        with self._fake, Held(self._known) as held:
            hidden = self._policy.hidden(torch.zeros(rows, longest, dtype=torch.long))
            states = hidden.flatten(0, 1)[:targets].clone().to(self._policy.dtype)
            del hidden
            kept = held.now
            log_probs_after(self._policy, states, torch.zeros(targets, dtype=torch.long), 1.0).sum().backward()
            return kept, held.most - kept


def _without_numbers(checkpoint: Checkpoint, dtype: torch.dtype, again: bool, lora: Lora | None) -> TransformersPolicy:
    """The policy of a checkpoint, with adapters if there are some, on torch's device ``meta``.

    On fake tensors of a CPU peft cannot give a layer its type.
    """
    with torch.device("meta"):
        policy = TransformersPolicy(untrained(checkpoint))
        policy.compute_in(dtype, again)
        if lora is None:
            return policy
        from rlvr.engines.local.lora import with_empty_adapters

        return with_empty_adapters(policy, checkpoint, lora)


def _place(model: nn.Module) -> None:
    """Put tensors of the CPU, which a mode makes fake ones, in place of a model's on ``meta``; tied ones stay tied."""
    placed: dict[Tensor, Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        new = torch.empty(tensor.shape, dtype=tensor.dtype)
        placed[tensor] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            table.update({name: placed[tensor] for name, tensor in table.items() if tensor is not None})
