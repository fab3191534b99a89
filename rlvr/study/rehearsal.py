"""The rehearsal of a study: two short steps of a real model through every part that the study needs.

It is a study itself, cut from the one that is rehearsed, and the workflow runs it: model, problems, two training steps
with a saved state each, the checkpoint, samples and grades on one benchmark, scores. By verl these parts are Ray, vLLM,
the exchange of weights, the grader, FSDP and the merger, on the cluster that the study names; every response is made as
long as the study allows, so that the steps show the memory of the longest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from evals.core.errors import InvalidInput
from evals.core.files import read_json, read_parquet
from evals.core.manifest import verify_outputs
from evals.core.run_spec import Cluster, VerlRun
from rlvr.study.evaluation import run_study
from rlvr.study.study import Study

STEPS = 2
_LEAST_ROLLOUTS = 64
_LONGEST_SAMPLE = 1024
"""Tokens of a response in the evaluation at most."""
_FULL_LENGTH = {"actor_rollout_ref.rollout.ignore_eos": True}
"""The option of verl by which no response ends before the longest length."""
_LEFT_OUT = (
    *("validation", "controls", "checkpoint"),
    *("folder", "title", "question", "beside", "score_at"),
)
_SHOWN = (
    *("seconds_rollout", "seconds_log_probs", "seconds_token_weights", "seconds_update", "seconds_weight_sync"),
    *("seconds_save", "seconds_step", "reward_mean", "truncation_rate", "grad_norm"),
    *("rollout_kl", "sampler_difference_mean", "model_flops_utilisation", "tokens_per_second_and_device"),
    "peak_memory_bytes",
)
"""Metrics of a step that are told, as far as the engine has them."""


def rehearsal(study: Study, source: str, model: str | None, method: str | None) -> dict[str, Any]:
    """Cut a study down to two steps of one method on one model: by default its reference method and its first model."""
    if not study.methods:
        raise InvalidInput(source, "methods", "are none", "a study that trains")
    method, model = method or study.config.reference_method, model or next(iter(study.config.models))
    for option, name, known in (("--method", method, study.methods), ("--model", model, study.config.models)):
        if name not in known:
            raise InvalidInput(option, "", f"is {name!r}", ", ".join(known))
    run = next(run.run for run in study.trained_runs if (run.model, run.method) == (model, method))
    cut = {key: value for key, value in study.config.to_json().items() if key not in _LEFT_OUT}
    settings, changes = cut["models"][model], cut["methods"][method]
    for owner in (settings, changes) if settings["source"] != "from_scratch" else (changes,):
        owner.pop("training", None)  # the settings below are already the run's own
    settings.get("training", {}).pop("stop_at", None)  # by validation problems, which a rehearsal has none of
    if "methods" in settings:
        settings["methods"] = {name: value for name, value in settings["methods"].items() if name == method}
    benchmark = study.config.benchmarks[0]
    sources = {name: value for name, value in cut.get("benchmark_sources", {}).items() if name == benchmark}
    evaluation = {key: value for key, value in cut["evaluation"].items() if key != "samples_of"}
    longest = min(evaluation["max_new_tokens"], _LONGEST_SAMPLE)
    return {
        **cut,
        "study": f"{study.config.study[:50]}_rehearsal",
        "seeds": [study.config.training_seeds[0]],
        "models": {model: settings},
        "methods": {method: changes},
        "reference_method": method,
        "benchmarks": [benchmark],
        **({"benchmark_sources": sources} if sources else {}),
        "training": _short(study, run),
        "contrast_steps": 0,
        "evaluation": {**evaluation, "samples_per_problem": 1, "max_new_tokens": longest},
        "statistics": {key: value for key, value in cut["statistics"].items() if key != "weighting"},
        "execution": {**cut["execution"], **_of_verl(cut["execution"]), "checkpoint_interval": 1},
    }


def _of_verl(execution: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster whose responses all have the longest length; nothing with the local engine."""
    if (cluster := execution.get("cluster")) is None:
        return {}
    return {"cluster": {**cluster, "overrides": {**cluster.get("overrides", {}), **_FULL_LENGTH}}}


def _short(study: Study, run: str) -> dict[str, Any]:
    """The training settings of ``run`` with as few rollouts as show the memory of all of them.

    By verl each rank has two full micro-batches in an update: the second finds the gradients of the first.
    """
    spec = study.run_spec(run)
    training = spec.training.model_copy(update={"learning_rate_decay_from": 1, "planned_steps": None}).identity()
    updates, samples = spec.training.updates_per_step, spec.training.samples_per_prompt
    ranks, least = 1, _LEAST_ROLLOUTS
    if isinstance(spec, VerlRun):
        cluster = Cluster.parse(study.cluster(run), run)
        ranks = cluster.data_parallel
        longest = spec.training.max_prompt_tokens + spec.training.max_new_tokens
        together = cluster.tokens_per_device * cluster.sequence_parallel // longest
        least = max(least, 2 * together * ranks * updates)
    least, prompts = min(least, spec.training.rollouts_per_step), updates
    while prompts * samples < least or prompts * samples % (updates * ranks):
        prompts += updates
    return {**training, "steps": STEPS, "prompts_per_step": prompts, "warmup_updates": 0}


def report(content: Mapping[str, Any], directory: Path) -> list[str]:
    """Lines on what the rehearsal in ``directory`` measured; its files are checked against their manifests."""
    study = Study.resolve(content, "rehearsal")
    (run,) = study.trained_runs
    (benchmark,) = study.benchmarks
    run_directory = directory / "results/runs" / run.run
    details = verify_outputs(run_directory / "manifest.json", "run").details
    metrics = read_parquet(run_directory / "metrics.parquet").set_index("step")
    lines = [f"{run.run}: {len(metrics)} steps by {study.engine}, states saved, {details['tokens_generated']} tokens"]
    for name in (name for name in _SHOWN if name in metrics):
        lines.append(f"    {name:32}" + "".join(f"{metrics[name][step]:>16.6g}" for step in metrics.index))
    scores = read_json(directory / f"results/scores/{benchmark}.json")
    for row in scores["scores"]:
        lines.append(f"{row['run']} on {benchmark}, one sample a problem: {100 * row['average_at_k']:.1f} %")
    return lines


def rehearse(
    study: Path,
    model: str | None = None,
    method: str | None = None,
    out: Path | None = None,
    cores: Annotated[int | None, Option(min=1)] = None,
    sdm: Literal["conda", "apptainer"] | None = None,
) -> None:
    """Take two short steps of a study with its real model, through everything that the study needs.

    Model, problems, rollouts, updates, states, the checkpoint, samples and grades on one benchmark: the first thing to
    do on a new machine. The same command goes on with a rehearsal that was interrupted.

    Args:
        study: file of the study.
        model: a model of the study; default: its first.
        method: a method of the study; default: its reference method.
        out: directory of all results; default: results/rehearsal/STUDY.
        cores: number of cores for all jobs together; default: all.
        sdm: how Snakemake provides verl and vLLM; default: the study's Python has them.
    """
    content = rehearsal(Study.read(study), str(study), model, method)
    directory = (out or Path("results/rehearsal") / content["study"]).resolve()
    run_study(content, directory, cores, ["scores"], sdm)
    print(*report(content, directory), sep="\n")
