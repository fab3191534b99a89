"""The commands that check results: ``rlvr-bench trace`` for a table's rows, ``rlvr-bench verify`` for a directory.

The chain of each row is printed stage by stage; a whole results directory is checked wherever it lies.
"""

import csv
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError, counted, printable
from evals.core.files import located
from evals.core.records import Run, read_runs
from evals.trace.chain import Chain, Maker, follow

_STAGES = (
    *("problems", "training_set", "corpus", "base_model", "run", "token_table", "probes"),
    *("samples", "grades", "audit", "scores", "comparisons", "findings"),
)
"""The kinds of manifests that are stages of a row, in order."""

Row = Mapping[str, Any]
"""The ``title`` and ``runs`` of a table's row, and ``links``: the files of its chain from the problems on.

Of each link the ``stage``, ``path``, ``sha256`` that the chain rests on, and whether the file is ``intact``.
"""


def trace(files: Sequence[Path], row: str | None = None, faults_only: bool = False, as_json: bool = False) -> None:
    """Trace tables, figures and reports back to the bytes that they were made from, and verify every one by SHA-256.

    For each row of a table: problems, base model, run, checkpoint, samples, grades, scores, comparisons, table. A file
    whose bytes changed, a manifest that was edited, and a result that was made from other bytes than are there now are
    named, and so is a file that has lost its manifest; the exit status is then 2. Anything with a manifest beside it
    can be traced: tables (.csv has rows), figures, pages.

    Args:
        files: such as results/tables/main.csv.
        row: text that the title or the runs of a row must contain.
        faults_only: print the faults alone.
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
            rows = [each for each in rows if row in each["title"] or row in " ".join(each["runs"])]
            if not rows:
                raise UserError(f"--row: {path} has no row with {row!r}")
        faults = [*chain.faults, *foreign]
        broken += faults
        root_hash = chain.root_hash(maker.path)
        if not as_json:
            for each in [] if faults_only else rows:
                runs = f" ({', '.join(each['runs'])})" if each["runs"] else ""
                print(printable(f"{each['title']}{runs}"))
                for link in each["links"]:
                    state = "ok     " if link["intact"] else "CHANGED"
                    print(f"  {link['stage']:<12} {link['sha256'][:12]}  {state}  {link['path']}")
                print()
            print_verdict(chain, path, faults, root_hash)
        sources = {chain.short(each): digest for each, digest in chain.sources.items()}
        reports.append({"file": str(path), **_report(chain, faults, root_hash), "sources": sources, "rows": rows})
    if as_json:
        print(json.dumps({"files": reports}, indent=2, ensure_ascii=False))
    refuse(broken)


def _report(chain: Chain, faults: Sequence[str], root_hash: str) -> dict[str, Any]:
    """Make the part of the JSON that trace and verify share."""
    report = {"verified": not faults, "faults": faults, "manifests": len(chain.makers), "root_hash": root_hash}
    return report | {"sources_elsewhere": [str(path) for path in chain.elsewhere]}


def refuse(faults: Sequence[str]) -> None:
    """End with the first of some faults, and the number of the others."""
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise UserError(f"{faults[0]}{more}")


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


def trace_rows(chain: Chain, table: Path, maker: Maker) -> tuple[list[Row], list[str]]:
    """The chains of a table's rows, and faults of rows whose runs are not behind the table; ``maker`` lists it.

    Only ``.csv`` files have rows; anything else is traced as a single one.
    """
    is_table = table.suffix == ".csv"
    rows, faults = list[Row](), list[str]()
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
        rows.append({"title": title, "runs": runs or [], "links": links})
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


def _links(chain: Chain, maker: Maker) -> list[Row]:
    """The files of a manifest; of a run its manifest, which says what was asked for, and its checkpoint."""
    kind, files, links = maker.manifest.kind, maker.files, []
    stage = "problems" if kind == "training_set" else kind.replace("_", " ")
    if kind in ("run", "base_model"):
        files = {file: digest for file, digest in files.items() if file.suffix == ".safetensors"}
    if kind == "run":
        links.append(_link(chain, stage, maker.path, chain.digest(maker.path) or ""))
        stage = "checkpoint"
    return [*links, *(_link(chain, stage, file, digest) for file, digest in files.items())]


def _link(chain: Chain, stage: str, file: Path, written: str) -> Row:
    named = any(fault.startswith(f"{chain.short(file)}:") for fault in chain.faults)
    is_intact = chain.digest(file) == written and not named
    return {"stage": stage, "path": chain.short(file), "sha256": written, "intact": is_intact}


_RESULTS = "results"
_NO_RESULTS = re.compile(
    r"(claims/(decoding/)?)?(logs|jobs|costs|mlflow-artifacts)/"  # of the study, or of rlvr-claims
    r"|(.*/)?\.[^/]*(/|$)"  # what Snakemake, writers and file managers keep for themselves
    r"|((base|runs)/[^/]+|(claims/(decoding/)?|decodings/[^/]+/)?samples/[^/]+/[^/]+|claims/decoding/sweeps/[^/]+/points/[^/]+)/state/"
    r"|base/[^/]+/converted/"  # what the link checkpoint beside it leads to
    r"|runs/[^/]+/(verl/|(checkpoints/step-\d+/)?(run|cluster)\.json$)"
    r"|runs/[^/]+/(metrics_so_far\..*|(candidates|checkpoints/.*)\.kept)$"
    r"|(problems|claims/decoding)/[^/]+/disjoint\.json$"
    r"|(.*/)?progress\.json$"
    r"|(studies/[^/]+/)?(best/|decodings/[^/]+/)?(study|runs|tracking)\.json$"
    r"|(mlflow\.db[^/]*|README\.md)$"
)
"""Files below results/ that are no results: logs, settings, measurements, states to go on from, tools' own files."""


