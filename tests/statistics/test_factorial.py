"""Factorial designs: their effects and aliases against definitions, and what simulated studies say."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from evals.core.config.methods import Factorial
from evals.core.errors import NotAccepted
from evals.core.yaml_file import read_yaml
from evals.statistics.factorial import Cell, Design, Term
from evals.statistics.resampling import holm
from tests.statistics.arms import estimate_combination

ROOT = Path(__file__).parents[2]
PLANNED = Design.of(Factorial.parse(read_yaml(ROOT / "config/factorial.yaml")["factorial"], "factorial"))
"""The design of config/factorial.yaml: six factors, one of three levels, with cells that cannot be."""
HALF = Design({name: ["low", "high"] for name in "ABCDE"}, {"E": ["A", "B", "C", "D"]})
SMALL = Design({name: ["low", "high"] for name in "ABC"}, {"C": ["A", "B"]})
PROBLEMS, SAMPLES, SEEDS, STUDIES = 40, 64, 2, 100


def effect_by_definition(design: Design, term: Term, score: dict[Cell, float]) -> float:
    """The mean of differences, or of differences of differences, over all possible cells."""
    values = []
    for cell in score:
        corners = {}
        for raised in product((0, 1), repeat=len(term)):
            corner = list(cell)
            for (factor, level), up in zip(term, raised, strict=True):
                corner[factor] = level if up else 0
            corners[raised] = tuple(corner)
        if all(cell[factor] == 0 for factor, _ in term) and all(corner in score for corner in corners.values()):
            values.append(sum((-1) ** (len(term) - sum(raised)) * score[corner] for raised, corner in corners.items()))
    return float(np.mean(values))


def additive(design: Design, terms: list[Term], generator: np.random.Generator) -> dict[Cell, float]:
    """Scores of all possible cells, of random numbers for terms that a cell has all levels of."""
    sizes = {term: generator.normal() for term in terms}
    return {
        cell: sum(size for term, size in sizes.items() if all(cell[factor] == level for factor, level in term))
        for cell in design.possible
    }


@pytest.mark.parametrize("design", [PLANNED, HALF, Design({"A": ["a", "b", "c"], "B": ["a", "b"]})])
def test_main_effects_and_interactions_are_recovered_whatever_they_are(design: Design) -> None:
    score = additive(design, [*design.terms(1), *design.terms(2)], np.random.default_rng(1))
    observed = np.array([score[cell] for cell in design.cells])
    assert [effect.term for effect in design.effects] == [*design.terms(1), *design.terms(2)]
    for effect in design.effects:
        expected = effect_by_definition(design, effect.term, score)
        assert effect.weights @ observed == pytest.approx(expected, abs=1e-9)
        assert effect.weights.sum() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("design", [PLANNED, HALF, SMALL])
def test_an_effect_shifts_the_estimates_that_it_is_printed_as_an_alias_of_and_no_others(design: Design) -> None:
    """Planted is one interaction alone, without a part in effects of fewer factors."""
    sizes = [len(levels) for levels in design.factors.values()]
    for planted in [*design.terms(2), *design.terms(3)]:
        score = {
            cell: float(np.prod([(cell[factor] == level) - 1 / sizes[factor] for factor, level in planted]))
            for cell in design.possible
        }
        observed = np.array([score[cell] for cell in design.cells])
        shifted = {
            effect.term
            for effect in design.effects
            if abs(effect.weights @ observed - effect_by_definition(design, effect.term, score)) > 1e-9
        }
        assert shifted == {effect.term for effect in design.effects if planted in effect.aliases}


def test_a_fraction_has_the_resolution_and_the_relation_of_its_generators() -> None:
    assert (len(HALF.cells), HALF.resolution, HALF.words) == (16, 5, [frozenset("ABCDE")])
    quarter = Design({name: ["low", "high"] for name in "ABCDEF"}, {"E": ["A", "B", "C"], "F": ["B", "C", "D"]})
    assert quarter.resolution == 4 and set(quarter.words) == {*map(frozenset, ("ABCE", "BCDF", "ADEF"))}
    assert "A high × B high = C high × E high" in " ".join(quarter.describe())
    assert SMALL.resolution == 3 and "C high = A high × B high" in " ".join(SMALL.describe())
    assert all(np.allclose(abs(effect.weights), 1 / 8) for effect in HALF.effects[:5])
    assert len(PLANNED.cells) == 40 and "None of them is aliased with another one." in PLANNED.describe()


def test_cells_that_do_not_tell_effects_apart_are_refused() -> None:
    design = Design({"A": ["a", "b"], "B": ["a", "b"]}, excluded=[{"A": "b", "B": "b"}, {"A": "b", "B": "a"}])
    with pytest.raises(NotAccepted, match="A b"):
        assert len(design.effects)


def test_the_parts_of_a_difference_add_up_to_it() -> None:
    score = additive(PLANNED, [*PLANNED.terms(1), *PLANNED.terms(2)], np.random.default_rng(3))
    observed = np.array([score[cell] for cell in PLANNED.cells])
    levels = {"ratio": "sequence", "aggregation": "responses", "batching": "prompts"}
    parts = PLANNED.parts(levels)
    whole = score[PLANNED.cell(levels)] - score[PLANNED.cell({})]
    assert list(parts) == list(levels) and sum(parts.values()) @ observed == pytest.approx(whole)
    orders = []  # the part of the ratio over all six orders
    for before in ({}, {}, {"aggregation"}, {"batching"}, {"aggregation", "batching"}, {"aggregation", "batching"}):
        given = {factor: level for factor, level in levels.items() if factor in before}
        orders.append(score[PLANNED.cell({**given, "ratio": "sequence"})] - score[PLANNED.cell(given)])
    assert parts["ratio"] @ observed == pytest.approx(np.mean(orders))
    with pytest.raises(NotAccepted, match="excluded"):
        PLANNED.parts({"ratio": "sequence", "clip": "probability"})


def simulate(planted: dict[Term, float], key: int) -> np.ndarray:
    """Corrected p-values [E, R] of studies of the planned design, of two seeds a cell.

    Seeds vary by 1 to 2 points by the cell, and by one point together; problems are of any difficulty.
    """
    generator = np.random.default_rng(key)
    difficulty = generator.beta(2.0, 2.0, (STUDIES, 1, PROBLEMS)) * 0.6 + 0.2
    blocks = 0.01 * generator.standard_normal((STUDIES, SEEDS, 1))
    cells = []
    for cell in PLANNED.cells:
        gain = sum(size for term, size in planted.items() if all(cell[factor] == level for factor, level in term))
        seeds = generator.uniform(0.01, 0.02) * generator.standard_normal((STUDIES, SEEDS, 1))
        cells.append([generator.binomial(SAMPLES, np.clip(difficulty + blocks + seeds + gain, 0, 1)) / SAMPLES])
    options = {"samples": [[SAMPLES]] * len(cells), "seeds_are_blocks": True}
    p_values = [estimate_combination(cells, effect.weights, **options).p_values() for effect in PLANNED.effects]
    return holm(np.stack(p_values, axis=-1)).T


def test_blocks_leave_the_degrees_of_freedom_of_a_two_way_layout_and_need_a_contrast() -> None:
    """Cells whose seeds vary alike: three cells of four seeds, of which a seed's mean and a cell's mean are taken."""
    seeds = np.array([[-1.0, 1.0, -1.0, 1.0], [1.0, -1.0, -1.0, 1.0], [-1.0, -1.0, 1.0, 1.0]]) / 100.0
    cells = [[0.5 + of_cell[:, None] + np.zeros((4, 2))] for of_cell in seeds - seeds.mean(axis=0)]
    difference = estimate_combination(cells, (1.0, 1.0, -2.0), seeds_are_blocks=True)
    variances = np.array([4.0, 4.0, 16.0])  # in proportion; Satterthwaite's of parts with 3 * 2 / 3 degrees of freedom
    assert difference.seed_freedom == pytest.approx(variances.sum() ** 2 / (variances**2 / 2.0).sum())
    alike = estimate_combination(cells * 2, (1.0, 1.0, 1.0, -1.0, -1.0, -1.0), seeds_are_blocks=True)
    assert alike.seed_freedom == pytest.approx((6 - 1) * (4 - 1))
    with pytest.raises(ValueError, match="add up to 0, and not to 1"):
        estimate_combination(cells, (1.0, 1.0, -1.0), seeds_are_blocks=True)


def test_null_factorials_have_a_false_effect_in_at_most_5_per_cent() -> None:
    assert np.mean(simulate({}, 4).min(axis=0) <= 0.05) <= 0.05


def test_planted_effects_and_an_interaction_are_recovered_and_nothing_else() -> None:
    """The cell model counts from the first levels: an interaction is also half an effect on either main effect."""
    terms = [effect.term for effect in PLANNED.effects]
    ratio, aggregation, selection, batching = (
        (PLANNED.names.index(name), 1) for name in ("ratio", "aggregation", "selection", "batching")
    )
    planted = {(ratio,): -0.04, (selection,): 0.03, (aggregation, batching): 0.06}
    certain = simulate(planted, 5) <= 0.05
    true = [(ratio,), (selection,), (aggregation, batching), (aggregation,), (batching,)]
    power = {term: certain[terms.index(term)].mean() for term in true}
    assert min(power.values()) >= 0.9, power
    false = [row for term, row in zip(terms, certain, strict=True) if term not in true]
    assert np.any(false, axis=0).mean() <= 0.05
