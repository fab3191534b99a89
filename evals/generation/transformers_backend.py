"""Any ``AutoModelForCausalLM`` checkpoint as a backend: transformers' model, the project's loop and random numbers.

``generate`` of transformers draws all samples of a batch from one generator, so that each depends on its neighbours.
Here every sample has the stream that the local backend gives it; the two agree up to rounding in the logits.
"""

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers import __version__ as transformers_version

from evals.core.errors import InvalidInput, UserError, first_line
from evals.core.sampling import SamplingParameters
from evals.generation.backend import (
    TOKENS_BETWEEN_SIGNS,
    Backend,
    BackendSettings,
    Draw,
    Draws,
    Request,
    Response,
    in_order,
)
from evals.generation.checkpoint import Checkpoint, refuse_incomplete, say_left_over
from evals.generation.sampler import as_responses, in_batches, own_draws


class TransformersBackend(Backend):
    """See :class:`evals.generation.backend.Backend`."""

    def __init__(self, checkpoints: Sequence[Checkpoint], settings: BackendSettings) -> None:
        self._models = [load_model(checkpoint.directory, settings.dtype, settings.device) for checkpoint in checkpoints]
        self._end_tokens = torch.tensor(list(settings.end_tokens), device=settings.device)
        self._own = own_draws(settings.sampling, settings.stop, checkpoints[0].tokenizer, settings.end_tokens)

    def stream(self, requests: Iterable[Request], draws: Draws | None = None) -> Iterator[Mapping[int, Response]]:
        """Answer each request, all as one batch padded on the left."""
        requests = list(requests)
        longest = max(request.max_new_tokens for request in requests)
        identities = [request.identity for request in requests]
        draw = (draws or self._own)(identities, longest, self._end_tokens.device)
        yield from generate_in_step(self._models, requests, self._end_tokens, draw)


def load_model(directory: Path, dtype: str, device: str) -> Module:
    """Load a checkpoint's model for inference.

    UserError if transformers does not know the architecture, it keeps another state than keys and values, or the
    checkpoint is not whole: transformers itself would draw what is missing at random.
    """
    checkpoint = Checkpoint(directory)
    config = checkpoint.config
    if (kind := config.get("model_type")) not in CONFIG_MAPPING:
        code = " and its code is in the checkpoint (auto_map), which is never run" if "auto_map" in config else ""
        accepted = f"a model type that transformers {transformers_version} knows"
        raise InvalidInput(f"{directory}/config.json", "model_type", f"is {kind!r}{code}", accepted)
    safe = {"trust_remote_code": False, "use_safetensors": True, "local_files_only": True}
    checkpoint.shapes  # noqa: B018  (files that are not whole are refused)
    as_found = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    logger = logging.getLogger("transformers.modeling_utils")
    logger.disabled = True  # no table of weights that are missing or left over: it is said here, in a line
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype), **as_found, **safe)
    except Exception as error:  # whatever the library makes of files that anybody may have written
        why = "its weights cannot be converted" if "CONVERSION" in str(error) else first_line(error)
        raise UserError(f"{directory}: cannot be loaded by transformers ({why})") from error
    finally:
        logger.disabled = False
    model: Module = loaded[0]
    report: Mapping[str, Any] = loaded[1]
    others = {name: (shape, expected) for name, shape, expected in report["mismatched_keys"]}
    refuse_incomplete(directory, report["missing_keys"], others)
    if left_over := report["unexpected_keys"]:
        say_left_over(directory, left_over)
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        message = f"is {kind!r}, which keeps another state than keys and values"
        accepted = "an architecture whose forward pass takes past_key_values"
        raise InvalidInput(f"{directory}/config.json", "model_type", message, accepted)
    model.to(torch.device(device))
    return model.eval()


def sample_by_model(
    model: Module,
    device: torch.device,
    prompts: Sequence[Sequence[int]],
    identities: Sequence[Sequence[str]],
    parameters: SamplingParameters,
    end_tokens: Sequence[int],
    draws: Draws | None = None,
) -> list[list[Response]]:
    """Sample as :func:`evals.generation.sampler.sample` does, by a model of transformers on ``device``."""
    ends = torch.tensor(end_tokens, device=device)

    def answer(batch: Sequence[tuple[int, str]], draw: Draw) -> list[Response]:
        requests = [Request(tuple(prompts[row]), name, parameters.max_new_tokens) for row, name in batch]
        return in_order(generate_in_step([model], requests, ends, draw))

    return in_batches(identities, parameters, device, draws, answer)


@torch.inference_mode()
def generate_in_step(
    models: Sequence[Module], requests: Sequence[Request], end_tokens: Tensor, draw: Draw
) -> Iterator[Mapping[int, Response]]:
    """Answer each request in one batch padded on the left; to ``draw``, every sample is a history of its own.

    Several models, of one vocabulary and each with a cache of its own, read the same tokens, in step.
    """
    device = end_tokens.device
    limits = torch.tensor([request.max_new_tokens for request in requests], device=device)
    longest = int(limits.max())
    width = max(len(request.prompt) for request in requests)
    tokens = torch.zeros(len(requests), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, request in enumerate(requests):
        tokens[row, width - len(request.prompt) :] = torch.tensor(request.prompt)
        mask[row, width - len(request.prompt) :] = 1
    tokens, mask = tokens.to(device), mask.to(device)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    drawn = torch.zeros(len(requests), longest, dtype=torch.long, device=device)
    lengths = torch.zeros_like(limits)
    finished = torch.zeros(len(requests), dtype=torch.bool, device=device)
    caches: list[Any] = [None] * len(models)
    # Some models can compute the logits of the last token alone.
    can_leave_out = ("logits_to_keep" in inspect.signature(model.forward).parameters for model in models)
    last = [{"logits_to_keep": 1} if can else {} for can in can_leave_out]
    for step in range(longest):
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, "use_cache": True}
        outputs = [
            model(**inputs, past_key_values=cache, **one)
            for model, cache, one in zip(models, caches, last, strict=True)
        ]
        caches = [output.past_key_values for output in outputs]
        running = (~finished & (limits > step)).nonzero()[:, 0]
        new = draw([output.logits[:, -1] for output in outputs], running, running, step)
        drawn[running, step] = new
        lengths[running] += 1
        finished[running] = torch.isin(new, end_tokens)
        ended = running[finished[running] | (limits[running] == step + 1)]
        if step % TOKENS_BETWEEN_SIGNS == TOKENS_BETWEEN_SIGNS - 1:
            yield {}
        if len(ended):
            responses = as_responses(drawn[ended], lengths[ended], finished[ended], draw, ended)
            yield dict(zip(ended.tolist(), responses, strict=True))
        if not bool((~finished & (limits > step + 1)).any()):
            break
        tokens, positions = drawn[:, step : step + 1], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(requests), 1)], dim=1)