def verify(directory: Path, root_hash: str = "", as_json: bool = False) -> None:
    """Check every byte of a study's results: all manifests, what they list, and what that was made from.

    Needs nothing but the files, so it can be run on a copy and on another machine. A file that no manifest lists is a
    fault too, but for logs, measured costs, saved states and MLflow's copies. Hashes are no signatures: somebody who
    edits a file and every manifest above it is not caught, unless the hash of all bytes was published before. The root
    hash covers no times: a study that is made again has the same. A fault ends with status 2.

    Args:
        directory: of the study, or its results/.
        root_hash: expected root hash, or hash of all bytes.
        as_json: print JSON.

    Raises:
        UserError: the directory holds no results, or something does not fit.
    """
    _, chain, faults = _checked(directory)
    computed = chain.root_hash()
    of_bytes = chain.root_hash(of_bytes=True)
    if root_hash and root_hash not in (computed, of_bytes):
        faults.append(f"{directory}: its root hash is {computed}, not {root_hash}")
    if as_json:
        report = _report(chain, faults, computed) | {"bytes_hash": of_bytes}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print(f"hash of all bytes {of_bytes}")
        print_verdict(chain, directory, faults, computed)
    refuse(faults)


def read_verified(directory: Path) -> tuple[Path, Chain]:
    """Check a study's results as :func:`verify` does; one that was altered is a :class:`UserError` that names it.

    Returns:
        Its results/, and everything behind them.
    """
    results, chain, faults = _checked(directory)
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise UserError(f"{directory}: does not verify: {faults[0]}{more}; rlvr-bench verify lists all")
    return results, chain


def _checked(directory: Path) -> tuple[Path, Chain, list[str]]:
    """The results of a directory, everything behind them, and what does not fit."""
    if not directory.is_dir():
        raise UserError(f"{directory}: is no directory; accepted: a study's, or its results/")
    results = located(directory)
    results = results / _RESULTS if (results / _RESULTS).is_dir() else results
    makers, faults = list[Maker](), list[str]()
    files = list(_files(results, results))
    for path in files:
        if path.name.endswith("manifest.json"):
            try:
                makers.append(Maker.read(path))
            except UserError as error:
                faults.append(str(error))
    if not makers and not faults:
        raise InvalidInput("directory", "", f"{directory} holds no manifests", "a study's directory, or its results/")
    chain = Chain(results / "manifest.json", makers)
    named = {part for maker in makers for name in maker.manifest.inputs for part in Path(name).parts[:1]}
    if _RESULTS in named and not results.is_relative_to(chain.root / _RESULTS):
        complaint = f"{directory} has another name than {_RESULTS}, by which its manifests know it"
        raise InvalidInput("directory", "", complaint, f"the same files in a directory {_RESULTS}, wherever it lies")
    chain.check()
    listed = {file for maker in chain.makers for file in maker.files} | chain.sources.keys()
    for path in files:
        if path not in listed and not path.name.endswith("manifest.json"):
            chain.faults.append(f"{chain.short(path)}: no manifest lists it, so nothing says what it was made from")
    return results, chain, list(dict.fromkeys([*faults, *chain.faults]))


def _files(directory: Path, results: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """All files that are results, those behind links to directories too; a link to a directory above is passed over."""
    above = (*above, os.path.realpath(directory))
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        path = directory / entry.name
        is_directory = entry.is_dir()
        if _NO_RESULTS.match(path.relative_to(results).as_posix() + "/" * is_directory):
            continue
        if not is_directory:
            yield path
        # An imported model is a link to its files, which have much that is not listed and not read.
        elif os.path.realpath(path) not in above and not (entry.is_symlink() and path.match("base/*/checkpoint")):
            yield from _files(path, results, above)
