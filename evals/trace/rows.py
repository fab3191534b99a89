"""The chain of each row of a table, stage by stage, as it is printed."""

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import UserError, counted, printable
from evals.core.records import Run, read_runs
from evals.trace.chain import Chain, Maker, follow, located

_STAGES = (
    *("problems", "training_set", "corpus", "base_model", "run", "token_table", "probes"),
    *("samples", "grades", "audit", "scores", "comparisons", "findings"),
)
"""The kinds of manifests that are stages of a row, in order."""


@dataclasses.dataclass(frozen=True)
class Link:
    """One file in the chain of a row: the bytes that the chain rests on, and whether they are still there."""

    stage: str
    path: str
    sha256: str
    intact: bool


@dataclasses.dataclass(frozen=True)
class TracedRow:
    """A row of a table, its runs, and its chain from the problems on."""

    title: str
    runs: tuple[str, ...]
    links: tuple[Link, ...]


def trace(files: Sequence[Path], row: str | None = None, faults_only: bool = False, as_json: bool = False) -> None:
    """Trace tables, figures and reports back to the bytes that they were made from, and verify every one by SHA-256.

    For each row of a table: problems, base model, run, checkpoint, samples, grades, scores, comparisons, table. A file
    whose bytes changed, a manifest that was edited, and a result that was made from other bytes than are there now are
    named, and so is a file that has lost its manifest; the exit status is then 2. Anything with a manifest beside it
    can be traced: tables (.csv has rows), figures, pages.

    Args:
        files: such as results/tables/main.csv.
        row: only rows whose title or runs contain this.
        faults_only: print only what does not fit.
        as_json: print JSON.

    Raises:
        UserError: a file has no manifest, or something behind it does not fit.
    """
    broken: list[str] = []
    reports = []
    for path in files:
        chain, maker = follow(path)
        rows, foreign = trace_rows(chain, located(path), maker)
        if row:
            rows = [each for each in rows if row in each.title or row in " ".join(each.runs)]
            if not rows:
                raise UserError(f"--row: {path} has no row with {row!r}")
        faults = [*chain.faults, *foreign]
        broken += faults
        root_hash = chain.root_hash(maker.path)
        if not as_json:
            _print_rows([] if faults_only else rows)
            print_verdict(chain, path, faults, root_hash)
        report: dict[str, Any] = {
            "file": str(path),
            "verified": not faults,
            "faults": faults,
            "manifests": len(chain.makers),
            "root_hash": root_hash,
        }
        report["sources_elsewhere"] = [str(each) for each in chain.elsewhere]
        report["sources"] = {chain.short(each): digest for each, digest in chain.sources.items()}
        reports.append(report | {"rows": [dataclasses.asdict(row) for row in rows]})
    if as_json:
        print(json.dumps({"files": reports}, indent=2, ensure_ascii=False))
    refuse(broken)


def refuse(faults: Sequence[str]) -> None:
    """End with the first of some faults, and the number of the others."""
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise UserError(f"{faults[0]}{more}")


def _print_rows(rows: Sequence[TracedRow]) -> None:
    for row in rows:
        runs = f" ({', '.join(row.runs)})" if row.runs else ""
        print(printable(f"{row.title}{runs}"))
        for link in row.links:
            print(f"  {link.stage:<12} {link.sha256[:12]}  {'ok     ' if link.intact else 'CHANGED'}  {link.path}")
        print()


def print_verdict(chain: Chain, path: Path, faults: Sequence[str], root_hash: str) -> None:
    """Print the faults of a chain, what was checked, and the hash of everything behind ``path``."""
    for fault in faults:
        print(f"FAULT  {printable(fault)}")
    files = sum(len(maker.files) for maker in chain.makers) + len(chain.sources)
    state = counted(len(faults), "fault") if faults else "verified"
    sources = f"{len(chain.sources)} of them sources that nothing here made"
    behind = f"{counted(files, 'file')} behind {counted(len(chain.makers), 'manifest')}"
    print(f"{printable(str(path))}: {state}: {behind}, {sources}")
    if chain.elsewhere:
        names = ", ".join(sorted({each.name for each in chain.elsewhere}))
        print(f"{len(chain.elsewhere)} sources lie outside the study and are not on this machine: {names}")
    print(f"root hash {root_hash}")


