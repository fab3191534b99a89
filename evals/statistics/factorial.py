"""A fractional factorial design: the combinations of levels that are trained, the effects that they give, and aliases.

The model of a cell's score is a constant, the factors' main effects and their two-way interactions, fitted by least
squares. What an effect is does not depend on the fraction: it is defined on all possible cells.

- The main effect of a level is the mean difference of two cells that differ in it and the factor's first level alone.
- The interaction of two levels is the mean, over all four cells that differ in them alone, of the effect of the one
  beside the other less its effect beside the other factor's first level.

An effect is estimated by a weighted sum of the cells' scores. Two effects are aliased if no such sum tells them apart
(Box and Hunter 1961, Technometrics 3).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product

import numpy as np

from evals.core.config.methods import Factorial
from evals.core.errors import NotAccepted
from evals.statistics.accuracy import FloatArray

Cell = tuple[int, ...]  # the number of the level of each factor; 0 is the first
Term = tuple[tuple[int, int], ...]
"""The levels that are meant, as (factor, level): one for a main effect, two for an interaction."""
_ZERO = 1e-9


@dataclass(frozen=True)
class Effect:
    """An effect with the weights of the cells' scores [C] that estimate it, and the effects that it is aliased with."""

    term: Term
    weights: FloatArray
    aliases: tuple[Term, ...]


