"""One token of every running sample from two models' logits, and the criteria that decide which are drawn again.

Beyond Magnitude (RLVR-Directions, arXiv 2603.22117), section on selective token replacement. Everything is computed
over the whole vocabulary and from the models' own distributions, before temperature and top-p; the authors' script has
the 50 most likely tokens of each model, renormalised. Its ``js`` is the mean of both divergences, which is called
``jeffreys`` here; ``js`` is the divergence that bears that name.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evals.core.sampling import SamplingParameters
from evals.generation.sampler import draw_tokens, uniform_streams
from rlvr_claims.decoding.settings import Decoding
from rlvr_claims.settings import Criterion

Observer = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Called at every step with base logits, trained logits [P, V], and history and token [R] that the driver drew."""

_BLOCK_ELEMENTS = 2**24
"""Logits of one model that are worked on at a time: 64 MiB in float32, and a few times that for what follows."""


class PairDraw:
    """The rule (:class:`evals.generation.backend.Draw`) of one batch of samples of a base and a trained model.

    A sample has up to three streams of uniform numbers, all functions of its identity:

    - its own, the one that either model alone would use. Where the history alone decides, a token that fires is drawn
      again with the same number: it has not been used up, and with everything replaced the sample is, token for token,
      the other model's.
    - ``/again``, for tokens that fire because of what they are: their own number has decided that they fire, so that
      using it again would favour some tokens.
    - ``/random``, which the criterion of that name compares with tau.
    """

    def __init__(
        self,
        decoding: Decoding,
        sampling: SamplingParameters,
        identities: Sequence[str],
        length: int,
        device: torch.device,
        observer: Observer | None = None,
    ) -> None:
        def stream(purpose: str) -> Tensor:
            return uniform_streams([f"{name}{purpose}" for name in identities], length, device)

        self._decoding, self._sampling, self._observer = decoding, sampling, observer
        self._own = stream("")
        self._again = stream("/again") if decoding.criterion == "log_prob_difference" else self._own
        self._random = stream("/random") if decoding.criterion == "random" else None
        self.replaced = torch.zeros(len(identities), dtype=torch.long, device=device)
        """Tokens drawn again so far, [B]: those that fired, also where the second draw gave the same token."""

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        """Draw tokens [R]; ``logits`` are the base model's and the trained one's."""
        base, trained = logits
        driver, assistant = (base, trained) if self._decoding.driver == "base" else (trained, base)
        drawn = draw_tokens(driver[row_of], self._own[running, step], self._sampling)
        if self._observer is not None:
            self._observer(base, trained, row_of, drawn)
        if self._decoding.is_driver_alone:
            return drawn
        if self._random is not None:
            values = self._random[running, step]
        else:
            values = criterion_values(self._decoding.criterion, base, trained, driver, row_of, drawn)
        again = self._decoding.fires(values).nonzero()[:, 0]
        if len(again):
            rows, samples = row_of[again], running[again]
            # Each model's normaliser is a constant of its row, which a softmax takes out again: logits serve as
            # log-probabilities do, and a weight of one beside a weight of zero leaves that model's logits as they are.
            of_driver, of_assistant = self._decoding.weights
            mixture = of_driver * driver[rows].float() + of_assistant * assistant[rows].float()
            drawn[again] = draw_tokens(mixture, self._again[samples, step], self._sampling)
            self.replaced[samples] += 1
        return drawn


def criterion_values(
    criterion: Criterion, base: Tensor, trained: Tensor, driver: Tensor, row_of: Tensor, tokens: Tensor
) -> Tensor:
    """A criterion other than random, in nats, for every token [R] that the driver drew.

    ``base`` and ``trained`` are logits [P, V], ``driver`` is one of the two, ``row_of`` [R] each token's history.
    """
    if criterion == "log_prob_difference":
        return log_prob_differences(base, trained, row_of, tokens)
    return history_values(criterion, base, trained, driver)[row_of]


def history_values(criterion: Criterion, base: Tensor, trained: Tensor, driver: Tensor) -> Tensor:
    """A criterion that looks at the history alone, in nats, [P]; arguments as for :func:`criterion_values`."""
    if criterion == "assistant_entropy":
        return history_values("entropy", base, trained, base if driver is trained else trained)
    rows = max(1, _BLOCK_ELEMENTS // base.shape[-1])
    blocks = zip(base.split(rows), trained.split(rows), driver.split(rows), strict=True)
    return torch.cat([_block_values(criterion, *block) for block in blocks])


def _block_values(criterion: Criterion, base: Tensor, trained: Tensor, driver: Tensor) -> Tensor:
    if criterion == "entropy":
        log_probs = driver.float().log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)
    p, q = trained.float().log_softmax(-1), base.float().log_softmax(-1)
    match criterion:
        case "kl_trained_base":
            return kl_divergence(p, q)
        case "kl_base_trained":
            return kl_divergence(q, p)
        case "jeffreys":
            return (kl_divergence(p, q) + kl_divergence(q, p)) / 2
        case "js":
            middle = torch.logaddexp(p, q) - math.log(2)
            return (kl_divergence(p, middle) + kl_divergence(q, middle)) / 2
        case _:
            raise ValueError(f"{criterion} is no criterion of the history alone")


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of log-probabilities [P, V]; never below zero, where rounding would put equal distributions."""
    return (p.exp() * (p - q)).sum(-1).clamp(min=0)


def log_prob_differences(base: Tensor, trained: Tensor, row_of: Tensor, tokens: Tensor) -> Tensor:
    """Log pi_trained - log pi_base of tokens [R], each drawn after the history ``row_of`` [R] of logits [P, V]."""

    def log_probs(logits: Tensor) -> Tensor:
        blocks = logits.split(max(1, _BLOCK_ELEMENTS // logits.shape[-1]))
        totals = torch.cat([block.float().logsumexp(-1) for block in blocks])
        return logits[row_of, tokens].float() - totals[row_of]

    return log_probs(trained) - log_probs(base)
