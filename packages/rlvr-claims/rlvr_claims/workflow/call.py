"""Calls the function that a rule names, ``module:function``, with the rule's named inputs and params, and its output.

Inputs are paths. ``out`` is the first output: of a manifest its directory, of a table or figure without ending.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from evals.core.errors import UserError


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
    file = os.open(snakemake.log[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    sys.stdout.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    values = dict(snakemake.params.items())
    values |= values.pop("arguments", {})  # whose names Snakemake keeps for itself, such as count
    module, _, name = values.pop("call").partition(":")
    values |= {key: paths(value) for key, value in snakemake.input.items()} | {"out": out_of(snakemake.output[0])}
    try:
        function = getattr(import_module(module), name)
        if {"runs", "scores", "comparisons"} <= values.keys():
            from evals.results import read_results

            values["results"] = read_results(*(values.pop(key) for key in ("runs", "scores", "comparisons")))
        function(**values)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
