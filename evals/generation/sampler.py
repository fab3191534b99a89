"""Batched sampling in which every sample has its own random numbers, and no history is computed twice.

Samples of one prompt that have drawn the same tokens so far share a row of the batch, which splits once they draw
different ones: exactly what each would have drawn alone, for the price of the distinct histories. A row whose samples
have all ended leaves the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from evals.core.errors import UserError
from evals.core.sampling import SamplingParameters
from evals.generation.backend import Draw, Draws, Response
from evals.generation.decoder import Decoder, KeyValueCache

_KEPT_SHARE = 0.8
"""Share of running rows below which those that have ended leave the batch."""

_CANDIDATES = 1024
"""Tokens among which a nucleus is looked for before the whole vocabulary is sorted."""

Sampler = Callable[
    [Sequence[Sequence[int]], Sequence[Sequence[str]], SamplingParameters, Sequence[int], Draws], list[list[Response]]
]
"""A model that samples as :func:`sample` does."""


def uniform_stream(identity: str, count: int) -> np.ndarray:
    """The ``count`` uniform numbers in [0, 1) that belong to ``identity``: independent of every other identity."""
    key = int.from_bytes(hashlib.sha256(identity.encode("utf-8")).digest()[:16], "big")
    return np.random.Generator(np.random.Philox(key=key)).random(count, dtype=np.float32)


def uniform_streams(identities: Sequence[str], count: int, device: torch.device) -> Tensor:
    """The uniform numbers of several identities, [B, count]."""
    return torch.from_numpy(np.stack([uniform_stream(name, count) for name in identities])).to(device)


class OwnDraw:
    """Draws from the first model, every sample with its own random numbers."""

    replaced = None

    def __init__(
        self, sampling: SamplingParameters, identities: Sequence[str], length: int, device: torch.device
    ) -> None:
        self._sampling = sampling
        self._uniforms = uniform_streams(identities, length, device)

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        return draw_tokens(logits[0][row_of], self._uniforms[running, step], self._sampling)


class StoppingDraw:
    """Draws by another rule, and ends a sample once its text has a stop string: its next token is the end token."""

    def __init__(
        self, draw: Draw, identities: Sequence[str], stop: Sequence[str], tokenizer: Tokenizer, end_token: int
    ) -> None:
        self._draw, self._stop, self._tokenizer, self._end_token = draw, stop, tokenizer, end_token
        self._last: list[list[int]] = [[] for _ in identities]
        self._window = 1 + max(len(text.encode("utf-8")) for text in stop)  # a token is a byte or more

    @property
    def replaced(self) -> Tensor | None:
        return self._draw.replaced

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        drawn = self._draw(logits, row_of, running, step)
        for row, (sample, token) in enumerate(zip(running.tolist(), drawn.tolist(), strict=True)):
            last = self._last[sample]
            text = self._tokenizer.decode(last, skip_special_tokens=True)
            if any(stop in text for stop in self._stop):
                drawn[row] = self._end_token
            self._last[sample] = [*last, token][-self._window :]
        return drawn


def own_draws(
    sampling: SamplingParameters, stop: Sequence[str], tokenizer: Tokenizer, end_tokens: Sequence[int]
) -> Draws:
    """The rule of one model: its own distribution, until an end token or a stop string."""

    def make(identities: Sequence[str], length: int, device: torch.device) -> Draw:
        draw = OwnDraw(sampling, identities, length, device)
        return StoppingDraw(draw, identities, stop, tokenizer, end_tokens[0]) if stop else draw

    return make


def sample(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    identities: Sequence[Sequence[str]],
    parameters: SamplingParameters,
    end_tokens: Sequence[int],
    draws: Draws | None = None,
) -> list[list[Response]]:
    """Sample several responses to every prompt, in the order of ``identities``.

    These are, for every prompt, one name per sample wanted; the name alone determines the sample's random numbers.
    ``draws`` makes the rule that tokens are drawn by; None draws them as :class:`OwnDraw`.
    """
    longest = max(map(len, prompts)) + parameters.max_new_tokens
    if longest > decoder.config.context_length:
        raise UserError(
            f"max_new_tokens: is {parameters.max_new_tokens}, with the longest prompt {longest} tokens in all; "
            f"accepted: at most the model's context of {decoder.config.context_length}"
        )

    def answer(batch: Sequence[tuple[int, str]], draw: Draw) -> list[Response]:
        rows = [row for row, _ in batch]
        return decode_in_step([decoder], prompts, rows, parameters.max_new_tokens, end_tokens, draw)

    return in_batches(identities, parameters, decoder.device, draws, answer)


def in_batches(
    identities: Sequence[Sequence[str]],
    parameters: SamplingParameters,
    device: torch.device,
    draws: Draws | None,
    answer: Callable[[Sequence[tuple[int, str]], Draw], list[Response]],
) -> list[list[Response]]:
    """Answer every identity of every prompt; ``answer`` is given batches of (prompt's number, identity) and a rule."""
    jobs = [(row, name) for row, names in enumerate(identities) for name in names]
    responses: list[Response] = []
    for start in range(0, len(jobs), parameters.sampling_batch_size):
        batch = jobs[start : start + parameters.sampling_batch_size]
        names = [name for _, name in batch]
        draw = (draws or partial(OwnDraw, parameters))(names, parameters.max_new_tokens, device)
        responses += answer(batch, draw)
    in_order = iter(responses)
    return [[next(in_order) for _ in names] for names in identities]


@torch.inference_mode()
def decode_in_step(
    decoders: Sequence[Decoder],
    prompts: Sequence[Sequence[int]],
    rows: Sequence[int],
    limit: int,
    end_tokens: Sequence[int],
    draw: Draw,
) -> list[Response]:
    """Decode samples of ``prompts[row]`` for every entry of ``rows``, of at most ``limit`` tokens.

    Several models, of one vocabulary and each with a cache of its own, read the same tokens, in step.
    """
    device = decoders[0].device
    read = [_read_prompts(decoder, prompts, rows, limit) for decoder in decoders]
    logits, caches = [logits for logits, *_ in read], [cache for _, cache, *_ in read]
    _, _, bias, positions, row_of = read[0]
    end_token, ends = end_tokens[0], torch.tensor(end_tokens, device=device)
    tokens = torch.full((len(rows), limit), end_token, device=device)
    running = torch.arange(len(rows), device=device)  # samples that have not ended; row_of names the batch row of each
    for step in range(limit):
        drawn = draw(logits, row_of, running, step)
        tokens[running, step] = drawn
        alive = ~torch.isin(drawn, ends)
        if step + 1 == limit or not bool(alive.any()):
            break
        running = running[alive]
        vocabulary = logits[0].shape[-1]
        histories, row_of = torch.unique(row_of[alive] * vocabulary + drawn[alive], return_inverse=True)
        parents = histories // vocabulary
        new = histories % vocabulary
        if bool((parents[1:] != parents[:-1]).all()) and len(parents) > len(positions) * _KEPT_SHARE:
            # No row has split, and few have ended: they stay a while, as moving the others costs more than they do.
            new, row_of = torch.full_like(positions, end_token).index_copy_(0, parents, new), parents[row_of]
        else:
            caches, positions = [cache.select(parents) for cache in caches], positions[parents]
            bias = None if bias is None else bias[parents]
        visible = None if bias is None else bias[:, :, :, : caches[0].length + 1]
        places = positions[:, None] + step
        logits = [
            decoder.forward(new[:, None], places, visible, cache)
            for decoder, cache in zip(decoders, caches, strict=True)
        ]
    ended = torch.isin(tokens, ends)
    finished = ended.any(dim=1)
    # Everything after the first end token is end tokens too: rows are filled with them from the start.
    lengths = torch.where(finished, ended.int().argmax(dim=1) + 1, limit)
    return as_responses(tokens, lengths, finished, draw, torch.arange(len(rows), device=device))


def as_responses(tokens: Tensor, lengths: Tensor, finished: Tensor, draw: Draw, places: Tensor) -> list[Response]:
    """Responses of a batch, from tokens [R, T], lengths [R], whether they ended [R], and their places in it [R]."""
    replaced = [None] * len(tokens) if draw.replaced is None else draw.replaced[places].tolist()
    rows = zip(tokens.tolist(), lengths.tolist(), finished.tolist(), replaced, strict=True)
    return [Response(row[:length], end, again) for row, length, end, again in rows]


def _read_prompts(
    decoder: Decoder, prompts: Sequence[Sequence[int]], rows: Sequence[int], new_tokens: int
) -> tuple[Tensor, KeyValueCache, Tensor | None, Tensor, Tensor]:
    """Run every different prompt once.

    Returns:
        logits [P, V] after each different prompt; a cache with room for ``new_tokens`` more; the attention bias
        [P, 1, 1, L] of one new token over prompt and response, None if no prompt is padded; the position [P] of the
        first response token; and for every entry of ``rows`` the place of its prompt, [B].
    """
    distinct = sorted(set(rows))
    device = decoder.device
    lengths = torch.tensor([len(prompts[row]) for row in distinct], device=device)
    width = int(lengths.max())
    tokens = torch.zeros(len(distinct), width, dtype=torch.long, device=device)
    for index, row in enumerate(distinct):  # padded on the left, so that all responses start in the same column
        tokens[index, width - len(prompts[row]) :] = torch.tensor(prompts[row], device=device)
    columns = torch.arange(width, device=device)
    real = columns >= width - lengths[:, None]
    positions = (columns - (width - lengths[:, None])).clamp(min=0)
    causal = columns[None, :] <= columns[:, None]
    # A padding row may look at itself: a softmax over nothing would be NaN, and nobody reads that row.
    allowed = (causal & real[:, None, :]) | torch.eye(width, dtype=torch.bool, device=device)
    cache = decoder.new_cache(len(distinct), width + new_tokens)
    logits = decoder.forward(tokens, positions, _as_bias(allowed)[:, None], cache)
    index_of = {row: index for index, row in enumerate(distinct)}
    row_of = torch.tensor([index_of[row] for row in rows], device=device)
    seen = torch.cat([real, real.new_ones(len(distinct), new_tokens)], dim=1)
    bias = None if bool(real.all()) else _as_bias(seen)[:, None, None]
    return logits, cache, bias, lengths, row_of


def _as_bias(allowed: Tensor) -> Tensor:
    """0 where attention is allowed, -inf where not."""
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, float("-inf"))