def trace_rows(chain: Chain, table: Path, maker: Maker) -> tuple[list[TracedRow], list[str]]:
    """The chains of a table's rows, and faults of rows whose runs are not behind the table; ``maker`` lists it.

    Only ``.csv`` files have rows; anything else is traced as a single one.
    """
    is_table = table.suffix == ".csv"
    rows, faults = [], []
    for title, runs in _rows(table, _run_sheet(chain)) if is_table else [(table.name, None)]:
        chosen = _restricted(chain, runs)
        graded = {each.path.parent.parent.name for each in chosen if each.manifest.kind == "grades"}
        if missing := [run for run in runs or () if run not in graded]:
            name = f"{chain.short(table)}: row {title}"
            faults += [f"{name}: no grades of run {run} are behind the table" for run in missing]
        known = [each for each in chosen if each.manifest.kind in _STAGES]
        known.sort(key=lambda each: (_STAGES.index(each.manifest.kind), each.path.as_posix()))
        links = [link for each in known for link in _links(chain, each)]
        stage = "table" if is_table else maker.manifest.kind
        links.append(_link(chain, stage, table, maker.files[table]))
        rows.append(TracedRow(title, tuple(runs or ()), tuple(links)))
    return rows, faults


def _run_sheet(chain: Chain) -> list[Run]:
    """The runs that the table was made from; none if it has no run sheet, or a broken one: that is a fault already."""
    sheet = next((path for path in chain.sources if path.name == "runs.json" and path.is_file()), None)
    try:
        return read_runs(sheet) if sheet else []
    except UserError:
        return []


def _rows(table: Path, sheet: Sequence[Run]) -> list[tuple[str, list[str] | None]]:
    """Title and runs of each row: from its column runs or run, or else all runs of its model and method."""
    with open(table, encoding="utf-8", newline="") as handle:
        content = list(csv.DictReader(handle))
    rows: list[tuple[str, list[str] | None]] = []
    for number, row in enumerate(content, start=1):
        runs: list[str] | None = None
        if row.get("runs") or row.get("run"):
            runs = (row.get("runs") or row["run"]).split()
        elif row.get("method"):
            runs = [run.run for run in sheet if (run.model, run.method) == (row.get("model"), row["method"])]
        name = row.get("title") or row.get("method") or f"row {number}"
        rows.append((", ".join([name, *(row[key] for key in ("benchmark", "paper", "table") if row.get(key))]), runs))
    return rows


def _restricted(chain: Chain, runs: Sequence[str] | None) -> list[Maker]:
    """The manifests behind some runs: of their samples, grades, checkpoints and problems, and of all scores."""
    if runs is None:
        return chain.makers
    results = [maker for maker in chain.makers if maker.manifest.kind in ("samples", "grades")]
    chosen = [maker for maker in results if maker.path.parent.parent.name in runs]
    makers = {other.path: other for maker in chosen for other in chain.behind([maker])}
    makers |= {maker.path: maker for maker in chain.makers if maker.manifest.kind in ("scores", "comparisons")}
    return list(makers.values())


def _links(chain: Chain, maker: Maker) -> list[Link]:
    """The files of a manifest; of a run its manifest, which says what was asked for, and its checkpoint."""
    kind, files, links = maker.manifest.kind, maker.files, []
    stage = "problems" if kind == "training_set" else kind.replace("_", " ")
    if kind in ("run", "base_model"):
        files = {file: digest for file, digest in files.items() if file.suffix == ".safetensors"}
    if kind == "run":
        links.append(_link(chain, stage, maker.path, chain.digest(maker.path) or ""))
        stage = "checkpoint"
    return [*links, *(_link(chain, stage, file, digest) for file, digest in files.items())]


def _link(chain: Chain, stage: str, file: Path, written: str) -> Link:
    return Link(stage, chain.short(file), written, chain.is_intact(file, written))
