"""Claim 9: some objectives move what they have no reason to move, and a high learning rate makes it worse."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, PreTrainedModel

from evals.core.errors import UserError
from evals.core.run_spec import LocalRun
from evals.figures.style import MARKERS, new_figure
from rlvr.diagnostics.drift import mean_drift
from rlvr.diagnostics.interval import Direction, Measurement, measure
from rlvr.diagnostics.phenomena.drawing import SERIES, draw_means, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.run_ends import RunMetrics, read_run
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.probes import log_probs_of

RANDOM, PRESERVED = "random mini-batches", "query-preserved"
STABLE, UNSTABLE = "stable rate", "unstable rate"
_STEPS_OF_A_POINT = 5
_SMALLEST_DRIFT = 1e-9  # nats; a run that moved nothing
_UNITS = {
    "drift": "log2 of the mean |change of log-odds| of format tokens",
    "reward": "reward at the end",
    "entropy": "entropy at the end, nats",
}
_COLUMNS = ["run", "objective", "batching", "rate", "seed", "step", "quantity", "value"]


@dataclass(frozen=True)
class Contrast:
    """A claim about runs that differ in one thing.

    Attributes:
        statement: of the claim.
        quantity: that is compared, a key of the units above.
        column: what the runs differ in.
        treated: its value on one side.
        control: and on the other.
        direction: the side of 0 that treated less control is claimed to be on.
        where: other columns' values that both sides have.
    """

    statement: str
    quantity: str
    column: str
    treated: str
    control: str
    direction: Direction
    where: Mapping[str, str]


def contrasts(objectives: Sequence[str]) -> Iterator[Contrast]:
    """What is claimed of runs of these objectives, known by the first words of their names."""
    named = {objective.split("_")[0]: objective for objective in objectives}
    dfpo = named.get("dfpo")
    for rate in (STABLE, UNSTABLE):
        at = {"rate": rate}
        for other in ("grpo", "gspo"):
            if dfpo and other in named:
                sentence = f"DFPO drifts less than {other.upper()} ({rate})"
                yield Contrast(sentence, "drift", "objective", dfpo, named[other], "below", at)
        if dfpo and "grpo" in named:
            sentence = f"DFPO ends with more reward than GRPO ({rate})"
            yield Contrast(sentence, "reward", "objective", dfpo, named["grpo"], "above", at)
        yield Contrast(
            f"Query-preserved batches drift less ({rate})", "drift", "batching", PRESERVED, RANDOM, "below", at
        )
        sentence = f"Query-preserved batches end with more reward ({rate})"
        yield Contrast(sentence, "reward", "batching", PRESERVED, RANDOM, "above", at)
    yield Contrast("A higher learning rate drifts more", "drift", "rate", UNSTABLE, STABLE, "above", {})
    yield Contrast("A higher learning rate leaves less entropy", "entropy", "rate", UNSTABLE, STABLE, "below", {})
    yield Contrast("A higher learning rate ends with less reward", "reward", "rate", UNSTABLE, STABLE, "below", {})


def find(sources: Sources) -> Findings:
    """Reward, entropy and drift of format tokens of the runs that are compared.

    Raises:
        UserError: a run's files are missing.
    """
    if not sources.runs:
        raise UserError("learning_tax: no runs to compare; name methods in diagnostics.compared")
    found = {name: read_run(sources.results / "runs" / name) for name in sources.runs}
    whole = beginnings_of(found)
    conditions = conditions_of({name: found[name] for name in whole.values()})
    reference = sources.moments[0]
    chosen = torch.from_numpy((reference.rows["token_class"] == "format").to_numpy())
    temperature = reference.run.training.temperature
    before = log_probs_of(_model(reference.run.base / "checkpoint"), reference.tokens, temperature)
    rows: list[dict[str, Any]] = []
    for name, run in found.items():
        after = log_probs_of(_model(sources.results / "runs" / name / "checkpoint"), reference.tokens, temperature)
        drift = math.log2(max(mean_drift(before, after, chosen), _SMALLEST_DRIFT))
        identity = {"run": whole[name], **conditions[whole[name]], "seed": run.run.seed}
        last = len(run.metrics)
        rows.append({**identity, "step": last, "quantity": "drift curve", "value": drift})
        if name != whole[name]:
            continue
        ends = {
            "drift": drift,
            "reward": run.end("reward_mean"),
            "entropy": run.end("entropy"),
            "entropy at the start": float(run.metrics["entropy"].iloc[0]),
        }
        rows += [{**identity, "step": last, "quantity": key, "value": value} for key, value in ends.items()]
        for quantity, column in (("reward curve", "reward_mean"), ("entropy curve", "entropy")):
            pairs = zip(run.metrics["step"], run.metrics[column], strict=True)
            rows += [{**identity, "step": int(s), "quantity": quantity, "value": float(v)} for s, v in pairs]
    series = pd.DataFrame(rows, columns=_COLUMNS)
    return Findings("Learning tax, drift, entropy collapse", _METHOD, measurements(series), series)


def beginnings_of(runs: Mapping[str, RunMetrics]) -> dict[str, str]:
    """Run -> the longest run that it is the beginning of: itself, or one with nothing but more steps.

    Nothing in a run depends on its number of steps, so the checkpoint of a shorter one is the longer one's policy then.
    """
    longest: dict[str, str] = {}
    for name, each in sorted(runs.items(), key=lambda item: item[1].run.training.steps):
        longest[_without_length(each.run)] = name
    return {name: longest[_without_length(each.run)] for name, each in runs.items()}


def _without_length(run: LocalRun) -> str:
    training = {key: value for key, value in run.training.to_json().items() if key != "steps"}
    rest = [run.model, str(run.base), str(run.problems), run.prompt, run.method, run.seed, training]
    return json.dumps(rest, sort_keys=True)


def conditions_of(runs: Mapping[str, RunMetrics]) -> dict[str, dict[str, str]]:
    """Run -> its objective, batching and rate, read off its settings.

    Runs whose methods differ in the assignment to mini-batches alone are of one objective, named by what their methods'
    names begin with; the lowest learning rate is the stable one.
    """
    lowest = min(each.run.training.learning_rate for each in runs.values())
    keys = {name: _without_assignment(each.run.method) for name, each in runs.items()}
    members: dict[str, set[str]] = {}
    for name, key in keys.items():
        members.setdefault(key, set()).add(runs[name].run.method_name)
    found = {}
    for name, each in runs.items():
        preserved = each.run.method["batching"]["assignment"]["name"] == "query_preserved"
        found[name] = {
            "objective": _common_words(sorted(members[keys[name]])),
            "batching": PRESERVED if preserved else RANDOM,
            "rate": UNSTABLE if each.run.training.learning_rate > lowest else STABLE,
        }
    return found


def _without_assignment(method: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in method.items() if key != "version"}
    return json.dumps({**kept, "batching": kept["batching"]["selection"]}, sort_keys=True)


def _common_words(names: Sequence[str]) -> str:
    """The words that names begin with alike, or the first name if there are none."""
    columns = zip(*(name.split("_") for name in names), strict=False)
    return "_".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, columns)) or names[0]


def _model(checkpoint: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return model


def measurements(series: pd.DataFrame) -> list[Measurement]:
    """Of every condition how far entropy fell, then the contrasts that there are runs for."""
    ends = series[~series["quantity"].str.endswith("curve")]
    found = []
    for (objective, batching, rate), rows in ends.groupby(["objective", "batching", "rate"], sort=False):
        values = rows.pivot(index="seed", columns="quantity", values="value")
        found.append(
            measure(
                f"Entropy falls ({objective}, {batching}, {rate})",
                "entropy at the end less at the start, nats",
                (values["entropy"] - values["entropy at the start"]).tolist(),
                "seeds",
                direction="below",
            )
        )
        found += _over_training(series, str(objective), str(batching), str(rate))
    objectives = list(dict.fromkeys(series["objective"]))
    return found + [each for contrast in contrasts(objectives) for each in _contrasted(ends, contrast)]


def _over_training(series: pd.DataFrame, objective: str, batching: str, rate: str) -> list[Measurement]:
    """How drift goes on after the first policy that is there; nothing where only the last one is."""
    rows = series[series["quantity"] == "drift curve"]
    for column, value in (("objective", objective), ("batching", batching), ("rate", rate)):
        rows = rows[rows[column] == value]
    table = rows.pivot(index="seed", columns="step", values="value")
    if table.shape[1] < 2:
        return []
    first, last = table.columns.min(), table.columns.max()
    quantity = f"{_UNITS['drift']}: after step {last} less after step {first} ({objective}, {batching}, {rate})"
    return [measure("", quantity, (table[last] - table[first]).tolist(), "seeds", direction=None)]


def _contrasted(ends: pd.DataFrame, contrast: Contrast) -> list[Measurement]:
    """The mean difference over pairs of runs that share everything else; nothing where there are no such pairs."""
    rows = ends[ends["quantity"] == contrast.quantity]
    for column, value in contrast.where.items():
        rows = rows[rows[column] == value]
    shared = [name for name in ("objective", "batching", "rate", "seed") if name != contrast.column]
    table = rows.pivot(index=shared, columns=contrast.column, values="value")
    if contrast.treated not in table or contrast.control not in table:
        return []
    differences = (table[contrast.treated] - table[contrast.control]).dropna().tolist()
    quantity = f"{_UNITS[contrast.quantity]}: {contrast.treated} less {contrast.control}"
    return [measure(contrast.statement, quantity, differences, "pairs of runs", direction=contrast.direction)]


def draw(findings: Findings) -> Figure:
    """Reward and entropy over training at each learning rate, and where format tokens ended."""
    series = findings.series
    figure = new_figure(12.5, 6.4)
    rates = [rate for rate in (STABLE, UNSTABLE) if rate in set(series["rate"])]
    curves = series[series["quantity"] == "drift curve"]
    along = [rate for rate in rates if curves[curves["rate"] == rate]["step"].nunique() > 1]
    # A rate that has a curve alone has the whole column.
    curve_of = {rate: [f"curve {rate if rate in along else along[0]}"] if along else [] for rate in rates}
    panels = [[f"reward {rate}", f"entropy {rate}", *curve_of[rate], "drift"] for rate in rates]
    widths = [1.0] * (len(panels[0]) - 1) + [1.1]
    axes = figure.subplot_mosaic(panels, width_ratios=widths)  # type: ignore[arg-type]
    objectives = list(dict.fromkeys(series["objective"]))
    labels: list[str] = []
    for (objective, batching, rate), own in series.groupby(["objective", "batching", "rate"], sort=False):
        place = objectives.index(objective)
        colour, marker = SERIES[place % len(SERIES)], MARKERS[place % len(MARKERS)]
        line = "--" if batching == PRESERVED else "-"
        label = f"{objective}, {batching}"
        for quantity in ("reward", "entropy"):
            rows = own[own["quantity"] == f"{quantity} curve"]
            # The mean of five steps: every method has the same problems in a step, and some steps have hard ones.
            rows = rows.assign(step=-(-rows["step"] // _STEPS_OF_A_POINT) * _STEPS_OF_A_POINT)
            draw_means(axes[f"{quantity} {rate}"], rows, "step", "value", colour, label, marker, line, band=False)
        rows = own[own["quantity"] == "drift curve"]
        if rows["step"].nunique() > 1:
            draw_means(axes[f"curve {rate}"], rows, "step", "value", colour, label, marker, line, band=False)
        _draw_drift(axes["drift"], own, len(labels), colour, marker)
        labels.append(f"{label},\n{rate}")
    for rate in rates:
        axes[f"reward {rate}"].set(title=f"Reward, {rate}", xlabel="rollout step (means of five)", ylabel="mean reward")
        axes[f"entropy {rate}"].set(
            title=f"Entropy, {rate}", xlabel="rollout step (means of five)", ylabel="nats", ylim=(0, None)
        )
    for rate in along:
        axes[f"curve {rate}"].set(
            title=f"Drift, {rate}", xlabel="rollout step", ylabel="mean |log-odds change| (nats, log scale)"
        )
        axes[f"curve {rate}"].set_xlim(0, None)
        axes[f"curve {rate}"].yaxis.set_major_formatter(lambda value, _: f"{2**value:.2g}")
    axes[f"reward {rates[0]}"].legend(fontsize=6.5, loc="lower right", handlelength=3.2)
    drift = axes["drift"]
    drift.set_yticks(range(len(labels)), labels, fontsize=6.5)
    drift.set_ylim(len(labels) - 0.5, -0.5)
    drift.xaxis.set_major_formatter(lambda value, _: f"{2**value:.2g}")
    drift.set(title="Drift of format tokens at the end", xlabel="mean |log-odds change| (nats, log scale)")
    ends = series[series["quantity"] == "drift"].groupby(["objective", "batching", "rate"])["value"].mean()
    ordered = ends.reset_index().sort_values("value").to_dict("records")
    least, most = (
        f"{row['objective']}, {row['batching']}, {row['rate']} ({2 ** row['value']:.2f} nats)"
        for row in (ordered[0], ordered[-1])
    )
    finding = f"Format tokens drift least under {least}, most under {most}; lines are means over seeds"
    return finish(figure, finding, findings.measurements)


def _draw_drift(axes: Axes, own: pd.DataFrame, place: int, colour: str, marker: str) -> None:
    """Mean over seeds with its interval, and the seeds: the interval of three is wide."""
    values = own[own["quantity"] == "drift"]["value"].tolist()
    each = measure("", "", values, "seeds")
    axes.hlines(place, each.low, each.high, color=colour, linewidth=1.2, alpha=0.6)
    axes.plot(values, [place] * len(values), "|", color=colour, markersize=9)
    axes.plot(each.estimate, place, marker, color=colour, markersize=5)


_METHOD = (
    "Of every compared run: mean reward and entropy over the last ten rollout steps (half of a shorter run), and how "
    "far the log-odds of format tokens (`=`, line ends, the box and its end) moved between base model and final "
    "checkpoint, on the rollouts of the first step looked into. A run that differs from another one in its number of "
    "steps alone is the beginning of it, and its checkpoint is a point of that one's drift over training. A contrast "
    "is the mean over all pairs of runs that differ in one thing and share objective, batching, learning rate and seed "
    "otherwise: a seed gives both runs of a pair the same order of problems and nothing else. Its interval is over "
    "pairs, so it holds the spread between objectives too; drifts are compared by their logarithm. With three seeds a "
    "condition only large differences can be told apart."
)