def draw_tokens(logits: Tensor, uniforms: Tensor, parameters: SamplingParameters) -> Tensor:
    """Draw one token a row, [B], by inverting the cumulative distribution at the row's uniform number.

    After the temperature min-p, top-k and top-p keep tokens, in vLLM's order, each of those that the one before kept.
    """
    if parameters.temperature == 0:
        drawn = logits.argmax(dim=-1)
        _require_numbers(logits.gather(-1, drawn[:, None]))  # NaN is the largest
        return drawn
    probabilities = torch.softmax(logits.float() / parameters.temperature, dim=-1)
    _require_numbers(probabilities[:, 0])  # a softmax is NaN as a whole
    probabilities, order = kept_tokens(probabilities, parameters)
    cumulative = probabilities.cumsum(dim=-1)
    # Scaled by the row's own total, so that rounding in the sum can never select a token of probability zero.
    threshold = uniforms[:, None] * cumulative[:, -1:]
    drawn = (cumulative <= threshold).sum(dim=-1).clamp(max=cumulative.shape[-1] - 1)
    return drawn if order is None else order.gather(-1, drawn[:, None])[:, 0]


def kept_tokens(probabilities: Tensor, parameters: SamplingParameters) -> tuple[Tensor, Tensor | None]:
    """The ``probabilities`` [B, V] of the tokens that are kept, of others 0, not divided by their sum; and their order.

    Where that is not None, the columns are the tokens [B, C] that it has, as of :func:`_nucleus`.
    """
    order = None
    if parameters.min_p > 0:
        least = parameters.min_p * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    if 0 < parameters.top_k < probabilities.shape[-1]:
        least = probabilities.topk(parameters.top_k, dim=-1).values[:, -1:]
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    if parameters.top_p < 1:
        if parameters.min_p > 0 or parameters.top_k > 0:  # top-p is a share of what these leave
            probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        probabilities, order = _nucleus(probabilities, parameters.top_p)
    return probabilities, order


def _require_numbers(values: Tensor) -> None:
    if not bool(values.isfinite().all()):
        fault = "the model's logits are NaN or infinite: its weights are damaged, or its dtype is too narrow for it"
        raise UserError(f"{fault}; accepted: an intact checkpoint, or dtype float32")


def _nucleus(probabilities: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The most likely tokens of each row that reach ``share`` together, equal ones by id; the others are 0.

    Returns:
        probabilities, descending, and their tokens, both [B, V], or [B, C] where C tokens were enough for every row.
    """
    if probabilities.shape[-1] > _CANDIDATES:  # a small model takes less time than sorting a large vocabulary
        chosen = probabilities.topk(_CANDIDATES, dim=-1).indices.sort(dim=-1).values
        values, place = probabilities.gather(-1, chosen).sort(dim=-1, descending=True, stable=True)
        kept = values.cumsum(dim=-1) - values < share
        if not bool((kept & (values == values[:, -1:])).any()):  # the least one may have equals that are no candidates
            return values.masked_fill(~kept, 0.0), chosen.gather(-1, place)
    values, order = probabilities.sort(dim=-1, descending=True, stable=True)
    return values.masked_fill(values.cumsum(dim=-1) - values >= share, 0.0), order
