"""Claim 8 on any two checkpoints: what training did to the tokens of given responses."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from evals.figures.style import new_figure
from rlvr.diagnostics.phenomena.drawing import finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.phenomena.token_directions import (
    MOVED,
    direction_measurements,
    direction_rows,
    draw_directions,
    log_prob_difference,
)


def find(sources: Sources) -> Findings:
    """Tokens of a comparison, and beside them those of the base model's own responses if they were compared too.

    Raises:
        UserError: a table is missing or changed, or the two are of other checkpoints.
    """
    found = sources.compared_tokens()
    tokens = {name: frame.assign(difference=log_prob_difference(frame)) for name, frame in found.items()}
    series = pd.DataFrame(direction_rows(tokens))
    return Findings("Direction of the update", _METHOD, direction_measurements(series), series)


def draw(findings: Findings) -> Figure:
    """Log-prob difference, KL and entropy, and how far tokens of each probability moved."""
    figure = new_figure(11.0, 3.5)
    histogram, spread, relation = figure.subplots(1, 3)
    draw_directions(histogram, spread, relation, findings.series)
    moved, correlation = findings.measurements[:2]
    finding = (
        f"{moved.estimate:.0%} of the tokens moved by more than {MOVED:g} nats; how far a token moved and its "
        f"probability have a rank correlation of {correlation.estimate:.2f}"
    )
    return finish(figure, finding, findings.measurements)


_METHOD = (
    "Two checkpoints read the same responses and gave every token a log-probability, an entropy and the KL divergence "
    "between their distributions; where the base model's own responses were compared too, both are pooled, and what "
    "tells them apart is measured. The interval is over problems: it holds the spread between problems and none "
    "between trainings, of which a pair is one. Selective replacement, which needs both models to sample, is not part "
    "of this; `rlvr-bench decode sweep` makes its curves for the same pair."
)
