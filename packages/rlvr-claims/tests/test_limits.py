"""Two models together, where it is known what has to come out."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from evals.core.errors import InvalidInput
from evals.core.sampling import SamplingParameters
from evals.generation.backend import Backend, BackendSettings, Request, Response, load_backend
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from rlvr_claims.decoding.draw import PairDraw
from rlvr_claims.decoding.settings import DRIVERS, Decoding, Driver
from rlvr_claims.settings import Criterion

TEXTS = ["Compute 3+4 from left to right, modulo 10.\n", "7\n", "Let a=3;b=a+7. Compute b modulo 10.\n"]
SAMPLING = SamplingParameters(max_new_tokens=24, temperature=1.0, top_p=0.95)
CPU = torch.device("cpu")
BACKENDS = ["local", "transformers"]
NEVER: dict[Criterion, float] = {"log_prob_difference": -math.inf, "random": 0.0}
SOMETIMES: dict[Criterion, float] = {
    "log_prob_difference": -0.1,
    "random": 0.5,
    "entropy": 2.0,
    "kl_trained_base": 0.6,
    "kl_base_trained": 0.6,
    "jeffreys": 0.6,
    "js": 0.15,
}
ALWAYS: dict[Criterion, float] = {"log_prob_difference": math.inf, "random": 1.0}


def requests(checkpoint: Path, count: int = 6, suffix: str = "") -> list[Request]:
    tokenizer = load_tokenizer(checkpoint)
    return [
        Request(tuple(tokenizer.encode(text).ids), f"{text}/{number}{suffix}", 16 + 4 * (number % 3))
        for text in TEXTS
        for number in range(count)
    ]


class Pair:
    """Both models on one backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def generate(self, wanted: Sequence[Request], decoding: Decoding) -> list[Response]:
        return self.backend.generate(wanted, partial(PairDraw, decoding, SAMPLING))


def load_both(checkpoints: tuple[Path, Path], backend: str) -> tuple[Pair, Backend, Backend]:
    models = [Checkpoint(directory) for directory in checkpoints]
    settings = BackendSettings("float32", "cpu", 128, models[0].end_tokens, SAMPLING)
    base, trained = (load_backend(backend, [model], settings) for model in models)
    return Pair(load_backend(backend, models, settings)), base, trained


def replaced(responses: Sequence[Response]) -> int:
    return sum(response.replaced or 0 for response in responses)


