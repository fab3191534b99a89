"""The published objectives that trainers are held to, and the batches that they are tried on."""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr_conform.expected import Objective
from rlvr_conform.loss_references import Batch, Mode

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
_GSPO = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
_FIPO = {"half_life": 32.0, "future_low": 0.0, "future_high": 0.2, **_CLIP, "dual_clip": 10.0, "safety_ratio": 10.0}
_DUAL_CLIP = {**_CLIP, "dual_clip": 3.0}
_CLIP_COV = {"clip_fraction": 1.0, "covariance_low": 0.1, "covariance_high": 5.0, **_EVEN}
_KL = {**_EVEN, "kl": 0.04, "estimator": "k3"}
_UNBIASED_KL = {**_KL, "estimator": "unbiased_k3"}
_UNDIVIDED_PENALTY = {"its penalty is not divided by the tokens": {"undivided": ["kl_coefficient"]}}
_UNDIVIDED_BOUNDS = {
    "it bounds covariances of advantages divided by the tokens": {"undivided": ["covariance_low", "covariance_high"]}
}
_TOPR_BY_TOKEN = {"the weights are of single tokens, not of responses": {"numbers": {"level": "token"}}}
_SCORED_KL = {"its divergence has the gradient of the sampling, too": {"kl": ("scored_k3", 0.04)}}
_VESPO = {"power_positive": 2.0, "decay_positive": 3.0, "power_negative": 3.0, "decay_negative": 2.0}


def _clipped(name: str, asked: Settings, mode: Mode, constant: float | None = None, **parts: Any) -> Case:
    """A case of PPO's clipped loss without a dual clip; ``parts`` are the objective's."""
    objective = Objective("clipped", {"dual_clip": None, **_numbers(asked)}, mode, constant, **parts)
    return Case(name, objective, asked, (0.8, 1 + asked["epsilon_high"]), _DUAL)


def _numbers(asked: Settings) -> Settings:
    """What of the settings belongs to the loss, not to a term beside it."""
    return {key: value for key, value in asked.items() if key not in ("kl", "estimator", "cap")}


def _same(name: str, mode: Mode, asked: Settings, bounds: tuple[float, ...] = (), **others: Any) -> Case:
    """A case whose name is the loss's, and whose settings are all of the loss's numbers."""
    return Case(name, Objective(name, asked, mode), asked, bounds, **others)


def _dppo(name: str, delta: float) -> Case:
    asked = {"delta_low": delta, "delta_high": delta}
    readings = {"it does not cap the ratio": {"numbers": {**asked, "ratio_cap": 1e9}}}
    return Case(name, Objective(name, {**asked, "ratio_cap": 20.0}, "token-mean"), asked, (40.0,), _DPPO, readings)


CASES = [
    _clipped("grpo", _EVEN, "seq-mean-token-mean"),
    _clipped("dapo", _CLIP, "token-mean"),
    Case("dual_clip", Objective("clipped", _DUAL_CLIP, "token-mean"), _DUAL_CLIP, (0.8, 1.28, 3.0)),
    _clipped("dr_grpo", _EVEN, "seq-mean-token-sum-norm", LONGEST),
    _same("gspo", "seq-mean-token-mean", _GSPO, (1 - 3e-4, 1 + 4e-4), remedies=_DUAL),
    _same("gspo_token", "seq-mean-token-mean", _GSPO, (1 - 3e-4, 1 + 4e-4), remedies=_DUAL),
    _same("sapo", "seq-mean-token-mean", {"tau_positive": 1.0, "tau_negative": 1.05}),
    Case(
        "cispo",
        Objective("cispo", {"epsilon_low": 1.0, "epsilon_high": 0.28}, "token-mean"),
        {"epsilon_high": 0.28},
        (0.8, 1.28),
        {
            "epsilon_high is an absolute cap of the ratio": {"epsilon_high": 1.28},
            "it clamps below too, unless told otherwise": {"epsilon_low": 1.0},
        },
    ),
    _same("gmpo", "seq-mean-token-mean", dict.fromkeys(_EVEN, 0.4), (math.exp(-0.4), math.exp(0.4))),
    Case("fipo", Objective("fipo", {**_FIPO, "safety_rule": "limit"}, "token-mean"), _FIPO, (0.8, 1.28, 10.0)),
    _same("kl_cov", "token-mean", {"top_fraction": 0.2, "kl_coefficient": 1.0}, readings=_UNDIVIDED_PENALTY),
    _same("clip_cov", "token-mean", _CLIP_COV, _PPO, readings=_UNDIVIDED_BOUNDS),
    _dppo("dppo_tv", 0.15),
    _dppo("dppo_kl", 0.05),
    _same("ipo", "token-mean", {"epsilon": 0.1, "kl_coefficient": 1e-3}),
    _same("m2po", "token-mean", {"tau": 0.04}),
    Case("topr", Objective("topr", {"level": "sequence"}, "seq-mean-token-sum"), {}, readings=_TOPR_BY_TOKEN),
    _same("dro", "token-mean", {"beta": 0.05}),
    _same("vespo", "token-mean", _VESPO),
    _same("reinforce", "token-mean", {}),
    replace(_clipped("grpo_kl", _KL, "seq-mean-token-mean", kl=("k3", 0.04)), readings=_SCORED_KL),
    _clipped("grpo_kl_unbiased", _UNBIASED_KL, "seq-mean-token-mean", kl=("unbiased_k3", 0.04)),
    _clipped("grpo_tis", {**_EVEN, "cap": 2.0}, "seq-mean-token-mean", cap=2.0),
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
    if case.objective.loss == "gspo_token":
        yield "token weights", drawn(5, 5e-4, weighted=True)


def drawn(
    seed: int, spread: float, rewards: tuple[int, ...] = (1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1), weighted: bool = False
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
