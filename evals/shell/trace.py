"""Trace tables, figures and reports back to the bytes that they were made from, and verify every one by SHA-256.

For each row of a table: problems, base model, run, checkpoint, samples, grades, scores, comparisons, table. A file
whose bytes changed, a manifest that was edited, and a result that was made from other bytes than are there now are
named; the exit status is then 2. Anything with a manifest beside it can be traced: tables (.csv has rows), figures,
report.html.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.trace.chain import Chain, follow
from evals.trace.rows import TracedRow, trace_rows


def trace(files: Sequence[Path], row: str | None = None, faults_only: bool = False, as_json: bool = False) -> None:
    """Print the chains.

    Args:
        files: tables, figures, reports.
        row: only rows whose title or runs contain this.
        faults_only: print only what does not fit.
        as_json: print JSON.

    Raises:
        UserError: a file has no manifest, or something behind it does not fit.
    """
    broken: list[str] = []
    reports = []
    for path in files:
        chain = follow(path)
        rows, foreign = trace_rows(chain, path)
        if row:
            rows = [each for each in rows if row in each.title or row in " ".join(each.runs)]
            if not rows:
                raise UserError(f"--row: {path} has no row with {row!r}")
        faults = [*chain.faults, *foreign]
        broken += faults
        if as_json:
            reports.append(_report(chain, path, rows, faults))
        else:
            _print(chain, path, [] if faults_only else rows, faults)
    if as_json:
        print(json.dumps({"files": reports}, indent=2, ensure_ascii=False))
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise UserError(f"{broken[0]}{more}")


def _report(chain: Chain, path: Path, rows: list[TracedRow], faults: list[str]) -> dict[str, object]:
    return {
        "file": str(path),
        "verified": not faults,
        "faults": faults,
        "manifests": len(chain.makers),
        "manifests_without_checksum": [chain.shown(each) for each in chain.unsealed],
        "sources": {chain.shown(each): digest for each, digest in chain.sources.items()},
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _print(chain: Chain, path: Path, rows: list[TracedRow], faults: list[str]) -> None:
    for row in rows:
        runs = f" ({', '.join(row.runs)})" if row.runs else ""
        print(f"{row.title}{runs}")
        for link in row.links:
            print(f"  {link.stage:<12} {link.sha256[:12]}  {'ok     ' if link.intact else 'CHANGED'}  {link.path}")
        print()
    for fault in faults:
        print(f"FAULT  {fault}")
    files = sum(len(maker.outputs) for maker in chain.makers.values()) + len(chain.sources)
    state = f"{len(faults)} faults" if faults else "verified"
    print(f"{path}: {state}: {files} files behind {len(chain.makers)} manifests, "
          f"{len(chain.sources)} of them sources that nothing here made")  # fmt: skip
    if chain.unsealed:
        print(f"{len(chain.unsealed)} manifests have no checksum of their own: they were written by an earlier version")
