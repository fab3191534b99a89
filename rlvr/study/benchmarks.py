"""The benchmarks and the training set that a study names: their entries, and the local copies it reads them from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from rlvr.study.catalogue import CATALOGUE
from rlvr.study.validation import check, read_schema, read_yaml

BENCHMARKS = CATALOGUE.parent / "benchmarks"
DATASETS = CATALOGUE.parent / "datasets"
REPOSITORY = CATALOGUE.parents[1]
GENERATED = "generated"

_FOR_PEOPLE = ("title", "description", "licence", "prompt", "samples_per_problem", "source")
"""Keys of an entry that do not decide which problems it has."""


def read_benchmarks(config: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Benchmark's name -> its entry, with the local copy that the study names in place of the Hub.

    Raises:
        UserError: no such benchmark, or an entry or a local copy that is not accepted.
    """
    benchmarks = {name: _read(name, f"{source}: benchmarks") for name in config["benchmarks"]}
    for name, copy in config.get("benchmark_sources", {}).items():
        key = f"{source}: benchmark_sources"
        if _read(name, key)["source"] == GENERATED:
            raise UserError(f"{key}: {name!r} is generated; accepted: a benchmark that is read from the Hub or a file")
        if name in benchmarks:
            benchmarks[name] |= copy
    for entry in benchmarks.values():
        if "path" in entry:  # relative to the repository, whatever directory the study works in
            entry["path"] = _absolute(entry["path"])
    return benchmarks


def problem_settings(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a benchmark's problems: a changed prompt or title does not read them again."""
    if entry["source"] == GENERATED:
        kinds = [{"family": entry["family"], "operands": entry["operands"]}]
        return {"kinds": kinds, "count": entry["count"], "seed": entry["seed"]}
    return {"name": name, **{key: value for key, value in entry.items() if key not in _FOR_PEOPLE}}


def training_settings(problems: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What decides the problems that a study trains on: drawn, or those of a set in config/datasets.

    Raises:
        UserError: no such set, or an entry that is not accepted.
    """
    if "source" not in problems:
        return {key: problems[key] for key in ("kinds", "count", "seed")}
    name, entry = problems["source"], _read_training_set(problems["source"], source)
    own: dict[str, Any] = {"exclude": sorted(problems["exclude"])} if problems.get("exclude") else {}
    own |= {"path": _absolute(problems["path"])} if "path" in problems else {}
    return {"name": name, **{key: value for key, value in entry.items() if key not in _FOR_PEOPLE}, **own}


def training_title(problems: Mapping[str, Any], source: str) -> str:
    """The name of the training problems for people."""
    return str(_read_training_set(problems["source"], source)["title"]) if "source" in problems else GENERATED


def prompt_of(entry: Mapping[str, Any], form: str) -> str:
    """The prompt template for a ``base`` model or for a ``chat`` model's user turn."""
    prompt = entry["prompt"]
    return str(prompt if isinstance(prompt, str) else prompt[form])


def _absolute(path: str) -> str:
    return str((REPOSITORY / Path(path).expanduser()).resolve())


def _read_training_set(name: str, source: str) -> dict[str, Any]:
    path = DATASETS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in DATASETS.glob("*.yaml")))
        raise UserError(f"{source}: problems.source: {name!r} is no training set; accepted: {known}")
    entry: dict[str, Any] = read_yaml(path)
    check(entry, read_schema("dataset.schema.yaml"), f"config/datasets/{name}.yaml")
    return entry


def _read(name: str, source: str) -> dict[str, Any]:
    path = BENCHMARKS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in BENCHMARKS.glob("*.yaml")))
        raise UserError(f"{source}: {name!r} is no benchmark; accepted: {known}")
    benchmark: dict[str, Any] = read_yaml(path)
    check(benchmark, read_schema("benchmark.schema.yaml"), f"config/benchmarks/{name}.yaml")
    return benchmark
