"""What a plan says on standard error: the next look, hours by measured steps, prompts, and a GPU that is not here."""

from __future__ import annotations

import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from evals.core.errors import UserError, printable
from evals.core.manifest import read_manifest
from evals.core.records import Run
from rlvr.study.designs import describe
from rlvr.study.looks import PlannedLook, announce_look
from rlvr.study.study import Study

_GPU_DEVICES = ("nvidia[0-9]*", "dxg", "kfd")
_RESULTS, _REHEARSALS = Path("results"), Path("results/rehearsal")


def print_notices(study: Study, looks: Mapping[str, PlannedLook]) -> None:
    """Print everything; a plan may be made where no job is to be run."""
    announce_look(study, looks, logging.getLogger("snakemake.logging"))
    for line in notices(study):
        print(printable(line), file=sys.stderr)


def notices(study: Study) -> Iterator[str]:
    """Say what a plan of a study cannot show: what this machine lacks, the design, the hours, the prompts."""
    has_gpu = any(any(Path("/dev").glob(name)) for name in _GPU_DEVICES)
    if study.config.execution.device == "cuda" and not has_gpu:
        yield "warning: execution.device is cuda, and this machine shows no GPU: jobs started here will fail"
    if has_gpu and version("torch").endswith("+cpu"):
        yield (
            "warning: this machine has a GPU, and torch is a build for CPUs; `make` without the index of CPU builds "
            "(PIP_EXTRA_INDEX_URL) installs another, after `rm -r .venv`"
        )
    for name, model in study.served_models.items():  # the file may be anybody's, and the key goes to its address
        key = "the key of" if os.environ.get(model.api_key_variable) else "no key, for want of"
        yield f"models.{name}: {model.base_url} is asked for {model.model}, with {key} {model.api_key_variable}"
    if study.config.factorial is not None:
        yield from describe(study.config.factorial, len(study.config.training_seeds))
    if study.methods and (len(study.config.models) > 1 or not study.models_from_scratch):
        yield from hours(study, _RESULTS)
    if study.methods and not study.models_from_scratch:
        yield from prompts(study)


def hours(study: Study, results: Path) -> Iterator[str]:
    """Say for each model how many hours its training runs take: measured seconds a rollout, times rollouts.

    A method that was trained here gives its own seconds; others get the mean of those of its model, or a rehearsal's.
    What was not measured is said.
    """
    for model in study.config.models:
        runs = [run for run in study.trained_runs if run.model == model]
        settings = [(run.method, study.run_spec(run.run).training) for run in runs]
        measured = measured_seconds(runs, results / "runs") or measured_seconds(
            runs, _REHEARSALS / f"{study.config.study[:50]}_rehearsal" / "results/runs"
        )
        if not measured:
            yield f"{model}: {len(runs)} training runs, hours not known: `rlvr-bench rehearse` measures a step"
            continue
        mean = sum(measured.values()) / len(measured)
        rollouts = [(measured.get(method, mean), of.steps * of.rollouts_per_step) for method, of in settings]
        seconds, steps = sum(one * count for one, count in rollouts), sum(of.steps for _, of in settings)
        others = len({run.method for run in runs} - measured.keys())
        by = f"{len(measured)} methods measured" + (f", {others} others taken as their mean" if others else "")
        by += f", {seconds / steps:.3g} s a step"
        yield f"{model}: {len(runs)} training runs, {seconds / 3600:,.2g} h one after another ({by})"


def measured_seconds(runs: list[Run], directory: Path) -> dict[str, float]:
    """Mean seconds of a rollout by method, of the runs in ``directory`` that are finished: a rehearsal has fewer."""
    seconds = defaultdict[str, list[float]](list)
    for run in runs:
        try:
            manifest = read_manifest(directory / run.run / "manifest.json", "run")
        except UserError:
            continue
        details, training = manifest.details, manifest.parameters["training"]
        rollouts = details["steps"] * training["prompts_per_step"] * training["samples_per_prompt"]
        seconds[run.method].append(details["seconds_steps"] / rollouts)
    return {method: sum(of_runs) / len(of_runs) for method, of_runs in seconds.items()}


def prompts(study: Study) -> list[str]:
    """What training and evaluation ask: one prompt, or the benchmarks that have another, which is a departure."""
    if study.config.problems is None:
        return []
    by_statement = [
        f"Departure: rewards are for marked answers, and {name} is evaluated by the last statement (its extraction)."
        for name in study.by_last_statement
    ]
    if other := study.benchmarks_with_another_prompt:
        return [*by_statement, f"Departure: evaluation has another prompt than training on {', '.join(other)}."]
    others = [name for name, benchmark in study.benchmarks.items() if benchmark.grader != "math"]
    rest = f", but for choices and programs ({', '.join(others)})" if others else ""
    return [*by_statement, f"Training and evaluation have one prompt{rest}: {study.config.problems.prompt!r}"]
