"""Every method against the reference method and the base model: scores in, ``results/comparisons.json`` out."""

from __future__ import annotations

import argparse
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files
from evals.scores.comparison import Claim, Settings, compare
from evals.scores.table import read_counts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``compare``."""
    parser.add_argument(
        "--scores", required=True, nargs="+", type=Path, metavar="JSON", help="results/scores/*.json, manifests ignored"
    )
    parser.add_argument("--reference-method", required=True, help="the method to compare all others with")
    parser.add_argument("--out", required=True, type=Path, metavar="JSON", help="results/comparisons.json")
    parser.add_argument(
        "--claim",
        type=Claim,
        choices=list(Claim),
        default=Claim.METHODS,
        help="what is compared: methods, with their seeds as a sample, or these very checkpoints",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the resampling")
    parser.add_argument("--resamples", type=int, default=10_000, help="bootstrap replicates")
    parser.add_argument("--permutations", type=int, default=100_000, help="random sign flips")


def run(arguments: argparse.Namespace) -> None:
    """Write the comparisons and a manifest beside them.

    Raises:
        UserError: an input is missing, changed or malformed, or the output cannot be written.
    """
    for option in ("resamples", "permutations"):
        if getattr(arguments, option) < 100:
            raise UserError(f"--{option}: must be at least 100, got {getattr(arguments, option)}")
    if arguments.seed < 0:
        raise UserError(f"--seed: must not be negative, got {arguments.seed}")
    out: Path = arguments.out
    paths = [path for path in arguments.scores if not path.name.endswith(".manifest.json")]
    if not paths:
        raise UserError("--scores: names no file of scores")
    settings = Settings(
        arguments.reference_method,
        arguments.claim,
        seed=arguments.seed,
        bootstrap_resamples=arguments.resamples,
        permutations=arguments.permutations,
    )
    content = compare([read_counts(path) for path in paths], settings)
    write_json(out, content)
    inputs = {path.as_posix(): sha256_file(path) for path in paths}
    parameters = {key: value for key, value in content.items() if key != "comparisons"}
    Manifest(
        kind="comparisons",
        inputs=inputs,
        outputs=hash_files(out.parent, out),
        parameters=parameters,
        fingerprint=fingerprint({"kind": "comparisons", "parameters": parameters, "inputs": sorted(inputs.values())}),
        details={"comparisons": len(content["comparisons"])},
    ).write(out.with_suffix(".manifest.json"))
