"""``python -m evals.audit``: how far a benchmark's grades can be trusted, run by run (docs/grading.md)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.audit import second_grader
from evals.audit.run import SecondGrader, audit_run, read_graded_samples
from evals.command_line import run_command
from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files
from evals.grading.grade_file import read_golds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m evals.audit", description=__doc__)
    parser.add_argument("--benchmark", required=True, help="the benchmark's name")
    parser.add_argument("--grades", required=True, nargs="+", type=Path, help="results/grades/{run}/{benchmark} ...")
    parser.add_argument("--samples", required=True, nargs="+", type=Path, help="their samples, in the same order")
    parser.add_argument("--problems", required=True, type=Path, help="problems.jsonl of the benchmark")
    parser.add_argument("--workers", type=int, default=1, help="processes of the second grader (default: 1)")
    parser.add_argument("--out", required=True, type=Path, help="results/audits/{benchmark}.json")
    parser.set_defaults(run=run)
    return run_command(parser, argv)


def run(arguments: argparse.Namespace) -> None:
    """Write the audit of one benchmark, and a manifest beside it.

    Raises:
        UserError: an input is missing, changed or malformed, or the output cannot be written.
    """
    if len(arguments.grades) != len(arguments.samples):
        raise UserError(
            f"--samples: are {len(arguments.samples)}; accepted: one for each of --grades, {len(arguments.grades)}"
        )
    if arguments.workers < 1:
        raise UserError(f"--workers: is {arguments.workers}; accepted: 1 or more")
    golds = read_golds(arguments.problems)
    inputs = {arguments.problems.as_posix(): sha256_file(arguments.problems)}
    audits = []
    second = SecondGrader(arguments.workers)
    try:
        for samples, grades in zip(arguments.samples, arguments.grades, strict=True):  # one run in memory at a time
            graded = read_graded_samples(samples, grades)
            if graded.benchmark != arguments.benchmark:
                raise UserError(f"{grades}: holds grades of {graded.benchmark}, not of {arguments.benchmark}")
            inputs |= graded.hashes
            audits.append(audit_run(graded, golds, second))
    finally:
        second.close()
    grader = {"name": second_grader.NAME, "version": second_grader.VERSION}
    out: Path = arguments.out
    write_json(out, {"benchmark": arguments.benchmark, "second_grader": grader, "audits": audits})
    parameters = {"benchmark": arguments.benchmark, "second_grader": grader}
    Manifest(
        kind="audit",
        inputs=inputs,
        outputs=hash_files(out.parent, out),
        parameters=parameters,
        fingerprint=fingerprint({"kind": "audit", "parameters": parameters, "inputs": sorted(inputs.values())}),
        details={"runs": len(audits), "samples": sum(audit["samples"] for audit in audits)},
    ).write(out.with_suffix(".manifest.json"))


if __name__ == "__main__":
    sys.exit(main())
