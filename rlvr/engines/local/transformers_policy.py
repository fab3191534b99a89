"""A model of transformers, of any architecture, as a policy that samples and is trained."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from evals.core.errors import UserError
from evals.generation.backend import Response
from evals.generation.checkpoint import Checkpoint
from evals.generation.sampler import Sampler
from evals.generation.transformers_backend import load_model, sample_by_model

_CHECKED_TOKENS = 8


class TransformersPolicy:
    """See :class:`rlvr.engines.local.policy.Policy`; ``because`` says why the batched decoder is not used."""

    def __init__(self, model: PreTrainedModel, because: str = "") -> None:
        self.model, self.dtype = model, model.dtype
        self.backend = f"transformers: {because}" if because else "transformers"

    def compute_in(self, dtype: torch.dtype, gradient_checkpointing: bool) -> None:
        """Let passes compute products in ``dtype``, and compute layers again for the gradient."""
        self.dtype = dtype
        if gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
            for module in self.model.modules():
                if isinstance(module, GradientCheckpointingLayer):
                    module.training = True  # it computes again in training alone; what is in it keeps off dropout

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != self.model.dtype)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def head_weight(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad)

    def parameters(self) -> Iterator[Tensor]:
        return (weight for _, weight in self.named_parameters())

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self.model.named_parameters())

    def sampler(self) -> Sampler:
        def sample(*given: Any) -> list[list[Response]]:
            with self._precision():
                return sample_by_model(self.model, self.device, *given)

        return sample

    def states(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        tokens = pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True).to(self.device)
        columns = torch.arange(tokens.shape[1], device=self.device)[None]
        first = torch.tensor(starts, device=self.device)[:, None]
        end = torch.tensor([len(sequence) for sequence in sequences], device=self.device)[:, None]
        # Padding stands on the right, where a causal model's real tokens cannot see it: no attention mask is needed.
        with self._precision():
            hidden: Tensor = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden[(columns >= first) & (columns < end)].to(self.dtype)

    def logits(self, states: Tensor, temperature: float) -> Tensor:
        with self._precision():
            logits: Tensor = self.model.get_output_embeddings()(states)
        return logits.float() / temperature


def load(checkpoint: Checkpoint, dtype: str, device: str, because: str = "") -> TransformersPolicy:
    """Load a checkpoint by transformers; code that came with it is never run.

    UserError if transformers cannot load it, or its logits are not its head's output for the hidden states.
    """
    model = cast("PreTrainedModel", load_model(checkpoint.directory, dtype, device))
    # Some architectures scale or cap the head's output, which hidden states and the head alone would not show.
    start = torch.arange(_CHECKED_TOKENS, device=device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        whole = model(input_ids=start, use_cache=False).logits
        alone = model.get_output_embeddings()(model.base_model(input_ids=start, use_cache=False).last_hidden_state)
    if whole.shape != alone.shape or not torch.allclose(whole.float(), alone.float(), rtol=1e-2, atol=1e-2):
        raise UserError(
            f"{checkpoint.directory}: its logits are not those of its language-model head alone (they are scaled or "
            "capped); accepted: architectures whose logits are the head's, as Qwen, Llama and Mistral"
        )
    return TransformersPolicy(model, because)
