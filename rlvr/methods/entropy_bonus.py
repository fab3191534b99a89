"""Entropy bonuses: the loss falls with the entropy of the current policy at the tokens of the responses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rlvr.methods.parameters import Component, component, hyper_parameter

CONTROL = "entropy_control"
"""The metric of a step that the next step's coefficient is computed from."""


@dataclass(frozen=True)
class EntropyBonus(Component, ABC):
    """The base of entropy bonuses: the token loss has -c H(pi_theta) beside it."""

    kind: ClassVar[str] = "entropy_bonus"

    @abstractmethod
    def coefficient_at(self, entropy: float, before: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Choose c, and metrics, for a rollout batch whose tokens have a mean ``entropy``.

        ``before`` are the metrics of the step before, empty at first.
        """


@component("fixed")
class Fixed(EntropyBonus):
    """-coefficient H(pi_theta) at every token."""

    coefficient: float = hyper_parameter(0.001, "factor of the entropy in nats", minimum=0.0)

    def coefficient_at(self, entropy: float, before: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        return self.coefficient, {}


@component("target")
class Target(EntropyBonus):
    """-c H(pi_theta) while the rollouts' mean entropy is at most the target; c grows by step below it, else falls.

    Adaptive entropy control of Skywork-OR1 (arXiv 2505.22312): c starts at ``start`` and stays within 0 and ``most``.
    Target and start are those of the authors' scripts, step and limit TRL's.
    """

    target: float = hyper_parameter(0.2, "entropy that is to be kept, in nats a token", above=0.0)
    start: float = hyper_parameter(0.0, "c at the first step", minimum=0.0)
    step: float = hyper_parameter(0.005, "change of c a step", above=0.0)
    most: float = hyper_parameter(1.0, "largest c", above=0.0)

    def coefficient_at(self, entropy: float, before: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        control = self.start
        if CONTROL in before:
            change = self.step if before["entropy"] < self.target else -self.step
            control = min(max(before[CONTROL] + change, 0.0), self.most)
        coefficient = control if entropy <= self.target else 0.0
        return coefficient, {CONTROL: control, "entropy_coefficient": coefficient}
