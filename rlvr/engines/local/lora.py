"""LoRA (arXiv 2106.09685) by peft: weights stay as they are, and low-rank products that are added to them are trained.

An adapted weight is W + alpha / rank B A. At the beginning B is 0, so that a run starts from its base model. The
model that is sampled, saved and evaluated has the sums for weights; it is an ordinary one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evals.core.errors import InvalidInput, UserError
from evals.core.random import generator_for
from evals.core.training_settings import Lora
from evals.generation.checkpoint import Checkpoint
from evals.generation.decoder import Decoder
from evals.generation.decoder_model import DecoderModel
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.transformers_policy import TransformersPolicy, untrained

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

_ADAPTER = "default"
_ALL = "all-linear"


def adapted(policy: Policy, checkpoint: Checkpoint, lora: Lora, seed: int) -> Policy:
    """The policy of a checkpoint with adapters, which are then its parameters; ``seed`` draws their beginning.

    The weights that they are added to are kept in the type of the passes.
    """
    if isinstance(policy, DecoderModel):
        with torch.device("meta"):
            layers = inject(untrained(checkpoint), checkpoint, lora)
        draw(layers, seed, policy.device)
        return AdaptedDecoder(policy, layers)
    assert isinstance(policy, TransformersPolicy)
    layers = inject(policy.model, checkpoint, lora)
    for layer in layers.values():
        layer.get_base_layer().to(policy.dtype)
    draw(layers, seed, policy.device)
    return AdaptedTransformers(policy, layers)


def inject(model: PreTrainedModel, checkpoint: Checkpoint, lora: Lora) -> dict[str, LoraLayer]:
    """Put adapters without numbers into a model; returns them by the names of the weights that they are added to.

    UserError if peft is not installed, or a layer that they are asked for is not there.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer
    except ImportError:
        accepted = "accepted: that package (pip install peft==0.21.2), or no training.lora"
        raise UserError(f"training.lora: needs the package peft, which is not installed; {accepted}") from None
    head = model.get_output_embeddings()
    linear = {
        name.split(".")[-1]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    asked = lora.target_modules
    for name in () if asked == _ALL else asked:
        if name not in linear:
            accepted = f"{_ALL}, or some of {', '.join(sorted(linear))}"
            raise InvalidInput(str(checkpoint.directory), "training.lora.target_modules", f"has {name!r}", accepted)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=asked if asked == _ALL else list(asked))
    inject_adapter_in_model(config, model, _ADAPTER, low_cpu_mem_usage=True)
    return {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


@torch.no_grad()
def draw(layers: Mapping[str, LoraLayer], seed: int, device: torch.device) -> None:
    """Give adapters their first numbers: A is drawn as by peft, but from the run's seed alone, and B is 0."""
    for name, layer in layers.items():
        first, second = (linear[_ADAPTER].to_empty(device=device) for linear in (layer.lora_A, layer.lora_B))
        start, generator = torch.empty(first.weight.shape), generator_for("lora", seed, name)
        first.weight.copy_(nn.init.kaiming_uniform_(start, a=5**0.5, generator=generator))
        second.weight.zero_()


def _named_parameters(layers: Mapping[str, LoraLayer]) -> Iterator[tuple[str, Tensor]]:
    """A and B of every layer, under their names in an adapter's file."""
    for name, layer in layers.items():
        for kind in ("lora_A", "lora_B"):
            yield f"{name.removesuffix('weight')}{kind}.weight", getattr(layer, kind)[_ADAPTER].weight


class _Merged(Mapping[str, Tensor]):
    """Weights with what adapters add to them, computed when one is read: a whole model of them is never in memory."""

    def __init__(self, weights: Mapping[str, Tensor], layers: Mapping[str, LoraLayer]) -> None:
        self._weights, self._layers = weights, layers

    def __getitem__(self, name: str) -> Tensor:
        weight, layer = self._weights[name], self._layers.get(name)
        return weight if layer is None else weight.float() + layer.get_delta_weight(_ADAPTER)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class AdaptedDecoder(DecoderModel):
    """The batched decoder's model with adapters; rollouts and passes take the same sums."""

    def __init__(self, model: DecoderModel, layers: Mapping[str, LoraLayer]) -> None:
        """Take over the weights of ``model``, which is of no use after that."""
        super().__init__(model.config, {}, model.dtype, model.head_dtype, model._again, model._share_prompts)
        self._weights, self._layers = model._weights, layers
        head = self.head_weight
        for name, weight in self._weights.items():  # one by one, for the memory
            kept = self.head_dtype if weight is head else self.dtype
            self._weights[name] = weight.detach().to(kept if weight.dim() > 1 else weight.dtype)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """A and B of every adapted layer."""
        return _named_parameters(self._layers)

    def parameters(self) -> Iterator[Tensor]:
        return (weight for _, weight in self.named_parameters())

    def weights(self) -> Mapping[str, Tensor]:
        """The sums, under the names of a checkpoint; gradients pass to the adapters."""
        return _Merged(self._weights, self._layers)

    @torch.no_grad()
    def decoder(self) -> Decoder:
        """The sampler's decoder, of use until the adapters change."""
        return Decoder(self.config, self.weights(), self.dtype, self.head_dtype)


class AdaptedTransformers(TransformersPolicy):
    """A model of transformers with adapters in it; rollouts and passes compute them beside the layers."""

    def __init__(self, policy: TransformersPolicy, layers: Mapping[str, LoraLayer]) -> None:
        """Take over the model of ``policy``, which has the adapters ``layers``."""
        super().__init__(policy.model)
        self.dtype, self.backend, self.layers = policy.dtype, policy.backend, layers

    def weights(self) -> Mapping[str, Tensor]:
        """The sums, under the names of a checkpoint."""
        frozen = {
            name.replace(".base_layer.", "."): weight
            for name, weight in self.model.named_parameters()
            if not weight.requires_grad
        }
        return _Merged(frozen, self.layers)
