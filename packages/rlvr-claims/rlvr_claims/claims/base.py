"""The claims of the papers and what each is measured on, which planning reads without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any

from evals.core.errors import InvalidInput, UserError


class Need(Enum):
    """Something that a claim is measured on, in words.

    A file's `claims` name it by ``key``, commands by ``option``.
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
    """Say what a file's `claims` have to name for ``needs``."""
    return "needs " + ", and ".join(f"claims.{need.key} ({need.words})" for need in Need if need in needs)


@dataclass(frozen=True)
class Declaration:
    """A claim of a paper, and the class that measures it."""

    name: str  # of its module, which is imported when it is measured
    measured_by: str  # class of the module
    title: str  # heading
    paper: str  # arXiv identifier
    needs: Set[Need]  # inputs without which the claim cannot be measured
    uses: Set[Need] = frozenset()  # inputs that add measurements

    @property
    def of_checkpoints(self) -> bool:
        """Return whether two checkpoints and responses are enough."""
        return Need.COMPARISON in self.needs


_OF_UPDATES = {Need.TOKEN_TABLES, Need.PROBES}
_OF_BENCHMARK = {Need.TOKEN_TABLES, Need.BENCHMARK}
_OF_COMPARISON = {Need.COMPARISON}
CLAIMS = (
    Declaration("token_flipping", "TokenFlipping", "Token flipping", "2605.08666", _OF_UPDATES),
    Declaration("coupling_kernel", "CouplingKernel", "Coupling kernel", "2605.08666", _OF_UPDATES),
    Declaration("masking_effect", "MaskingEffect", "Masking effect", "2605.08666", _OF_UPDATES),
    Declaration("output_layer_proxy", "OutputLayerProxy", "Output-layer proxy", "2605.08666", _OF_UPDATES),
    Declaration("cancellation_filter", "CancellationFilter", "Cancellation as a filter", "2605.08666", _OF_UPDATES),
    Declaration("token_value", "TokenValue", "Counterfactual token value", "2605.08666", _OF_UPDATES),
    Declaration(
        "delta_coefficients",
        "DeltaCoefficients",
        "DelTA's coefficients",
        "2605.21467",
        {Need.WEIGHTING_TABLES},
        {Need.SELECTED_RUNS},
    ),
    Declaration("update_direction", "UpdateDirection", "Direction of the update", "2603.22117", _OF_BENCHMARK),
    Declaration(
        "learning_tax",
        "LearningTax",
        "Learning tax, drift, entropy collapse",
        "2604.13088",
        {Need.TOKEN_TABLES, Need.COMPARED_RUNS},
    ),
    Declaration("gradient_mass", "GradientMass", "Gradient by probability", "2603.22117", {Need.TOKEN_TABLES}),
    Declaration(
        "tabular_extrapolation",
        "TabularExtrapolation",
        "Extrapolation of a tabular policy",
        "2603.22117",
        {Need.TOKEN_TABLES},
    ),
    Declaration(
        "sampling_settings",
        "SamplingSettings",
        "Sampling settings",
        "2605.08666",
        _OF_BENCHMARK,
        {Need.WEIGHTING_TABLES},
    ),
    Declaration("token_flipping", "TokenFlippingOfCheckpoints", "Token flipping", "2605.08666", _OF_COMPARISON),
    Declaration(
        "update_direction",
        "UpdateDirectionOfCheckpoints",
        "Direction of the update",
        "2603.22117",
        {Need.COMPARISON},
        {Need.BASE_COMPARISON},
    ),
)
"""All claims in the order of their table; those that two checkpoints are enough for come last."""


def claim_names(of_checkpoints: bool = False) -> list[str]:
    """Return the names of the claims about a study's runs, or of those about two checkpoints, in order."""
    return [claim.name for claim in CLAIMS if claim.of_checkpoints == of_checkpoints]


def find_claim(name: str, of_checkpoints: bool = False) -> Declaration:
    """Find a claim about a study's runs, or about two checkpoints; UserError if there is no such claim."""
    fitting = {claim.name: claim for claim in CLAIMS if claim.of_checkpoints == of_checkpoints}
    if name in fitting:
        return fitting[name]
    if of_checkpoints and name in claim_names():
        raise UserError(
            f"--comparison: {name} cannot be measured on it; accepted: {' and '.join(fitting)}. The others need a "
            "run's own steps (--tables): gradients, optimizer updates, new samples, or metrics over training"
        )
    raise InvalidInput("claim", "", f"is {name!r}", ", ".join(fitting))


def measurable_claims(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the claims whose needs a file's `claims` meet, in order."""
    return [claim.name for claim in CLAIMS if claim.needs <= _met(settings)]


def claims_left_out(settings: Mapping[str, Any]) -> list[str]:
    """Name the other claims about a study's runs, each with what it needs."""
    of_runs = [claim for claim in CLAIMS if not claim.of_checkpoints]
    missing = {claim.title: claim.needs - _met(settings) for claim in of_runs}
    return [f"{title}: {lacking(needs)}" for title, needs in missing.items() if needs]


def _met(settings: Mapping[str, Any]) -> set[Need]:
    return {need for need in Need if need.key in settings}
