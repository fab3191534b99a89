"""Claim 3: what boosts a token of a punished rollout is, above all, uncertain occurrences of the same token."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from evals.core.random import generator_for
from evals.figures.style import new_figure
from rlvr.diagnostics.coefficients import rank_correlation
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.masking import SETS, MaskSetting, coupling_strength, full_effects, head_effects, mask_sets
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.phenomena.drawing import SERIES, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.probes import head_view, score_gradient

SETTING = MaskSetting()
_CANDIDATES, _FULL_CANDIDATES = 60, 10
_UNIT = "updates (run, step) with candidates"
_LINEAR_BELOW = 1e-3  # nats; effects are drawn on a scale that is logarithmic beyond
_MODES = ("head only", "full parameters")


def find(sources: Sources) -> Findings:
    """E_j(M) of the four kinds of set under updates of the head and of all parameters, and the dose beside it."""
    series = pd.DataFrame([row for moment in sources.moments for row in _rows(moment, sources)], columns=_COLUMNS)
    return Findings("Masking effect", _METHOD, _measurements(series), series)


_COLUMNS = ["unit", "step", "mode", "set", "candidate", "effect", "dose"]


def _rows(moment: Moment, sources: Sources) -> list[dict[str, Any]]:
    candidates = _candidates(moment)
    if not candidates:
        return []
    signal = moment.signal / len(moment.signal)
    temperature = moment.run.training.temperature
    gradient = score_gradient(moment.model, moment.tokens, temperature, signal)
    step_size = sources.displacements[moment.unit].step_size
    view = head_view(moment)
    few = dict(list(candidates.items())[:_FULL_CANDIDATES])
    effects = {
        "head only": head_effects(view, signal, step_size, candidates),
        "full parameters": full_effects(moment, gradient, signal, step_size, few),
    }
    return [
        {
            "unit": moment.unit,
            "step": moment.step,
            "mode": mode,
            "set": name,
            "candidate": candidate,
            "effect": effect,
            "dose": coupling_strength(view, signal, step_size, candidate, candidates[candidate][name]),
        }
        for mode, found in effects.items()
        for candidate, sets in found.items()
        for name, effect in sets.items()
    ]


def _candidates(moment: Moment) -> dict[int, dict[str, torch.Tensor]]:
    """Low-confidence tokens of punished rollouts, with the sets of tokens of rewarded rollouts that are masked."""
    generator = generator_for("masking", moment.unit)
    probability = moment.column("old_log_prob").exp()
    sides = moment.column("side")
    pool = (sides > 0).nonzero()[:, 0]
    uncertain = ((sides < 0) & (probability < SETTING.low_confidence)).nonzero()[:, 0]
    found: dict[int, dict[str, torch.Tensor]] = {}
    for candidate in uncertain[torch.randperm(len(uncertain), generator=generator)].tolist():
        sets = mask_sets(candidate, pool, moment.token_ids, probability, SETTING, generator)
        if sets is not None:
            found[candidate] = sets
        if len(found) == _CANDIDATES:
            break
    return found


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    rates = series.assign(boosted=series["effect"] > 0).groupby(["mode", "set", "unit"])["boosted"].mean()
    boosts = series.groupby(["mode", "set", "unit"])["effect"].mean()

    def of(values: pd.Series, mode: str, name: str) -> pd.Series:
        found: pd.Series = (
            values.xs((mode, name), level=("mode", "set")) if (mode, name) in values.index else values[:0]
        )
        return found

    found = []
    for mode in _MODES:
        both, same, chance = (of(rates, mode, name) for name in ("both", "same token", "random"))
        found += [
            measure(
                f"Uncertain occurrences of the same token boost a token more often than random ones do ({mode})",
                "boost rate, both less random",
                (both - chance).tolist(),
                _UNIT,
            ),
            measure(
                f"Occurrences of the same token do so at any confidence ({mode})",
                "boost rate, same token less random",
                (same - chance).tolist(),
                _UNIT,
            ),
            measure(
                f"They boost it by more ({mode})",
                "mean boost in nats, both less random",
                (of(boosts, mode, "both") - of(boosts, mode, "random")).tolist(),
                _UNIT,
            ),
        ]
    doses = [
        rank_correlation(group["dose"].to_numpy(), group["effect"].to_numpy())
        for _, group in series[series["mode"] == "full parameters"].groupby("unit")
    ]
    found.append(
        measure(
            "The stronger the coupling, the larger the boost under the full update",
            "rank correlation of dose (kernel) and effect, full parameters",
            doses,
            _UNIT,
        )
    )
    for mode in _MODES:
        for name in SETS:
            rate = of(rates, mode, name).tolist()
            found.append(measure("", f"boost rate, {name}, {mode}", rate, _UNIT, null=0.5, direction=None))
    return found


def draw(findings: Findings) -> Figure:
    """Boost rate by set and mode, and effect against dose."""
    figure = new_figure(8.5, 3.2)
    rate_axes, dose_axes = figure.subplots(1, 2)
    rows = {each.quantity: each for each in findings.measurements}
    for mode, colour, marker, shift in ((_MODES[0], SERIES[0], "o", -0.08), (_MODES[1], SERIES[1], "s", 0.08)):
        for place, name in enumerate(SETS):
            each = rows[f"boost rate, {name}, {mode}"]
            rate_axes.vlines(place + shift, each.low, each.high, color=colour, linewidth=1.8)
            rate_axes.plot(
                place + shift, each.estimate, marker, color=colour, markersize=5, label=mode if place == 0 else None
            )
        of_mode = findings.series[findings.series["mode"] == mode]
        dose_axes.plot(of_mode["dose"], of_mode["effect"], marker, color=colour, markersize=2, alpha=0.5, label=mode)
    rate_axes.axhline(0.5, color="#9a9a9a", linewidth=0.8)
    rate_axes.set_xticks(range(len(SETS)), [name.replace(" ", "\n") for name in SETS])
    rate_axes.set(title="Boost rate by what is masked", ylabel="fraction of candidates boosted", ylim=(-0.03, 1.05))
    rate_axes.legend(fontsize=7)
    dose_axes.set_xscale("symlog", linthresh=_LINEAR_BELOW)
    dose_axes.set_yscale("symlog", linthresh=_LINEAR_BELOW)
    for axis in (dose_axes.xaxis, dose_axes.yaxis):
        axis.set_major_locator(FixedLocator([-0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1]))
        axis.set_major_formatter("{x:g}")
    dose_axes.set(title="Dose and response", xlabel="coupling strength (nats)", ylabel="effect E(M) (nats)")
    dose_axes.legend(fontsize=7)
    both, chance = rows["boost rate, both, full parameters"], rows["boost rate, random, full parameters"]
    finding = (
        f"Masked sets of uncertain same tokens boosted {both.estimate:.0%} of the candidates under the full update, "
        f"random sets {chance.estimate:.0%}"
    )
    return finish(figure, finding, findings.measurements)


_METHOD = (
    f"Candidates are tokens of punished rollouts with probability below {SETTING.low_confidence:g} (at most "
    f"{_CANDIDATES} an update, {_FULL_CANDIDATES} of them for full-parameter updates). From the loss of one SGD step "
    f"{SETTING.size} tokens of rewarded rollouts were taken out: random ones, the candidate's own token at any "
    "confidence, low-confidence ones of any token, or both. The effect is the candidate's log-probability after the "
    "full step less that after the masked step, so a positive one means that the masked tokens boosted it. Candidates "
    "for which a set could not be filled are left out, and updates without candidates with them; which tokens the "
    "paper took as candidates is not known. Here nearly all low-confidence tokens are results, digits that compete "
    "with one another."
)
