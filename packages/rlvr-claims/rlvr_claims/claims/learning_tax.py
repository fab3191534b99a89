"""Claim 9: some objectives move what they have no reason to move, and a high learning rate makes it worse."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from evals.core.run_spec import LocalRun
from evals.figures.style import MARKERS
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.policy import load_policy
from rlvr_claims.claims.base import Direction
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, Measurement, beside, measure, select, unmeasured
from rlvr_claims.claims.inputs import Inputs, RunMetrics
from rlvr_claims.claims.panels import SERIES, Estimates, Layout, Means, Panel, panel
from rlvr_claims.probes import log_probs_of

RANDOM, PRESERVED = "random mini-batches", "query-preserved"
STABLE, UNSTABLE = "stable rate", "unstable rate"


def beginnings_of(runs: Mapping[str, RunMetrics]) -> dict[str, str]:
    """Map each run to the longest run that it is the beginning of: itself, or one with nothing but more steps.

    Nothing in a run depends on its number of steps, so the checkpoint of a shorter one is the longer one's policy then.
    Where the learning rate falls after other steps, a shorter run is another run.
    """

    def without_length(run: LocalRun) -> str:
        lengths = {"steps", "planned_steps", "learning_rate_decay_from"}
        training = [run.training.model_dump(mode="json", exclude=lengths), run.training.falling_steps]
        rest = [run.model, str(run.base), str(run.problems), run.prompt, run.method, run.seed, training]
        return json.dumps(rest, sort_keys=True)

    longest = {
        without_length(metrics.run): name
        for name, metrics in sorted(runs.items(), key=lambda item: item[1].run.training.steps)
    }
    return {name: longest[without_length(metrics.run)] for name, metrics in runs.items()}


def conditions_of(runs: Mapping[str, RunMetrics]) -> dict[str, dict[str, str]]:
    """Read each run's objective, batching and rate off its settings.

    Runs whose methods differ only in the assignment to mini-batches have one objective, named by the common beginning
    of their methods' names; the lowest learning rate is the stable one.
    """

    def without_assignment(method: Mapping[str, Any]) -> str:
        kept = {key: value for key, value in method.items() if key != "version"}
        return json.dumps({**kept, "batching": kept["batching"].get("selection")}, sort_keys=True)

    lowest = min(metrics.run.training.learning_rate for metrics in runs.values())
    members: dict[str, set[str]] = {}
    for metrics in runs.values():
        members.setdefault(without_assignment(metrics.run.method), set()).add(metrics.run.method_name)
    conditions = {}
    for name, metrics in runs.items():
        preserved = metrics.run.method["batching"]["assignment"]["name"] == "query_preserved"
        conditions[name] = {
            "objective": _common_words(sorted(members[without_assignment(metrics.run.method)])),
            "batching": PRESERVED if preserved else RANDOM,
            "rate": UNSTABLE if metrics.run.training.learning_rate > lowest else STABLE,
        }
    return conditions


def _common_words(names: Sequence[str]) -> str:
    """The words that all names begin with, or the first name if there are none."""
    columns = zip(*(name.split("_") for name in names), strict=False)
    return "_".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, columns)) or names[0]


_STEPS_OF_A_POINT = 5
_SMALLEST_DRIFT = 1e-9  # nats; a run that moved nothing
_UNITS = {
    "drift": "log2 of the mean |change of log-odds| of format tokens",
    "solution drift": "log2 of the mean |change of log-probability| of right responses",
    "solution change": "mean change of the log-probability of right responses, nats",
    "reward at equal tokens": "reward at equal tokens",
    "reward": "reward at the end",
    "entropy": "entropy at the end, nats",
}
_CONDITION = ["objective", "batching", "rate"]
_Contrasts = tuple[tuple[str, str, str, str, str, Direction], ...]
"""Statement, quantity, the column that differs, its two values, and the claimed side of no difference."""


class LearningTax(Claim):
    """Reward, entropy and drift of format tokens of the runs that are compared."""

    size = (12.5, 8.6)
    columns = ("run", *_CONDITION, "seed", "step", "tokens", "quantity", "value")

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        metrics_of = {name: inputs.read_run(name) for name in inputs.runs}
        whole = beginnings_of(metrics_of)
        # One that is as long as the whole training is its last policy once more: that training stopped early.
        lengths = {name: len(run.metrics) for name, run in metrics_of.items()}
        metrics_of = {
            name: run for name, run in metrics_of.items() if name == whole[name] or lengths[name] < lengths[whole[name]]
        }
        conditions = conditions_of({name: metrics_of[name] for name in whole.values()})
        reference = inputs.snapshots()[0]
        chosen = reference.of_class("format")
        right = reference.of_rollouts("reward") > 0
        base = load_policy(Checkpoint(reference.run.base / "checkpoint"), "cpu")
        before = log_probs_of(base, reference.tokens, reference.temperature)
        # Everything that is spent at equal tokens: as much as the run that spent least.
        affordable = min(float(metrics_of[name].metrics["tokens_generated"].sum()) for name in whole.values())
        for name, run in metrics_of.items():
            model = load_policy(Checkpoint(inputs.results / "runs" / name / "checkpoint"), "cpu")
            after = log_probs_of(model, reference.tokens, reference.temperature)
            drift = _log2(mean_drift(before, after, chosen))
            identity = {"run": whole[name], **conditions[whole[name]], "seed": run.run.seed}
            last, tokens = len(run.metrics), run.metrics["tokens_generated"].cumsum()
            values = [("drift curve", last, drift)]
            if name == whole[name]:
                changes = solution_changes(before, after, reference.rollout_of, right)
                ends = {"drift": drift, "reward": run.end("reward_mean"), "entropy": run.end("entropy")}
                ends["entropy at the start"] = float(run.metrics["entropy"].iloc[0])
                if len(changes):
                    ends["solution drift"] = _log2(float(changes.abs().mean()))
                    ends["solution change"] = float(changes.mean())
                ends["reward at equal tokens"] = reward_at(tokens, run.metrics["reward_mean"], affordable)
                values += [(quantity, last, value) for quantity, value in ends.items()]
                for curve, column in (("reward curve", "reward_mean"), ("entropy curve", "entropy")):
                    points = zip(run.metrics["step"], run.metrics[column], strict=True)
                    values += [(curve, int(step), float(value)) for step, value in points]
            for quantity, step, value in values:
                spent = float(tokens.iloc[step - 1])
                yield {**identity, "step": step, "tokens": spent, "quantity": quantity, "value": value}

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        """Measure the fall of entropy in every condition, then the contrasts that there are runs for."""
        ends = series[~series["quantity"].str.endswith("curve")]
        for condition, rows in ends.groupby(_CONDITION, sort=False):
            values = rows.pivot(index="seed", columns="quantity", values="value")
            name = ", ".join(map(str, condition))
            fall = values["entropy"] - values["entropy at the start"]
            quantity = "entropy at the end less at the start, nats"
            yield measure(f"Entropy falls ({name})", quantity, fall, "seeds", direction="below")
            for quantity in ("solution change", "reward at equal tokens"):
                if quantity in values:
                    yield beside(f"{_UNITS[quantity]} ({name})", values[quantity], "seeds")
            curves = select(series, quantity="drift curve", **dict(zip(_CONDITION, condition, strict=True)))
            table = curves.pivot(index="seed", columns="step", values="value")
            if table.shape[1] > 1:  # policies before the last one are there too
                first, last = table.columns.min(), table.columns.max()
                quantity = f"{_UNITS['drift']}: after step {last} less after step {first} ({name})"
                yield beside(quantity, table[last] - table[first], "seeds")
        yield from _contrasts(ends)

    def panels(self, findings: Findings) -> Layout:
        series = findings.series
        rates = [rate for rate in (STABLE, UNSTABLE) if rate in set(series["rate"])]
        along = [rate for rate in rates if select(series, rate=rate, quantity="drift curve")["step"].nunique() > 1]
        objectives = list(dict.fromkeys(series["objective"]))
        curves: dict[tuple[str, str], list[Means]] = {}
        ends: dict[str, list[Estimates]] = {"drift": [], "solution drift": []}
        labels: list[str] = []
        for (objective, batching, rate), rows in series.groupby(_CONDITION, sort=False):
            number = objectives.index(objective)
            colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
            style = colour, f"{objective}, {batching}", marker, "--" if batching == PRESERVED else "-"
            reward, entropy, drift = (select(rows, quantity=f"{name} curve") for name in ("reward", "entropy", "drift"))
            for name, curve, x in (
                ("reward", in_fives(reward), "step"),
                ("spent", in_blocks(reward), "tokens"),
                ("entropy", in_fives(entropy), "step"),
                ("drift", drift if drift["step"].nunique() > 1 else drift[:0], "step"),
            ):
                curves.setdefault((name, str(rate)), []).append(Means(curve, x, "value", *style, band=False))
            for quantity, estimates in ends.items():
                values = {len(labels): select(rows, quantity=quantity)["value"].tolist()}
                estimates.append(Estimates(values, colour, marker, seeds=True))
            labels.append(f"{objective}, {batching}, {rate}")

        def of(name: str, title: str, rate: str, **axes: Any) -> Panel:
            return panel(f"{title}, {rate}", *curves[name, rate], **{"legend": None, **axes})

        drifted, step = "mean |log-odds change| (nats, log scale)", "rollout step (means of five)"
        of_steps: Any = {"x": "rollout step", "y": drifted, "xlim": (0, None), "formats": {"y": _exponential}}
        drifts = {rate: of("drift", "Drift", rate, **of_steps) for rate in along}
        layout = []
        for rate in rates:
            legend = {"fontsize": 6.5, "loc": "lower right", "handlelength": 3.2} if rate == rates[0] else None
            line = [
                of("reward", "Reward", rate, x=step, y="mean reward", legend=legend),
                of("spent", "Reward by tokens", rate, x="thousand tokens generated"),
                of("entropy", "Entropy", rate, x=step, y="nats", ylim=(0, None)),
            ]
            # A rate that has a curve alone has the whole column.
            layout.append([*line, *([drifts.get(rate, drifts[along[0]])] if along else [])])
        changed = "mean |log-probability change| (nats, log scale)"
        of_ends: Any = {"level": True, "formats": {"x": _exponential}, "ylim": (len(labels) - 0.5, -0.5)}
        of_ends |= {"yticks": range(len(labels))}
        drift_at_end = panel(
            "Drift of format tokens at the end", *ends["drift"], **of_ends, x=drifted, yticklabels=labels
        )
        solutions = panel(
            "Drift of right responses at the end", *ends["solution drift"], **of_ends, x=changed, yticklabels=[]
        )
        return [*layout, [drift_at_end, drift_at_end, solutions, solutions][-len(layout[0]) :]]

    def title(self, findings: Findings) -> str:
        drifts = select(findings.series, quantity="drift").groupby(_CONDITION)["value"].mean().sort_values()
        least, most = (f"{', '.join(drifts.index[end])} ({2 ** drifts.iloc[end]:.2f} nats)" for end in (0, -1))
        return f"Format tokens drift least under {least}, most under {most}; lines are means over seeds"


def solution_changes(before: Tensor, after: Tensor, rollout_of: Tensor, right: Tensor) -> Tensor:
    """Return the change of the log-probability, in nats, of each whole response that is ``right`` [B] bool.

    ``before`` and ``after`` [N] are of its tokens, ``rollout_of`` [N] says which are.
    """
    whole = torch.zeros(len(right), dtype=torch.float64).index_add(0, rollout_of, after.double() - before.double())
    return whole[right]


def reward_at(tokens: pd.Series, rewards: pd.Series, affordable: float) -> float:
    """Return the mean reward of the later half of the steps that ``affordable`` tokens pay for.

    ``tokens`` have been generated up to and with each step.
    """
    steps = max(1, int((tokens <= affordable).sum()))
    return float(rewards.iloc[steps - max(1, steps // 2) : steps].mean())


def in_fives(curve: pd.DataFrame) -> pd.DataFrame:
    """Move steps to the end of their five: all methods have the same problems in a step, and some have hard ones."""
    last = -(-curve["step"] // _STEPS_OF_A_POINT) * _STEPS_OF_A_POINT
    return curve.assign(step=last.clip(upper=curve["step"].max()))


def in_blocks(curve: pd.DataFrame) -> pd.DataFrame:
    """Average reward and tokens, in thousands, over blocks of five steps of each run, and tokens over runs."""
    block = -(-curve["step"] // _STEPS_OF_A_POINT)
    means = curve.assign(block=block).groupby(["run", "block"])[["tokens", "value"]].mean().reset_index()
    return means.assign(tokens=means.groupby("block")["tokens"].transform("mean") / 1000)


def _log2(value: float) -> float:
    return math.log2(max(value, _SMALLEST_DRIFT))


def _exponential(value: float, _: int) -> str:
    return f"{2**value:.3g}"


def log_odds(log_probs: Tensor) -> Tensor:
    """Return log p / (1 - p) of log-probabilities, in float64; a probability of 1 counts as the next number below."""
    wide = log_probs.double().clamp(max=-1e-12)
    return wide - torch.log(-torch.expm1(wide))


def mean_drift(before: Tensor, after: Tensor, chosen: Tensor) -> float:
    """Return the mean absolute change of the log-odds of the ``chosen`` [N] bool of two log-probabilities [N]."""
    return float((log_odds(after) - log_odds(before))[chosen].abs().mean())


def _contrasts(ends: pd.DataFrame) -> Iterator[Measurement]:
    """Statements about runs that differ in one thing; objectives are known by the first words of their names."""
    known = {name.split("_")[0]: name for name in ends["objective"]}
    dfpo, grpo, gspo = (known.get(first, first) for first in ("dfpo", "grpo", "gspo"))
    of_rates: _Contrasts = (
        ("DFPO drifts less than GRPO", "drift", "objective", dfpo, grpo, "below"),
        ("DFPO drifts less than GSPO", "drift", "objective", dfpo, gspo, "below"),
        ("DFPO ends with more reward than GRPO", "reward", "objective", dfpo, grpo, "above"),
        ("DFPO moves solutions less than GRPO", "solution drift", "objective", dfpo, grpo, "below"),
        ("DFPO moves solutions less than GSPO", "solution drift", "objective", dfpo, gspo, "below"),
        ("DFPO has more reward than GRPO at equal tokens", "reward at equal tokens", "objective", dfpo, grpo, "above"),
        ("DFPO has more reward than GSPO at equal tokens", "reward at equal tokens", "objective", dfpo, gspo, "above"),
        ("Query-preserved batches drift less", "drift", "batching", PRESERVED, RANDOM, "below"),
        ("Query-preserved batches end with more reward", "reward", "batching", PRESERVED, RANDOM, "above"),
    )
    of_both: _Contrasts = (
        ("A higher learning rate drifts more", "drift", "rate", UNSTABLE, STABLE, "above"),
        ("A higher learning rate leaves less entropy", "entropy", "rate", UNSTABLE, STABLE, "below"),
        ("A higher learning rate ends with less reward", "reward", "rate", UNSTABLE, STABLE, "below"),
    )
    lacking = []
    parts = [(select(ends, rate=rate), f" ({rate})", of_rates) for rate in (STABLE, UNSTABLE)]
    for rows, where, contrasts in (*parts, (ends, "", of_both)):
        for statement, quantity, column, treated, control, direction in contrasts:
            # Over pairs of runs that share everything else, if there are any.
            shared = [name for name in (*_CONDITION, "seed") if name != column]
            table = select(rows, quantity=quantity).pivot(index=shared, columns=column, values="value")
            if treated in table and control in table:
                differences = (table[treated] - table[control]).dropna()
                words = f"{_UNITS[quantity]}: {treated} less {control}"
                yield measure(statement + where, words, differences, "pairs of runs", direction=direction)
            else:
                lacking.append(statement + where)
    if lacking:
        yield unmeasured("; ".join(lacking), "no two of the compared runs differ in this alone")
