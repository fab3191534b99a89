"""The published objectives that trainers are held to, and the batches that they are tried on."""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr.conform.expected import Objective
from rlvr.conform.loss_references import Batch
from rlvr.methods.losses.cov import ClipCov, KLCov
from rlvr.methods.losses.fipo import FIPO
from rlvr.methods.losses.off_policy import DRO, TOPR, VESPO
from rlvr.methods.losses.sequence_ratios import GMPO, GSPO, GSPOToken
from rlvr.methods.losses.token_ratios import CISPO, SAPO, Clipped, Reinforce
from rlvr.methods.losses.trust_regions import DPPOKL, DPPOTV, IPO, M2PO

LONGEST = 9
"""Tokens of the longest response, to which batches are padded; Dr.GRPO's constant."""
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """An objective, and what is asked of a trainer to get it.

    Attributes:
        settings: the paper's numbers that a user would set. The rest stays at the trainer's defaults.
        bounds: ratios at which the gradient of a token or a response jumps.
        remedies: other settings by which a trainer may give the paper's gradient, by what they say about it.
        readings: changes of the objective to what a trainer may compute instead, by what they say about it.
    """

    name: str
    objective: Objective
    settings: Settings
    bounds: tuple[float, ...] = ()
    remedies: Mapping[str, Settings] = field(default_factory=dict)
    readings: Mapping[str, Settings] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Any]:
        """The question to an adapter, in the names of this project."""
        return {"loss": self.name, "aggregation": self.objective.mode, **self.settings}


_DUAL = {"it has a dual clip unless told otherwise": {"dual_clip": 1e9}}
_DPPO = {
    "it caps the ratio lower, unless told otherwise": {"ratio_cap": 20.0},
    "it adds a penalty of the squared log-ratio, unless told otherwise": {"kl_coefficient": 0.0},
}
_CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.28}
_EVEN = {"epsilon_low": 0.2, "epsilon_high": 0.2}
_PPO = (0.8, 1.2)
_SEQUENCE = (1 - 3e-4, 1 + 4e-4)


def _grpo(**parts: Any) -> Objective:
    return Objective(Clipped(0.2, 0.2, None), "seq-mean-token-mean", **parts)


def _gspo(name: str, loss: GSPO | GSPOToken) -> Case:
    asked = {"epsilon_low": loss.epsilon_low, "epsilon_high": loss.epsilon_high}
    return Case(name, Objective(loss, "seq-mean-token-mean"), asked, _SEQUENCE, _DUAL)


def _dppo(name: str, loss: type[DPPOTV] | type[DPPOKL], delta: float) -> Case:
    readings = {"it does not cap the ratio": {"loss": loss(delta, delta, 1e9)}}
    asked = {"delta_low": delta, "delta_high": delta}
    return Case(name, Objective(loss(delta, delta, 20.0), "token-mean"), asked, (40.0,), _DPPO, readings)


CASES = [
    Case("grpo", _grpo(), _EVEN, _PPO, _DUAL),
    Case("dapo", Objective(Clipped(0.2, 0.28, None), "token-mean"), _CLIP, (0.8, 1.28), _DUAL),
    Case(
        "dual_clip",
        Objective(Clipped(0.2, 0.28, 3.0), "token-mean"),
        {**_CLIP, "dual_clip": 3.0},
        (0.8, 1.28, 3.0),
    ),
    Case(
        "dr_grpo",
        Objective(Clipped(0.2, 0.2, None), "seq-mean-token-sum-norm", LONGEST),
        _EVEN,
        _PPO,
        _DUAL,
    ),
    _gspo("gspo", GSPO(3e-4, 4e-4)),
    _gspo("gspo_token", GSPOToken(3e-4, 4e-4)),
    Case(
        "sapo",
        Objective(SAPO(1.0, 1.05), "seq-mean-token-mean"),
        {"tau_positive": 1.0, "tau_negative": 1.05},
    ),
    Case(
        "cispo",
        Objective(CISPO(1.0, 0.28), "token-mean"),
        {"epsilon_high": 0.28},
        (0.8, 1.28),
        {
            "epsilon_high is an absolute cap of the ratio": {"epsilon_high": 1.28},
            "it clamps below too, unless told otherwise": {"epsilon_low": 1.0},
        },
    ),
    Case(
        "gmpo",
        Objective(GMPO(0.4, 0.4), "seq-mean-token-mean"),
        {"epsilon_low": 0.4, "epsilon_high": 0.4},
        (math.exp(-0.4), math.exp(0.4)),
    ),
    Case(
        "fipo",
        Objective(FIPO(), "token-mean"),
        {"half_life": 32.0, "future_low": 0.0, "future_high": 0.2, **_CLIP, "dual_clip": 10.0, "safety_ratio": 10.0},
        (0.8, 1.28, 10.0),
    ),
    Case(
        "kl_cov",
        Objective(KLCov(0.2, 1.0), "token-mean"),
        {"top_fraction": 0.2, "kl_coefficient": 1.0},
    ),
    Case(
        "clip_cov",
        Objective(ClipCov(1.0, 0.1, 5.0, 0.2, 0.2), "token-mean"),
        {"clip_fraction": 1.0, "covariance_low": 0.1, "covariance_high": 5.0, **_EVEN},
        _PPO,
    ),
    _dppo("dppo_tv", DPPOTV, 0.15),
    _dppo("dppo_kl", DPPOKL, 0.05),
    Case("ipo", Objective(IPO(0.1, 1e-3), "token-mean"), {"epsilon": 0.1, "kl_coefficient": 1e-3}),
    Case("m2po", Objective(M2PO(0.04), "token-mean"), {"tau": 0.04}),
    Case(
        "topr",
        Objective(TOPR("sequence"), "seq-mean-token-sum"),
        {},
        readings={"the weights are of single tokens, not of responses": {"loss": TOPR("token")}},
    ),
    Case("dro", Objective(DRO(0.05), "token-mean"), {"beta": 0.05}),
    Case(
        "vespo",
        Objective(VESPO(), "token-mean"),
        {"power_positive": 2.0, "decay_positive": 3.0, "power_negative": 3.0, "decay_negative": 2.0},
    ),
    Case("reinforce", Objective(Reinforce(), "token-mean"), {}),
    Case(
        "grpo_kl",
        _grpo(kl=("k3", 0.04)),
        {**_EVEN, "kl": 0.04, "estimator": "k3"},
        _PPO,
        _DUAL,
        {"its divergence has the gradient of the sampling, too": {"kl": ("scored_k3", 0.04)}},
    ),
    Case(
        "grpo_kl_unbiased",
        _grpo(kl=("unbiased_k3", 0.04)),
        {**_EVEN, "kl": 0.04, "estimator": "unbiased_k3"},
        _PPO,
        _DUAL,
    ),
    Case("grpo_tis", _grpo(cap=2.0), {**_EVEN, "cap": 2.0}, _PPO, _DUAL),
]
"""A case for each objective; those with KL-Cov's 20 % and all of Clip-Cov's tokens, so that nothing is random."""


