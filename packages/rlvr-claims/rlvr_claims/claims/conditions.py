"""The conditions that compared runs were trained under, and the runs that are the beginning of others."""

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from evals.core.run_spec import LocalRun
from rlvr_claims.claims.inputs import RunMetrics

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
