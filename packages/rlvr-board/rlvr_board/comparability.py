"""What rows of a board must share to be compared: task, model, budget and reference method."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.files import fingerprint
from evals.core.manifest import read_any_manifest
from evals.core.records import BASE, Condition, ProblemFile, Run
from evals.results import Results
from rlvr.report.provenance import read_run_manifest

_BUDGET = ("steps", "prompts_per_step", "samples_per_prompt", "updates_per_step", "max_new_tokens", "early_stop")
_SAID_ELSEWHERE = ("samples_per_problem", "decodings")  # verdicts are not about further decodings

Setup = Mapping[str, Mapping[str, Any]]
"""The kinds task, model, budget and reference -> the settings of each."""


def setup_of(results: Results, study: Mapping[str, Any], directory: Path, condition: Condition) -> Setup:
    """Gather what a method's score depends on beside the method.

    Args:
        results: of the study.
        study: its resolved configuration.
        directory: results/.
        condition: the method on a model.
    """
    runs = results.runs
    of_model = [run for run in runs if run.model == condition.model]
    reference = next(run for run in of_model if run.method == results.reference_method)
    trained, ours = (read_run_manifest(run, directory).parameters for run in (reference, condition.runs[0]))
    grades = directory / "grades" / condition.runs[0].run / results.benchmarks[0] / "manifest.json"
    problems = {name: ProblemFile.of(directory / "problems" / name).sha256 for name in (*results.benchmarks, "train")}
    sampling, trained_by = _mapping(study.get("evaluation")), _mapping(ours.get("training"))
    training = {key: value for key, value in _mapping(trained.get("training")).items() if "batch" not in key}
    return {
        "task": {
            "benchmarks": ", ".join(results.benchmarks),
            **{f"problems of {name}": sha256 for name, sha256 in problems.items()},
            "samples per problem": results.samples_per_problem,
            "weights of benchmarks": results.weighting,
            "grader": read_any_manifest(grades).parameters.get("grader_version"),
            **({"by last statement": stated} if (stated := ", ".join(results.by_last_statement)) else {}),
            "prompt": ours.get("prompt"),
            **{key: value for key, value in sampling.items() if "batch" not in key and key not in _SAID_ELSEWHERE},
        },
        "model": {"weights": _weights(of_model, directory)},
        "budget": {key.replace("_", " "): trained_by[key] for key in _BUDGET if trained_by.get(key) is not None},
        "reference": _by_key({"method": trained.get("method"), "training": training}),
    }


def _by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings within settings, by keys with dots."""
    (flat,) = pd.json_normalize(dict(settings)).to_dict("records")
    return {str(key): value for key, value in flat.items()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _weights(runs: Sequence[Run], directory: Path) -> str:
    """One hash of the checkpoints of a model's base models; of a model that a server has, what identifies it."""
    manifests = {run.base_model: read_run_manifest(run.model_copy(update={"method": BASE}), directory) for run in runs}
    hashes = []
    for _, manifest in sorted(manifests.items()):
        files = {name: sha256 for name, sha256 in manifest.outputs.items() if name.startswith("checkpoint/")}
        hashes.append(fingerprint(files) if files else manifest.fingerprint)
    return hashes[0] if len(hashes) == 1 else fingerprint(hashes)


def differing(setup: Setup, first: Setup, kinds: Sequence[str]) -> list[str]:
    """Say for each kind of setting which ones differ from those of a first setup."""
    told = []
    for kind in kinds:
        ours, theirs = setup[kind], first[kind]
        keys = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
        # Where the benchmarks are others, their names say it.
        keys = [key for key in keys if not key.startswith("problems of") or (key in ours and key in theirs)]
        said = [f"{key} {_short(ours.get(key))}, there {_short(theirs.get(key))}" for key in keys]
        told += [f"{kind}: {'; '.join(said)}"] if said else []
    return told


def _short(value: Any) -> str:
    """A value in few words; of a hash its beginning."""
    text = "none" if value is None else str(value)
    return text[:12] if re.fullmatch(r"[0-9a-f]{64}", text) else text[:80]