def batches(case: Case) -> Iterator[tuple[str, Batch]]:
    """Make the batches of a case, by what is special about each.

    Ragged lengths, all-right, all-wrong and mixed groups, small and large steps away from the policy before the
    update, ratios just within and just beyond every bound, and weights of tokens where the objective has such.
    """
    yield "small steps", drawn(1, 5e-4)
    yield "ragged", drawn(2, 0.15)
    yield "equal rewards", drawn(3, 0.15, rewards=(1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0))
    yield "stale", drawn(4, 0.8)
    if case.bounds:
        yield "bounds", at_bounds(case.bounds)
    if isinstance(case.objective.loss, GSPOToken):
        yield "token weights", drawn(5, 5e-4, weighted=True)


def drawn(
    seed: int,
    spread: float,
    rewards: tuple[int, ...] = (1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1),
    weighted: bool = False,
) -> Batch:
    """Draw groups of four responses whose log-ratios have the standard deviation ``spread``."""
    chance = random.Random(seed)
    lengths = [chance.randint(1, LONGEST) for _ in rewards]
    lengths[0] = LONGEST

    def rows(scale: float, around: list[list[float]] | None = None) -> list[list[float]]:
        drawn_rows = [[chance.gauss(0.0, scale) for _ in range(LONGEST)] for _ in rewards]
        if around is None:
            return [[-0.05 - abs(value) for value in row] for row in drawn_rows]
        pairs = zip(around, drawn_rows, strict=True)
        return [[min(-1e-3, x + y) for x, y in zip(row, step, strict=True)] for row, step in pairs]

    old = rows(1.0)
    new = rows(spread, old)
    advantage = []
    for i, reward in enumerate(rewards):
        group = rewards[i // 4 * 4 : i // 4 * 4 + 4]
        mean = sum(group) / 4
        deviation = math.sqrt(sum((other - mean) ** 2 for other in group) / 3)
        value = (reward - mean) / deviation if deviation else 0.0
        weights = [1.0 + 0.5 * chance.random() if weighted else 1.0 for _ in range(LONGEST)]
        advantage.append([value * weight for weight in weights])
    groups = [i // 4 for i in range(len(rewards))]
    return Batch(lengths, new, old, advantage, groups, sampler=rows(0.4, old), reference=rows(0.3, new))


def at_bounds(bounds: tuple[float, ...]) -> Batch:
    """Make a batch with four responses to a bound: just within and beyond it, of either advantage."""
    base = drawn(6, 0.0, rewards=(1, 0, 0, 1) * len(bounds))
    ratios = [bound * (1 + side * 1e-5) for bound in bounds for side in (-1, -1, 1, 1)]
    beyond = 1.5 + max(0.0, math.log(max(bounds)))  # so that probabilities stay below 1
    old = [[value - beyond for value in row] for row in base.old]
    new = [[value + math.log(ratio) for value in row] for row, ratio in zip(old, ratios, strict=True)]
    advantage = [[(-1.0) ** i * 0.9] * LONGEST for i in range(len(ratios))]
    return replace(base, old=old, new=new, advantage=advantage)


def smaller(batch: Batch) -> Iterator[Batch]:
    """List parts of a batch from the smallest on: single tokens, single responses, pairs of responses."""
    rows = range(len(batch.lengths))
    for i, t in batch.tokens:
        yield _part(batch, [i], t)
    for i in rows:
        yield _part(batch, [i])
    for i in rows:
        for j in range(i):
            yield _part(batch, [j, i])


def _part(batch: Batch, rows: list[int], token: int | None = None) -> Batch:
    longest = max(batch.lengths[i] for i in rows)
    columns = slice(0, longest) if token is None else slice(token, token + 1)

    def of(values: list[list[float]]) -> list[list[float]]:
        return [values[i][columns] for i in rows]

    return Batch(
        [batch.lengths[i] if token is None else 1 for i in rows],
        of(batch.new),
        of(batch.old),
        of(batch.advantage),
        [batch.group[i] for i in rows],
        sampler=of(batch.sampler),
        reference=of(batch.reference),
    )
