"""The claims of the papers as ``claims.yaml`` declares them, which planning reads without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from evals.core.errors import InvalidInput, UserError
from evals.core.record import Record
from evals.core.yaml_file import read_yaml

FILE = Path(__file__).with_name("claims.yaml")
UPDATES = "updates (run, step)"
"""The usual unit. An update moves its tokens together, so single tokens are no independent evidence."""
Direction = Literal["above", "below"]


class Need(Enum):
    """Something that a claim is measured on, in words.

    A file's `claims` name it by ``key``, commands by ``option``.
    """

    TOKEN_TABLES = ("method", "--tables", "token tables of a method, with the policies before their steps")
    PROBES = ("method", "", "probing updates of these tables, which lie beside them")
    WEIGHTING_TABLES = ("weighting_method", "--weighting-tables", "token tables of a method that weighs tokens")
    COMPARED_RUNS = ("compared", "--runs", "runs whose training and checkpoints are compared")
    SELECTED_RUNS = ("selected", "--runs", "runs that train on the tokens of highest and of lowest weight")
    BENCHMARK = ("benchmark", "--benchmarks", "a benchmark on which base and trained model are compared")
    COMPARISON = ("", "--comparison", "two checkpoints compared on given responses")
    BASE_COMPARISON = ("", "--base-comparison", "the same two compared on the base model's own responses")

    def __init__(self, key: str, option: str, words: str) -> None:
        self.key, self.option, self.words = key, option, words


Needs = Annotated[frozenset[Need], BeforeValidator(lambda names: frozenset(Need[name.upper()] for name in names))]


def lacking(needs: Set[Need]) -> str:
    """Say what a file's `claims` have to name for ``needs``."""
    return "needs " + ", and ".join(f"claims.{need.key} ({need.words})" for need in Need if need in needs)


class Statement(Record):
    """A number that a claim says something about, or that stands beside it."""

    claim: str = ""  # the sentence that the verdict answers; empty where nothing is claimed
    quantity: str
    of: str  # the name of the number, of those that the claim's class has of each unit
    less: str = ""  # the name of the one that is taken off
    side: Direction = "above"
    null: float = 0.0
    otherwise: str | None = None  # why there may be no number; empty: no line then


class Declaration(Record):
    """A claim of a paper; ``claims.yaml`` says what the fields hold."""

    name: str
    title: str
    paper: str
    needs: Needs
    uses: Needs = frozenset()
    unit: str = UPDATES
    finding: str = ""
    method: str
    measured: tuple[Statement, ...] = ()

    @property
    def text(self) -> str:
        """The declaration but for its needs, which have no order: a job's inputs and options hold them."""
        return self.model_dump_json(exclude={"needs", "uses"})

    @property
    def of_checkpoints(self) -> bool:
        """Return whether two checkpoints and responses are enough."""
        return Need.COMPARISON in self.needs


@cache
def all_claims() -> list[Declaration]:
    """Read the claims."""
    return [Declaration.parse(entry, str(FILE), f"[{number}]") for number, entry in enumerate(read_yaml(FILE))]


def claim_names(of_checkpoints: bool = False) -> list[str]:
    """Return the names of the claims about a study's runs, or of those about two checkpoints, in order."""
    return [claim.name for claim in all_claims() if claim.of_checkpoints == of_checkpoints]


def find_claim(name: str, of_checkpoints: bool = False) -> Declaration:
    """Find a claim about a study's runs, or about two checkpoints; UserError if there is no such claim."""
    fitting = {claim.name: claim for claim in all_claims() if claim.of_checkpoints == of_checkpoints}
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
    return [claim.name for claim in all_claims() if claim.needs <= _met(settings)]


def claims_left_out(settings: Mapping[str, Any]) -> list[str]:
    """Name the other claims about a study's runs, each with what it needs."""
    missing = {claim.title: claim.needs - _met(settings) for claim in all_claims() if not claim.of_checkpoints}
    return [f"{title}: {lacking(needs)}" for title, needs in missing.items() if needs]


def _met(settings: Mapping[str, Any]) -> set[Need]:
    return {need for need in Need if need.key in settings}
