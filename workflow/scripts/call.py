"""Calls the function that a rule names, ``module:function``, with the rule's named inputs and params, and its output.

Inputs are paths. ``out`` is the first output: the directory of a manifest, a table or figure without its ending.
A function that takes ``results`` gets the run sheet, scores and comparisons read and checked as one.
"""

import inspect
import sys
from importlib import import_module
from pathlib import Path

from evals.core.arithmetic import choose_code_paths
from rlvr.runs.job import job
from rlvr.runs.warm_start import ask


def paths(value):
    """The paths of an input: one, or a list."""
    return Path(value) if isinstance(value, str) else [Path(path) for path in value]


def out_of(output):
    """The path that a function writes to."""
    path = Path(output)
    if path.name == "manifest.json":
        return path.parent
    return path.with_suffix("") if path.suffix in (".md", ".png") else path


if __name__ == "__main__":  # a worker process, such as the grader's, imports this file
    with job(snakemake.log[0]):
        values = dict(snakemake.params.items())
        module, _, name = values.pop("call").partition(":")
        if (status := ask("snakemake.io", module)) is not None:
            sys.exit(status)
        if module.startswith("evals."):  # statistics have the same digits on every processor, as in a fork
            choose_code_paths()
        values |= values.pop("arguments", {})  # whose names Snakemake keeps for itself, such as count
        values.setdefault("out", out_of(snakemake.output[0]))
        function = getattr(import_module(module), name)
        values |= {key: paths(value) for key, value in snakemake.input.items()}
        if "results" in inspect.signature(function).parameters and "comparisons" in values:
            from evals.results import read_results

            values["results"] = read_results(*(values.pop(key) for key in ("runs", "scores", "comparisons")))
        function(**values)
