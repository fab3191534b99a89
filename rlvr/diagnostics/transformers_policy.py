"""A model of transformers, of any architecture, as a policy whose tokens can be scored."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel


class TransformersPolicy:
    """See :class:`rlvr.engines.local.policy.Policy`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def head_weight(self) -> Tensor:
        weight: Tensor = self._model.get_output_embeddings().weight
        return weight

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self._model.named_parameters())

    def parameters(self) -> Iterator[Tensor]:
        return iter(self._model.parameters())

    def decoder(self) -> PreTrainedModel:
        return self._model

    def states(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        tokens = pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True).to(self.device)
        columns = torch.arange(tokens.shape[1], device=self.device)[None]
        first = torch.tensor(starts, device=self.device)[:, None]
        end = torch.tensor([len(sequence) for sequence in sequences], device=self.device)[:, None]
        # Padding stands on the right, where a causal model's real tokens cannot see it: no attention mask is needed.
        hidden: Tensor = self._model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden[(columns >= first) & (columns < end)]

    def logits(self, states: Tensor, temperature: float) -> Tensor:
        logits: Tensor = self._model.get_output_embeddings()(states).float()
        return logits / temperature
