"""A model of transformers, of any architecture, as a policy that samples and is trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from evals.core.errors import UserError
from evals.generation.backend import Response
from evals.generation.checkpoint import Checkpoint
from evals.generation.gradients import computed_again
from evals.generation.sampler import Sampler
from evals.generation.transformers_backend import load_model, sample_by_model

_CHECKED_TOKENS = 8


def _computed_again(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Call a layer's ``forward``; for a gradient, so that it is called again then."""
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return computed_again(partial(forward, **named), *inputs)


class TransformersPolicy:
    """A model that samples and is trained as :class:`DecoderModel`; ``because`` says why the decoder is not used."""

    padded = True

    def __init__(self, model: PreTrainedModel, because: str = "") -> None:
        self.model, self.dtype = model, model.dtype
        self.backend = f"transformers: {because}" if because else "transformers"

    def compute_in(self, dtype: torch.dtype, gradient_checkpointing: bool) -> None:
        """Let passes compute products in ``dtype``, and compute layers again for the gradient.

        UserError if transformers does not know the model's layers.
        """
        self.dtype = dtype
        if not gradient_checkpointing:
            return
        layers = [module for module in self.model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            kind = self.model.config.model_type
            raise UserError(f"execution.gradient_checkpointing: is true, but {kind!r} cannot do it; accepted: false")
        for layer in layers:
            # transformers' own switch acts in training mode alone, which brings dropout, and takes the cache from
            # sampling too.
            layer.forward = partial(_computed_again, layer.forward)

    def precision(self) -> torch.autocast:
        """A context in which products are computed in the type of the passes."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != self.model.dtype)

    @property
    def head_dtype(self) -> torch.dtype:
        return self.dtype

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
            with self.precision():
                return sample_by_model(self.model, self.device, *given)

        return sample

    def states(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        tokens = pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True).to(self.device)
        columns = torch.arange(tokens.shape[1], device=self.device)[None]
        first = torch.tensor(starts, device=self.device)[:, None]
        end = torch.tensor([len(sequence) for sequence in sequences], device=self.device)[:, None]
        return self.hidden(tokens)[(columns >= first) & (columns < end)].to(self.dtype)

    def hidden(self, tokens: Tensor) -> Tensor:
        """The inputs of the head [B, T, D] at all tokens [B, T], which padding may follow."""
        # Padding stands on the right, where a causal model's real tokens cannot see it: no attention mask is needed.
        with self.precision():
            hidden: Tensor = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden

    def logits(self, states: Tensor, temperature: float) -> Tensor:
        with self.precision():
            logits: Tensor = self.model.get_output_embeddings()(states)
        return logits.float() / temperature


def untrained(checkpoint: Checkpoint) -> PreTrainedModel:
    """The model of a checkpoint with weights of its shapes in float32, which are not read."""
    config = AutoConfig.from_pretrained(checkpoint.directory, trust_remote_code=False, local_files_only=True)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return model


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
