"""Of each result: is it what the present configuration asks for, and if not, what made it stale?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.errors import UserError
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.manifest import Manifest, read_manifest
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.engines.local import VERSION as ENGINE_VERSION
from rlvr.source_hash import edited_since
from rlvr.study.study import BASE, Run, Study

_PATH_KEYS = ("base", "problems")


@dataclass(frozen=True)
class Status:
    """Whether one result is current.

    Attributes:
        result: what is judged, such as "run tiny-dapo-s1".
        current: False if it is missing or made from something else than is configured now.
        reasons: what differs, one line each.
        code_edited_since: modules edited after the result was made whose versions say that results are unchanged.
    """

    result: str
    current: bool
    reasons: tuple[str, ...] = ()
    code_edited_since: tuple[str, ...] = ()


def study_status(study: Study) -> list[Status]:
    """The status of every base model, run and sample file of the study."""
    statuses = [_base_status(study, name) for name in study.config["models"]]
    statuses += [_run_status(study, run) for run in study.trained_runs]
    statuses += [_samples_status(study, run, name) for run in study.runs for name in study.benchmarks]
    return statuses


def _base_status(study: Study, name: str) -> Status:
    model = study.config["models"][name]
    wanted = {"version": BASE_MODEL_VERSION, "architecture": model["architecture"], **model["training"]}
    return _judge(f"base model {name}", Path(f"results/base/{name}/manifest.json"), "base_model", wanted)


def _run_status(study: Study, run: Run) -> Status:
    wanted = {key: value for key, value in study.resolved_run(run.run).items() if key not in _PATH_KEYS}
    wanted["versions"] = {"engine": ENGINE_VERSION, "sampler": SAMPLER_VERSION, "grader": GRADER_VERSION}
    return _judge(f"run {run.run}", Path(f"results/runs/{run.run}/manifest.json"), "run", wanted)


def _samples_status(study: Study, run: Run, benchmark: str) -> Status:
    evaluation = study.config["evaluation"]
    renamed = {"sampling_batch_size": "batch_size"}
    wanted = {renamed.get(key, key): value for key, value in evaluation.items()}
    wanted |= {"prompt": study.benchmarks[benchmark]["prompt"], "version": SAMPLER_VERSION}
    path = Path(f"results/samples/{run.run}/{benchmark}/manifest.json")
    kind = "base model" if run.method == BASE else "run"
    return _judge(f"samples of {kind} {run.run} on {benchmark}", path, "samples", wanted, exact=False)


def _judge(result: str, path: Path, kind: str, wanted: Mapping[str, Any], exact: bool = True) -> Status:
    """Compare a manifest's parameters with what is configured, and its inputs with the files as they are."""
    try:
        manifest = read_manifest(path, kind)
    except UserError as error:
        return Status(result, current=False, reasons=(str(error),))
    made_from = manifest.parameters if exact else {key: manifest.parameters.get(key) for key in wanted}
    reasons = tuple(_differences(made_from, wanted)) + tuple(_changed_inputs(manifest))
    source = manifest.details.get("source")
    return Status(result, not reasons, reasons, tuple(edited_since(source)) if source else ())


def _differences(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """Lines such as ``training.learning_rate: 0.0003 -> 0.001``."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        yield f"{key}: {old} -> {new}"


def _changed_inputs(manifest: Manifest) -> Iterator[str]:
    """Inputs whose own manifest now records other bytes than were read."""
    for name, digest in manifest.inputs.items():
        path = Path(name)
        owner = next((p / "manifest.json" for p in path.parents if (p / "manifest.json").is_file()), None)
        if owner is None:
            continue
        recorded = read_manifest_outputs(owner).get(path.relative_to(owner.parent).as_posix())
        if recorded is not None and recorded != digest:
            yield f"{name}: {digest[:12]} -> {recorded[:12]}"


def read_manifest_outputs(path: Path) -> Mapping[str, str]:
    """The outputs that a manifest of any kind lists."""
    from evals.artifacts import read_json

    outputs: Mapping[str, str] = read_json(path).get("outputs", {})
    return outputs