def tokens(responses: list[Response]) -> list[tuple[list[int], bool]]:
    return [(response.tokens, response.finished) for response in responses]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_never_fires_is_the_driver_alone(checkpoints: tuple[Path, Path], backend: str) -> None:
    """Tau of minus infinity for the log-prob difference, probability 0, an infinite divergence: token for token."""
    pair, *alone = load_both(checkpoints, backend)
    wanted = requests(checkpoints[0])
    for driver, model in zip(DRIVERS, alone, strict=True):
        expected = tokens(model.generate(wanted))
        for criterion in SOMETIMES:
            tau = NEVER.get(criterion, math.inf)
            for mode, gamma in (("replacement", 0.0), ("extrapolation", 0.3)):
                made = pair.generate(
                    wanted, Decoding(mode=mode, driver=driver, criterion=criterion, tau=tau, gamma=gamma)
                )
                assert tokens(made) == expected
                assert [response.replaced for response in made] == [0] * len(wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_everything_replaced_it_is_the_other_model(checkpoints: tuple[Path, Path], backend: str) -> None:
    """Token for token: with the sample's own numbers, or with those of ``/again`` where the token itself decides."""
    pair, *alone = load_both(checkpoints, backend)
    wanted = requests(checkpoints[0])
    for driver, other in zip(DRIVERS, reversed(alone), strict=True):
        expected = {"": other.generate(wanted), "/again": other.generate(requests(checkpoints[0], suffix="/again"))}
        assert tokens(expected[""]) != tokens(expected["/again"])
        for criterion in SOMETIMES:
            made = pair.generate(
                wanted,
                Decoding(mode="replacement", driver=driver, criterion=criterion, tau=ALWAYS.get(criterion, -math.inf)),
            )
            assert tokens(made) == tokens(expected["/again" if criterion == "log_prob_difference" else ""])
            assert [response.replaced for response in made] == [len(response.tokens) for response in made]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gamma_of_zero_adds_nothing(checkpoints: tuple[Path, Path], backend: str) -> None:
    """With the trained model driving it is the trained model, bit for bit; with the base driving, a replacement."""
    pair, _, trained = load_both(checkpoints, backend)
    wanted = requests(checkpoints[0])
    plain = tokens(trained.generate(wanted))
    for criterion in SOMETIMES:
        tau = SOMETIMES[criterion]
        made = pair.generate(wanted, Decoding(mode="extrapolation", driver="trained", criterion=criterion, tau=tau))
        assert tokens(made) == plain
        pushed = pair.generate(wanted, Decoding(mode="extrapolation", driver="base", criterion=criterion, tau=tau))
        some = pair.generate(wanted, Decoding(mode="replacement", driver="base", criterion=criterion, tau=tau))
        assert pushed == some
        assert 0 < replaced(some) < sum(len(one.tokens) for one in some)


@pytest.mark.parametrize("criterion", ["log_prob_difference", "kl_trained_base", "random"])
def test_both_backends_draw_the_same_samples(checkpoints: tuple[Path, Path], criterion: Criterion) -> None:
    decoding = Decoding(mode="extrapolation", driver="base", criterion=criterion, tau=SOMETIMES[criterion], gamma=0.5)
    made = [load_both(checkpoints, name)[0].generate(requests(checkpoints[0]), decoding) for name in BACKENDS]
    assert made[0] == made[1]
    assert replaced(made[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("criterion", ["log_prob_difference", "js", "random"])
def test_what_is_decoded_beside_a_sample_does_not_change_it(
    checkpoints: tuple[Path, Path], backend: str, criterion: Criterion
) -> None:
    decoding = Decoding(
        mode="extrapolation", driver="trained", criterion=criterion, tau=SOMETIMES[criterion], gamma=0.2
    )
    pair, *_ = load_both(checkpoints, backend)
    wanted = requests(checkpoints[0])
    together = pair.generate(wanted, decoding)
    assert [pair.generate([one], decoding)[0] for one in wanted] == together
    assert pair.generate(wanted[::-1], decoding)[::-1] == together


@pytest.mark.parametrize("criterion", ["log_prob_difference", "entropy", "random"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_one_token_follows_the_mixture(criterion: Criterion, driver: Driver) -> None:
    """20,000 draws from logits made by hand, against the distribution summed by hand."""
    base, trained = [1.0, 0.2, -0.5, 0.4], [0.1, 1.0, -0.2, 0.3]
    gamma, tau = 0.7, {"log_prob_difference": 0.0, "entropy": 1.2, "random": 0.35}[criterion]
    p, q = (np.exp(logits) / np.sum(np.exp(logits)) for logits in (base, trained))
    first = p if driver == "base" else q
    again = q ** (1 + gamma) / p**gamma
    again /= again.sum()
    entropy = -sum(value * math.log(value) for value in first)
    fires = {
        "log_prob_difference": np.log(q / p) <= tau,
        "entropy": np.full(4, entropy >= tau),
        "random": np.full(4, tau),
    }[criterion]
    assert fires.sum() > 0
    expected = first * (1 - fires) + (first * fires).sum() * again
    count = 20_000
    names = [f"draw/{number}" for number in range(count)]
    draw = PairDraw(
        Decoding(mode="extrapolation", driver=driver, criterion=criterion, tau=tau, gamma=gamma),
        SamplingParameters(max_new_tokens=1),
        names,
        1,
        CPU,
    )
    everything = torch.arange(count)
    drawn = draw([torch.tensor([base]), torch.tensor([trained])], torch.zeros_like(everything), everything, 0)
    counts = np.bincount(drawn, minlength=4)
    assert stats.chisquare(counts, expected * count).pvalue > 0.001
    assert int(draw.replaced.sum()) == pytest.approx(count * (first * fires).sum(), rel=0.05)


@pytest.mark.parametrize(
    ("criterion", "tau"), [("log_prob_difference", -0.2), ("kl_trained_base", 0.1), ("entropy", 0.9), ("random", 0.4)]
)
def test_the_accuracy_of_a_chain_of_two_tokens_is_that_of_enumeration(criterion: Criterion, tau: float) -> None:
    """Three tokens, then three that depend on the first; a sample counts if the last is 2: nine chains in all."""
    first = ([[1.0, 0.3, -0.6]], [[0.1, 0.9, 0.0]])
    second = (
        [[0.5, 0.4, 0.0], [1.5, -1.0, -0.5], [0.2, 0.1, 0.3]],
        [[0.4, 0.4, 0.2], [-0.5, 0.0, 1.5], [0.2, 0.2, 0.3]],
    )
    count = 20_000
    names = [f"chain/{number}" for number in range(count)]
    decoding = Decoding(mode="replacement", driver="base", criterion=criterion, tau=tau)
    draw = PairDraw(decoding, SamplingParameters(max_new_tokens=2), names, 2, CPU)
    everything = torch.arange(count)
    start = draw([torch.tensor(each) for each in first], torch.zeros_like(everything), everything, 0).clone()
    end = draw([torch.tensor(each) for each in second], start, everything, 1)

    def one_token(base: list[float], trained: list[float]) -> np.ndarray:
        p, q = (np.exp(logits) / np.sum(np.exp(logits)) for logits in (base, trained))
        fires = {
            "log_prob_difference": np.log(q / p) <= tau,
            "kl_trained_base": np.full(3, np.sum(q * np.log(q / p)) >= tau),
            "entropy": np.full(3, -np.sum(p * np.log(p)) >= tau),
            "random": np.full(3, tau),
        }[criterion].astype(float)
        mixed: np.ndarray = p * (1 - fires) + (p * fires).sum() * q
        return mixed

    starts = one_token(first[0][0], first[1][0])
    expected = np.stack([starts[token] * one_token(second[0][token], second[1][token]) for token in range(3)])
    counts = np.bincount(3 * start + end, minlength=9)
    assert stats.chisquare(counts, expected.ravel() * count).pvalue > 0.001
    accuracy = expected[:, 2].sum()
    assert abs(float((end == 2).double().mean()) - accuracy) < 4 * math.sqrt(accuracy * (1 - accuracy) / count)
    # The case tells replacing from not replacing, and from replacing everything.
    for model in (0, 1):
        alone = [np.exp(each) / np.sum(np.exp(each)) for each in (*first[model], *second[model])]
        plain = np.stack([alone[0][token] * alone[1 + token] for token in range(3)])
        assert stats.chisquare(counts, plain.ravel() * count).pvalue < 1e-6


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({"criterion": "random", "tau": 1.5}, "a probability, 0 to 1"),
        ({"tau": float("nan")}, "a number"),
        ({"gamma": 0.5}, "0, or mode extrapolation"),
        ({"mode": "extrapolation", "gamma": -1}, "at least 0"),
        ({"mode": "extrapolation", "gamma": math.inf}, "a finite number"),
    ],
)
def test_settings_are_refused_in_one_line(changes: dict[str, object], accepted: str) -> None:
    settings = {"mode": "replacement", "driver": "base", "criterion": "js", "tau": 0.1}
    with pytest.raises(InvalidInput) as caught:
        Decoding.parse({**settings, **changes}, "settings")
    assert str(caught.value).startswith("settings: ") and accepted in str(caught.value)


def test_settings_survive_a_file() -> None:
    for tau in (-math.inf, -0.3, math.inf):
        decoding = Decoding(
            mode="extrapolation", driver="trained", criterion="log_prob_difference", tau=tau, gamma=0.05
        )
        assert Decoding.parse(decoding.to_json(), "file") == decoding
