"""The claims of the papers and what each is measured on, which planning reads without importing torch."""

from __future__ import annotations

import importlib
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, cast

from evals.core.errors import InvalidInput, UserError

if TYPE_CHECKING:
    from rlvr.diagnostics.claims.findings import Claim


class Need(Enum):
    """Something that a claim is measured on, in words.

    A study's `diagnostics` name it by ``key``, commands by ``option``.
    """

    TOKEN_TABLES = ("method", "--tables", "token tables of a method, with the policies before their steps")
    PROBES = ("method", "", "probing updates of these tables, which lie beside them")
    WEIGHTING_TABLES = ("weighting_method", "--contrast-tables", "token tables of a method that weighs tokens")
    COMPARED_RUNS = ("compared", "--runs", "runs whose training and checkpoints are compared")
    SELECTED_RUNS = ("selected", "--runs", "runs that train on the tokens of highest and of lowest weight")
    BENCHMARK = ("benchmark", "--benchmarks", "a benchmark on which base and trained model are compared")
    COMPARISON = ("", "--comparison", "two checkpoints compared on given responses")
    BASE_COMPARISON = ("", "--base-comparison", "the same two compared on the base model's own responses")

    def __init__(self, key: str, option: str, words: str) -> None:
        self.key, self.option, self.words = key, option, words


def lacking(needs: Set[Need]) -> str:
    """Say what a study's `diagnostics` have to name for ``needs``."""
    return "needs " + ", and ".join(f"diagnostics.{need.key} ({need.words})" for need in Need if need in needs)


@dataclass(frozen=True)
class Declaration:
    """A claim of a paper; its measurement is a class of the module of its name."""

    name: str  # ``token_flipping``, whose class is ``TokenFlipping``, or ``TokenFlippingOfCheckpoints``
    title: str  # heading
    paper: str  # arXiv identifier
    needs: Set[Need]  # inputs without which the claim cannot be measured
    uses: Set[Need] = frozenset()  # inputs that add measurements

    @property
    def of_checkpoints(self) -> bool:
        """Return whether two checkpoints and responses are enough."""
        return Need.COMPARISON in self.needs

    def load(self) -> Claim:
        module = importlib.import_module(f"{__package__}.{self.name}")
        class_name = self.name.title().replace("_", "") + ("OfCheckpoints" if self.of_checkpoints else "")
        return cast("Claim", getattr(module, class_name)())


_OF_UPDATES = {Need.TOKEN_TABLES, Need.PROBES}
CLAIMS = (
    Declaration("token_flipping", "Token flipping", "2605.08666", _OF_UPDATES),
    Declaration("coupling_kernel", "Coupling kernel", "2605.08666", _OF_UPDATES),
    Declaration("masking_effect", "Masking effect", "2605.08666", _OF_UPDATES),
    Declaration("output_layer_proxy", "Output-layer proxy", "2605.08666", _OF_UPDATES),
    Declaration("cancellation_filter", "Cancellation as a filter", "2605.08666", _OF_UPDATES),
    Declaration("token_value", "Counterfactual token value", "2605.08666", _OF_UPDATES),
    Declaration(
        "delta_coefficients", "DelTA's coefficients", "2605.21467", {Need.WEIGHTING_TABLES}, {Need.SELECTED_RUNS}
    ),
    Declaration("update_direction", "Direction of the update", "2603.22117", {Need.TOKEN_TABLES, Need.BENCHMARK}),
    Declaration(
        "learning_tax", "Learning tax, drift, entropy collapse", "2604.13088", {Need.TOKEN_TABLES, Need.COMPARED_RUNS}
    ),
    Declaration("gradient_mass", "Gradient by probability", "2603.22117", {Need.TOKEN_TABLES}),
    Declaration("tabular_extrapolation", "Extrapolation of a tabular policy", "2603.22117", {Need.TOKEN_TABLES}),
    Declaration(
        "sampling_settings",
        "Sampling settings",
        "2605.08666",
        {Need.TOKEN_TABLES, Need.BENCHMARK},
        {Need.WEIGHTING_TABLES},
    ),
    Declaration("token_flipping", "Token flipping", "2605.08666", {Need.COMPARISON}),
    Declaration("update_direction", "Direction of the update", "2603.22117", {Need.COMPARISON}, {Need.BASE_COMPARISON}),
)
"""All claims in the order of their table; those that two checkpoints are enough for come last."""


def claim_names(of_checkpoints: bool = False) -> list[str]:
    """Return the names of the claims about a study's runs, or of those about two checkpoints, in order."""
    return [each.name for each in CLAIMS if each.of_checkpoints == of_checkpoints]


def find_claim(name: str, of_checkpoints: bool = False) -> Declaration:
    """Find a claim about a study's runs, or about two checkpoints; UserError if there is no such claim."""
    fitting = {each.name: each for each in CLAIMS if each.of_checkpoints == of_checkpoints}
    if name in fitting:
        return fitting[name]
    if of_checkpoints and name in claim_names():
        raise UserError(
            f"--comparison: {name} cannot be measured on it; accepted: {' and '.join(fitting)}. The others need a "
            "run's own steps (--tables): gradients, optimizer updates, new samples, or metrics over training"
        )
    raise InvalidInput("claim", "", f"is {name!r}", ", ".join(fitting))
