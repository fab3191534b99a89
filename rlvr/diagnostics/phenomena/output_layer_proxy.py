"""Claim 4: the update of the output layer alone moves most tokens the way that the full update does."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from evals.figures.style import new_figure
from rlvr.diagnostics.agreement import sign_agreement
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.phenomena.drawing import SERIES, draw_means, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources

THRESHOLD = 1e-5
_UNIT = "updates (run, step)"
_PAIRS = ("head against full SGD", "first order against full SGD", "head against as trained")


def find(sources: Sources) -> Findings:
    """Signs of displacements under the head-only, the full-parameter and the run's own update."""
    series = pd.DataFrame([row for moment in sources.moments for row in _rows(moment, sources)])
    return Findings("Output-layer proxy", _METHOD, _measurements(series), series)


def _rows(moment: Moment, sources: Sources) -> list[dict[str, Any]]:
    found = sources.displacements[moment.unit].by
    head, full, first_order, trained = (found[name] for name in ("head_only", "joint", "first_order", "as_trained"))
    rows = []
    for name, pair in zip(_PAIRS, ((head, full), (first_order, full), (head, trained)), strict=True):
        agreement = sign_agreement(*pair, THRESHOLD)
        rows.append(
            {
                "unit": moment.unit,
                "step": moment.step,
                "pair": name,
                "observed": agreement.observed,
                "expected": agreement.expected,
                "tokens": agreement.tokens,
            }
        )
    return rows


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    found = []
    for pair in _PAIRS:
        rows = series[series["pair"] == pair]
        claimed = pair == _PAIRS[0]
        found.append(
            measure(
                "The output layer alone tells the direction that most tokens move in" if claimed else "",
                f"sign agreement, {pair}",
                rows["observed"].tolist(),
                _UNIT,
                null=0.5,
                direction="above" if claimed else None,
            )
        )
        found.append(
            measure(
                "It tells more than the shares of boosted tokens do" if claimed else "",
                f"sign agreement less chance agreement, {pair}",
                (rows["observed"] - rows["expected"]).tolist(),
                _UNIT,
                direction="above" if claimed else None,
            )
        )
    return found


def draw(findings: Findings) -> Figure:
    """Agreement over training, with what chance would give."""
    figure = new_figure(6.0, 3.4)
    axes = figure.subplots()
    for pair, colour in zip(_PAIRS, SERIES, strict=False):
        rows = findings.series[findings.series["pair"] == pair]
        draw_means(axes, rows, "step", "observed", colour, pair)
        draw_means(axes, rows, "step", "expected", colour, f"{pair}: by chance", "s", ":")
    axes.set(xlabel="rollout step", ylabel="fraction of moved tokens", ylim=(0, 1))
    axes.legend(fontsize=7)
    observed, excess = findings.measurements[:2]
    finding = (
        f"Output layer alone and full update agree on the direction of {observed.estimate:.0%} of the tokens, "
        f"{100 * excess.estimate:+.0f} points beside chance"
    )
    return finish(figure, finding, findings.measurements[:2])


_METHOD = (
    "On the rollouts and the policy of each kept step, one step of plain SGD was made on all parameters, and one of "
    "the same size on the language-model head alone (the embedding, tied to it in this model, stayed). Counted are "
    f"tokens that both move by more than {THRESHOLD:g} nats. Chance agreement is that of two updates with the same "
    "shares of boosted tokens. `First order` is the sum over the coupling kernel. The run's own update is AdamW with "
    "its moments over all mini-batches, so it differs in more than the layers that it moves."
)
