"""The chain of each row of a table, stage by stage."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.trace.chain import Chain, Maker

STAGES = {
    "problems": "problems",
    "training_set": "problems",
    "corpus": "corpus",
    "base_model": "base model",
    "run": "run",
    "token_table": "token table",
    "probes": "probes",
    "samples": "samples",
    "grades": "grades",
    "audit": "audit",
    "scores": "scores",
    "comparisons": "comparisons",
    "findings": "findings",
}
_PER_RUN = ("samples", "grades")


@dataclass(frozen=True)
class Link:
    """One file in the chain of a row.

    Attributes:
        stage: what it is, in words.
        path: as short as it can be said.
        sha256: of what the chain rests on: the bytes as they were written or read.
        intact: whether the bytes are still those.
    """

    stage: str
    path: str
    sha256: str
    intact: bool


@dataclass(frozen=True)
class TracedRow:
    """A row of a table, its runs, and its chain from the problems on."""

    title: str
    runs: tuple[str, ...]
    links: tuple[Link, ...]


def trace_rows(chain: Chain, table: Path) -> tuple[list[TracedRow], list[str]]:
    """The chains of a table's rows, and faults of rows whose runs are not behind the table.

    Only ``.csv`` files have rows; anything else is traced as a single one.
    """
    maker = next(iter(chain.makers.values()))
    makers = chain.behind(maker)
    sheet = _run_sheet(chain)
    rows, faults = [], []
    for title, runs in _rows(table, sheet) if table.suffix == ".csv" else [(table.name, None)]:
        chosen = _restricted(chain, makers, runs)
        if runs is not None:
            graded = {each.path.parent.parent.name for each in chosen if each.kind == "grades"}
            faults += [
                f"{chain.shown(table.absolute())}: row {title}: no grades of run {run} are behind the table"
                for run in runs
                if run not in graded
            ]
        links = [link for each in _in_order(chosen) for link in _links(chain, each)]
        links.append(_link(chain, "table" if table.suffix == ".csv" else maker.kind, table.absolute(), maker))
        rows.append(TracedRow(title, tuple(runs or ()), tuple(links)))
    return rows, faults


def _run_sheet(chain: Chain) -> list[Mapping[str, str]]:
    """The list of runs that the table was made from; empty if there is none."""
    for path in chain.sources:
        if path.name == "runs.json" and path.is_file():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                return []
            return content if isinstance(content, list) else []
    return []


def _rows(table: Path, sheet: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str] | None]]:
    """Title and runs of each row: from its column runs or run, or else all runs of its model and method."""
    with open(table, encoding="utf-8", newline="") as handle:
        content = list(csv.DictReader(handle))
    rows: list[tuple[str, list[str] | None]] = []
    for number, row in enumerate(content, start=1):
        if row.get("runs") or row.get("run"):
            runs: list[str] | None = (row.get("runs") or row["run"]).split()
        elif row.get("method"):
            wanted = (row.get("model"), row["method"])
            runs = [entry["run"] for entry in sheet if (entry.get("model"), entry.get("method")) == wanted]
        else:
            runs = None
        name = row.get("title") or row.get("method") or f"row {number}"
        extra = [row[key] for key in ("benchmark", "paper", "table") if row.get(key)]
        rows.append((", ".join([name, *extra]), runs))
    return rows


def _restricted(chain: Chain, makers: Sequence[Maker], runs: Sequence[str] | None) -> list[Maker]:
    """What is behind some runs: their samples and grades, the checkpoints and problems of those, and all scores."""
    if runs is None:
        return list(makers)
    own = [each for each in makers if each.kind in _PER_RUN and each.path.parent.parent.name in runs]
    behind = {other.path: other for each in own for other in chain.behind(each)}
    scores = [each for each in makers if each.kind in ("scores", "comparisons")]
    return [*behind.values(), *(each for each in scores if each.path not in behind)]


def _in_order(makers: Sequence[Maker]) -> list[Maker]:
    order = list(STAGES)
    rank = {kind: number for number, kind in enumerate(order)}
    return sorted(
        (each for each in makers if each.kind in rank), key=lambda each: (rank[each.kind], each.path.as_posix())
    )


def _links(chain: Chain, maker: Maker) -> list[Link]:
    """A manifest's files; of a run also its manifest, which says what was asked for."""
    links = []
    if maker.kind == "run":
        digest = chain.digest(maker.path) or ""
        links.append(Link("run", chain.shown(maker.path), digest, _fits(chain, maker.path)))
    for file in maker.files:
        stage = STAGES[maker.kind]
        if maker.kind in ("run", "base_model"):
            if file.suffix != ".safetensors":
                continue
            stage = "checkpoint" if maker.kind == "run" else stage
        links.append(_link(chain, stage, file, maker))
    return links


def _link(chain: Chain, stage: str, file: Path, maker: Maker) -> Link:
    written = maker.files[file]
    return Link(stage, chain.shown(file), written, chain.digest(file) == written and _fits(chain, file))


def _fits(chain: Chain, file: Path) -> bool:
    """Whether no fault names the file."""
    return not any(fault.startswith(f"{chain.shown(file)}:") for fault in chain.faults)
