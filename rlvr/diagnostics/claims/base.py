"""The base of all claims, and the declarations that planning reads without importing torch.

A claim is a subclass of :class:`Claim` in a module of this package, named after the claim. Its declaration (number,
title, paper, needs) is literal, so :func:`declarations` reads it from the source; nothing else lists the claims.
"""

from __future__ import annotations

import ast
import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from evals.core.errors import InvalidInput, UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlvr.diagnostics.claims.findings import Findings
    from rlvr.diagnostics.claims.inputs import Inputs


class Need(StrEnum):
    """Something that a claim is measured on.

    Attributes:
        TOKEN_TABLES: token tables of the method that the study diagnoses, with the policies before their steps.
        PROBES: probing updates of these tables.
        WEIGHTING_TABLES: token tables of the method that weights tokens.
        COMPARED_RUNS: the runs whose training and checkpoints are compared.
        SELECTED_RUNS: the runs that train on the tokens of highest and of lowest weight.
        BENCHMARK: the benchmark on which base and trained model are compared.
        COMPARISON: two checkpoints compared on given responses.
        BASE_COMPARISON: the same two compared on the base model's own responses.
    """

    TOKEN_TABLES = "token tables"
    PROBES = "probes"
    WEIGHTING_TABLES = "token tables of the weighting method"
    COMPARED_RUNS = "compared runs"
    SELECTED_RUNS = "selected runs"
    BENCHMARK = "benchmark"
    COMPARISON = "comparison"
    BASE_COMPARISON = "comparison on the base model's responses"


OPTIONS = {
    Need.TOKEN_TABLES: "--tables",
    Need.WEIGHTING_TABLES: "--contrast-tables",
    Need.COMPARED_RUNS: "--runs",
    Need.SELECTED_RUNS: "--runs",
    Need.BENCHMARK: "--benchmarks",
    Need.COMPARISON: "--comparison",
    Need.BASE_COMPARISON: "--base-comparison",
}
"""Need -> the option of the command that gives it; probes lie beside their tables."""


class Claim(ABC):
    """A claim of a paper.

    Attributes:
        number: place in the table of claims.
        title: heading.
        paper: arXiv identifier.
        needs: inputs without which the claim cannot be measured.
        uses: inputs that add measurements.
        method: paragraph on what is done, and what it leaves open.
    """

    number: ClassVar[int]
    title: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[frozenset[Need]]
    uses: ClassVar[frozenset[Need]] = frozenset()
    method: str

    @abstractmethod
    def measure(self, inputs: Inputs) -> Findings:
        """Measure the claim.

        Raises:
            UserError: a file is missing or changed.
        """

    @abstractmethod
    def draw(self, findings: Findings) -> Figure:
        """Draw the findings."""


@dataclass(frozen=True)
class Declaration:
    """The declaration of a claim, as :class:`Claim` describes it, with its module's and its class's name."""

    name: str
    class_name: str
    number: int
    title: str
    paper: str
    needs: frozenset[Need]
    uses: frozenset[Need]

    @property
    def of_checkpoints(self) -> bool:
        """Return whether two checkpoints and responses are enough."""
        return Need.COMPARISON in self.needs

    def load(self) -> Claim:
        """Import the claim."""
        module = importlib.import_module(f"{__package__}.{self.name}")
        return cast("Claim", getattr(module, self.class_name)())


@cache
def declarations() -> tuple[Declaration, ...]:
    """Read the declarations of all claims, in the order of their numbers."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["Claim"]:
                found.append(_declaration(path.stem, node))
    return tuple(sorted(found, key=lambda each: (each.number, each.of_checkpoints)))


def _declaration(module: str, node: ast.ClassDef) -> Declaration:
    fields: dict[str, Any] = {"uses": frozenset()}
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
            if name in ("needs", "uses"):
                fields[name] = frozenset(Need[each.attr] for each in ast.walk(value) if isinstance(each, ast.Attribute))
            elif name in ("number", "title", "paper"):
                fields[name] = ast.literal_eval(value)
    return Declaration(module, node.name, **fields)


def claim_names(of_checkpoints: bool = False) -> list[str]:
    """Return the names of the claims about a study's runs, or of those about two checkpoints, in order."""
    return [each.name for each in declarations() if each.of_checkpoints == of_checkpoints]


def find_claim(name: str, of_checkpoints: bool = False) -> Declaration:
    """Find a claim about a study's runs, or about two checkpoints.

    Raises:
        UserError: there is no such claim.
    """
    fitting = {each.name: each for each in declarations() if each.of_checkpoints == of_checkpoints}
    if name in fitting:
        return fitting[name]
    if of_checkpoints and name in claim_names():
        raise UserError(
            f"--comparison: {name} cannot be measured on it; accepted: {' and '.join(fitting)}. The others need a "
            "run's own steps (--tables): gradients, optimizer updates, new samples, or metrics over training"
        )
    raise InvalidInput("claim", "", f"is {name!r}", ", ".join(fitting))
