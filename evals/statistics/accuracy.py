"""Estimates from repeated samples: avg@k, pass@k, maj@k and G-Pass@k, and the standard errors of avg@k.

``correct_counts`` are the correct samples of each problem [..., N], integers in 0..``samples``.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def check_counts(correct_counts: npt.ArrayLike, samples: int) -> IntArray:
    """Return the counts of correct samples as an integer array [..., N]; a ValueError says what is wrong with them."""
    counts = np.asarray(correct_counts)
    if samples < 1:
        raise ValueError(f"samples per problem must be at least 1, got {samples}")
    if counts.ndim == 0 or counts.shape[-1] == 0:
        raise ValueError("there are no problems")
    if not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"correct counts must be integers, got {counts.dtype}")
    if counts.min() < 0 or counts.max() > samples:
        raise ValueError(f"correct counts must lie in 0..{samples}, got {counts.min()}..{counts.max()}")
    return counts.astype(np.int64)


def average_at_k(correct_counts: npt.ArrayLike, samples: int) -> FloatArray:
    """avg@k [...], the mean over problems of the fraction of correct samples.

    It is the unbiased estimate of the probability that one sample of a problem of this kind is correct.
    """
    return np.asarray((check_counts(correct_counts, samples) / samples).mean(axis=-1))


def pass_at_k(correct_counts: npt.ArrayLike, samples: int, k: int) -> FloatArray:
    """pass@k without bias [...]: the chance that k samples drawn without replacement hold a correct one.

    ``1 - C(n - c, k) / C(n, k)`` per problem (Chen et al. 2021, arXiv 2107.03374, equation 1), averaged over problems.
    For k near n the estimate rests on few distinct draws and varies a lot; take n of at least 2k.
    """
    return g_pass_at_k(correct_counts, samples, k, threshold=1.0 / k if k else 0.0)


def g_pass_at_k(correct_counts: npt.ArrayLike, samples: int, k: int, threshold: float) -> FloatArray:
    """G-Pass@k [...]: the chance that at least ``ceil(threshold * k)`` of k drawn samples are correct.

    The tail of a hypergeometric distribution per problem (Liu et al. 2024, arXiv 2412.13147, equation 4), averaged over
    problems. A threshold of 1/k gives pass@k, a threshold of 1 the chance that all k are correct.
    """
    counts = check_counts(correct_counts, samples)
    if not 1 <= k <= samples:
        raise ValueError(f"k must lie in 1..{samples}, got {k}")
    if not 0.0 < threshold <= 1.0:
        raise ValueError(f"threshold must lie in (0, 1], got {threshold}")
    # Rounding before ceil keeps thresholds such as 0.3 * 10 = 3.0000000000000004 from asking for one success more.
    needed = math.ceil(round(threshold * k, 9))
    return np.asarray(_hypergeometric_tail(samples, k, needed)[counts].mean(axis=-1))


def _hypergeometric_tail(samples: int, k: int, needed: int) -> FloatArray:
    """The chance [samples + 1], by how many samples are correct, that ``needed`` or more of ``k`` drawn ones are.

    scipy.stats.hypergeom has it too, but takes longer to import than most jobs to run.
    """

    def log_choose(total: IntArray, chosen: IntArray) -> FloatArray:
        # Infinite at 0 and below, so what cannot be chosen has a chance of 0.
        return np.asarray(gammaln(total + 1) - gammaln(chosen + 1) - gammaln(total - chosen + 1))

    correct = np.arange(samples + 1)[:, None]
    # The sum of fewer terms: either the drawn counts that suffice, or those that do not.
    suffices = needed > k // 2
    drawn = np.arange(needed, k + 1) if suffices else np.arange(needed)
    logs = log_choose(correct, drawn) + log_choose(samples - correct, k - drawn)
    chance = np.exp(logs - log_choose(np.array(samples), np.array(k))).sum(axis=-1)
    return np.asarray(np.clip(chance if suffices else 1.0 - chance, 0.0, 1.0))


def majority_at_k(
    answers: Sequence[Sequence[str | None]], correct: Sequence[Sequence[bool]], k: int | None = None
) -> float:
    """maj@k: the expected accuracy of the most frequent answer among k samples of each problem.

    The expectation is over all choices of k of the problem's samples, computed exactly; with k left out all samples
    vote. Samples vote by the spelling of their answer; one that got both verdicts is worth their mean. A sample without
    an answer (None) does not vote; a vote in which nobody takes part counts as wrong. Ties are settled by expectation:
    answers that share the first place each win with the same probability. Spellings are not merged by meaning, neither
    among right answers nor among wrong ones: merging only the right ones, which the grader could tell us, would favour
    them.
    """
    if not answers:
        raise ValueError("there are no problems")
    values = [_majority_value(votes, verdicts, k) for votes, verdicts in zip(answers, correct, strict=True)]
    return float(np.mean(values))


def _majority_value(votes: Sequence[str | None], verdicts: Sequence[bool], k: int | None) -> float:
    k = len(votes) if k is None else k
    if not 1 <= k <= len(votes):
        raise ValueError(f"k must lie in 1..{len(votes)}, got {k}")
    tally: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for vote, verdict in zip(votes, verdicts, strict=True):
        if vote is not None:
            tally[vote] += 1
            right[vote] += bool(verdict)
    silent = len(votes) - tally.total()
    value = 0.0
    for answer, count in tally.items():
        if right[answer]:
            rivals = tuple(sorted(other for name, other in tally.items() if name != answer))
            value += right[answer] / count * _winning_share(count, rivals, silent, k)
    return value / math.comb(len(votes), k)


@lru_cache(maxsize=100_000)  # easy and hopeless problems have few different tallies
def _winning_share(count: int, rivals: tuple[int, ...], silent: int, k: int) -> float:
    """Choices of k samples won by an answer that ``count`` samples give; a first place shared by t counts 1 / t.

    Choices are counted by generating functions: the coefficient of x^d counts those of d samples, and ``ways[t]`` those
    of the rivals that can draw level, of which t do and none is ahead. A polynomial is one whole number, its value at
    x = 2^bits, for no coefficient has more than ``bits`` bits; that is exact, and multiplies fast.
    """
    bits = count + sum(rivals) + silent + 1
    total = 0.0
    behind = [0] * len(rivals)  # of each rival, the choices of fewer samples than the answer has
    for votes in range(1, min(count, k) + 1):
        others = k - votes
        kept = (1 << bits * (others + 1)) - 1  # the powers of x up to x^others
        ways, free = [1], silent  # samples that are free to be chosen, for what they say is never ahead
        for number, rival in enumerate(rivals):
            if rival < votes:
                free += rival
                continue
            behind[number] += math.comb(rival, votes - 1) << bits * (votes - 1)
            level = math.comb(rival, votes) << bits * votes
            steps = zip([*ways, 0], [0, *ways], strict=True)
            ways = [one * behind[number] + other * level & kept for one, other in steps]
        any_of_free = (1 + (1 << bits)) ** free & kept
        for tied, polynomial in enumerate(ways):
            chosen = (polynomial * any_of_free & kept) >> bits * others
            total += math.comb(count, votes) * chosen / (tied + 1)
    return total


def clustered_standard_error(accuracies: npt.ArrayLike) -> FloatArray:
    """The standard error of avg@k for other problems [...], from per-problem accuracies [..., N], the clusters.

    ``sqrt(sum (p_i - p)^2 / (N (N - 1)))``: problems were drawn from a population of problems, and the samples of one
    problem are no independent evidence about that population (Miller 2024, arXiv 2411.00640, section 2.2). Sampling
    noise is already inside, for it widens the spread of the p_i.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    if values.shape[-1] < 2:
        raise ValueError("a standard error over problems needs at least two problems")
    return np.asarray(values.std(axis=-1, ddof=1) / np.sqrt(values.shape[-1]))


def sampling_standard_error(correct_counts: npt.ArrayLike, samples: int) -> FloatArray:
    """The standard error of avg@k for other samples of the same problems [...].

    ``sqrt(sum p_i (1 - p_i) / (k - 1)) / N``. It says how well k samples pin down this benchmark's score, not how well
    the benchmark pins down the model.
    """
    counts = check_counts(correct_counts, samples)
    if samples < 2:
        raise ValueError("the sampling standard error needs at least two samples per problem")
    accuracies = counts / samples
    variance = (accuracies * (1.0 - accuracies)).sum(axis=-1) / (samples - 1)
    return np.asarray(np.sqrt(variance) / counts.shape[-1])