@dataclass(frozen=True)
class Design:
    """A regular fraction of the factors of two levels, crossed with all levels of the others, less impossible cells."""

    factors: Mapping[str, Sequence[str]]  # factor -> its levels
    generators: Mapping[str, Sequence[str]] = field(default_factory=dict)  # a factor -> those whose product it is
    excluded: Sequence[Mapping[str, str]] = ()  # combinations of levels that no cell may have

    @classmethod
    def of(cls, factorial: Factorial) -> "Design":
        factors = {factor.name: [level.level for level in factor.levels] for factor in factorial.factors}
        return cls(factors, factorial.generators, factorial.excluded)

    @cached_property
    def names(self) -> list[str]:
        return list(self.factors)

    @cached_property
    def possible(self) -> list[Cell]:
        """All combinations of levels that are not excluded."""
        cells = product(*(range(len(levels)) for levels in self.factors.values()))
        return [cell for cell in cells if not any(out.items() <= self.levels(cell).items() for out in self.excluded)]

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of the fraction: the sum of a generated factor's level and its generators' is even."""
        words = [[self.names.index(name) for name in (factor, *of)] for factor, of in self.generators.items()]
        return [cell for cell in self.possible if all(sum(cell[factor] for factor in word) % 2 == 0 for word in words)]

    def cell(self, levels: Mapping[str, str]) -> Cell:
        """The cell of the named levels; factors that are not named have their first."""
        return tuple(list(of).index(levels.get(factor, of[0])) for factor, of in self.factors.items())

    def levels(self, cell: Cell) -> dict[str, str]:
        """The name of each factor's level in a cell."""
        return {name: of[number] for (name, of), number in zip(self.factors.items(), cell, strict=True)}

    @cached_property
    def words(self) -> list[frozenset[str]]:
        """The products of factors that are the same in all cells, the shortest first: the defining relation."""
        words: list[frozenset[str]] = []
        for factor, of in self.generators.items():
            word = frozenset((factor, *of))
            words += [word, *(word ^ other for other in words)]
        return sorted(words, key=lambda word: (len(word), sorted(map(self.names.index, word))))

    @property
    def resolution(self) -> int | None:
        """The length of the shortest of them; None of a full factorial."""
        return len(self.words[0]) if self.words else None

    def terms(self, order: int) -> list[Term]:
        """The effects of so many factors that possible cells have."""
        levels = [range(1, len(of)) for of in self.factors.values()]
        terms = [
            tuple(zip(factors, chosen, strict=True))
            for factors in combinations(range(len(levels)), order)
            for chosen in product(*(levels[factor] for factor in factors))
        ]
        return [term for term in terms if self._definition(term) is not None]

    def _definition(self, term: Term) -> FloatArray | None:
        """The weights of the possible cells [F] that define an effect; None where no cells have it."""
        weights, count = dict.fromkeys(self.possible, 0.0), 0
        for cell in self.possible:
            corners = {cell: (-1) ** len(term)}
            for place in term:
                corners |= {_with(corner, *place): -sign for corner, sign in corners.items()}
            if not any(cell[factor] for factor, _ in term) and weights.keys() >= corners.keys():
                count += 1
                for corner, sign in corners.items():
                    weights[corner] += sign
        return np.array([*weights.values()]) / count if count else None

    def _column(self, term: Term) -> FloatArray:
        """The term of the model in all possible cells [F]: the product of levels coded 1 - 1/L and -1/L."""
        cells, sizes = np.array(self.possible), [len(of) for of in self.factors.values()]
        coded = [(cells[:, factor] == level) - 1.0 / sizes[factor] for factor, level in term]
        return np.asarray(np.prod([np.ones(len(cells)), *coded], axis=0))

    @cached_property
    def _taken(self) -> list[int]:
        """The indices of the fraction's cells among the possible ones."""
        chosen = set(self.cells)
        return [index for index, cell in enumerate(self.possible) if cell in chosen]

    @cached_property
    def _model(self) -> tuple[list[Term], FloatArray, FloatArray]:
        """The terms that are fitted, their columns [F, P], and the fit [P, C]; of aliased terms the first."""
        terms: list[Term] = [()]
        columns = [self._column(())]
        for term in [*self.terms(1), *self.terms(2)]:
            column = self._column(term)
            if not any(_is_multiple(column[self._taken], other[self._taken]) for other in columns):
                terms, columns = [*terms, term], [*columns, column]
        matrix = np.stack(columns, axis=1)
        return terms, matrix, np.asarray(np.linalg.pinv(matrix[self._taken]))

    @cached_property
    def effects(self) -> list[Effect]:
        """All effects of one and of two factors; of those that are aliased with each other the first.

        Raises:
            NotAccepted: the cells do not tell effects apart.
        """
        fitted, matrix, fit = self._model
        for factor, levels in enumerate(self.factors.values()):
            for level in range(1, len(levels)):
                if ((factor, level),) not in fitted:
                    self._refuse(((factor, level),))
        others = [term for order in (1, 2, 3) for term in self.terms(order) if term not in fitted]
        effects = []
        for term in fitted[1:]:
            definition = self._definition(term)
            assert definition is not None
            weights = definition @ matrix @ fit
            if not np.allclose(weights @ matrix[self._taken], definition @ matrix, atol=_ZERO):
                self._refuse(term)
            columns = {other: self._column(other) for other in others}
            biases = {other: weights @ of[self._taken] - definition @ of for other, of in columns.items()}
            effects.append(Effect(term, weights, tuple(other for other in biases if abs(biases[other]) > _ZERO)))
        return effects

    def check(self, combinations: Iterable[Mapping[str, str]]) -> None:
        """Refuse cells that do not tell effects apart, and combinations whose difference cannot be taken apart."""
        assert self.effects
        for levels in combinations:
            self.parts(levels)

    def _refuse(self, term: Term) -> None:
        raise NotAccepted(f"does not tell the effect of {self.label(term)} from others", "more cells")

    def parts(self, levels: Mapping[str, str]) -> dict[str, FloatArray]:
        """The difference of a cell to the first one by factor: factor -> weights [C]; they add up to the difference.

        A factor's part is the mean of what its change does to the first cell, and of what it does last of all. In a
        model of two-way interactions that is its mean over all orders of the changes (Shapley 1953).
        """
        _, matrix, fit = self._model
        first = self.cell({})

        def fitted(cell: Cell) -> FloatArray:
            if cell not in self.possible:
                raise NotAccepted(f"takes the difference apart by a cell that is excluded: {self.title(cell)}")
            return np.asarray(matrix[self.possible.index(cell)] @ fit)

        last, parts = self.cell(levels), {}
        for index, factor in enumerate(self.names):
            if last[index]:
                alone, without = _with(first, index, last[index]), _with(last, index, 0)
                parts[factor] = (fitted(alone) - fitted(first) + fitted(last) - fitted(without)) / 2.0
        return parts

    def label(self, term: Term) -> str:
        """The effect in words: ``ratio sequence``, ``ratio sequence × clip none``."""
        return " × ".join(f"{self.names[factor]} {self.factors[self.names[factor]][level]}" for factor, level in term)

    def title(self, cell: Cell) -> str:
        """The levels of a cell but for the first ones."""
        term = tuple((factor, level) for factor, level in enumerate(cell) if level)
        return ", ".join(self.label((part,)) for part in term) or "first levels"

    def describe(self) -> list[str]:
        """The design in sentences: its size, its fraction, what is excluded and what is aliased with what."""
        every = math.prod(map(len, self.factors.values()))
        sizes = [f"{factor} ({', '.join(of)})" for factor, of in self.factors.items()]
        lines = [f"{len(self.cells)} of {every} cells of {'; '.join(sizes)}."]
        if left_out := every - len(self.possible):
            known = [[f"{name} {levels[name]}" for name in self.names if name in levels] for levels in self.excluded]
            pairs = "; ".join(map(" with ".join, known))
            lines.append(f"Excluded, as no method can have it: {pairs} ({left_out} cells).")
        generated = "; ".join(f"{factor} = {' · '.join(of)}" for factor, of in self.generators.items())
        relation = " = ".join(" · ".join(sorted(word, key=self.names.index)) for word in self.words)
        fraction = f"Generators: {generated}. I = {relation}: resolution {self.resolution}."
        lines.append(fraction if self.words else "All possible cells: no fraction.")
        main = sum(len(effect.term) == 1 for effect in self.effects)
        lines.append(f"{main} main effects and {len(self.effects) - main} two-way interactions are estimated.")
        together = [(effect.term, *(term for term in effect.aliases if len(term) < 3)) for effect in self.effects]
        chains = "; ".join(" = ".join(map(self.label, terms)) for terms in together if len(terms) > 1)
        aliased = f"Aliased, only their sum is known: {chains}."
        lines.append(aliased if chains else "None of them is aliased with another one.")
        if higher := sum(any(len(term) == 3 for term in effect.aliases) for effect in self.effects):
            lines.append(
                f"Aliased with three-way interactions, which are taken to be 0: {higher}; the table names them."
            )
        return lines


def _with(cell: Cell, factor: int, level: int) -> Cell:
    return (*cell[:factor], level, *cell[factor + 1 :])


def _is_multiple(column: FloatArray, other: FloatArray) -> bool:
    """Return whether a column is another one times a number."""
    scale = (column @ other) / (other @ other)
    return bool(np.allclose(column, scale * other, atol=_ZERO))
