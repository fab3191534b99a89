"""A study as one small file, for a board without a server; and its proof by replay.

A replay makes cells of the study again from nothing, by the configuration in the file and the code that is installed
here: problems, base model, training run, samples and grades. The bytes must be those that the file names.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field
from typer import Option

from evals.core.errors import InvalidInput, UserError, counted
from evals.core.files import write_text
from evals.core.manifest import read_manifest
from evals.core.record import Record
from evals.core.run_spec import parts_in_files
from evals.core.values import Matching
from evals.tables.layout import markdown
from rlvr.study.evaluation import run_study
from rlvr_board.site import read_finished

_PORTABLE = "on every "
"""The beginning of what a manifest says of a run whose bytes do not depend on the machine."""
_FALSE_SHARE = 0.1
Cores = Annotated[
    int | None, Option(help="number of cores for all jobs together; default: all", min=1, show_default=False)
]
FileName = Annotated[str, Matching(r"[A-Za-z0-9_-]+\.py", "the name of a Python file")]


class Cell(Record):
    """A training run with its samples and grades.

    Attributes:
        fingerprint: of everything that decides the run: settings, versions, bytes of base model and problems.
        files: path below results/ -> SHA-256, of the files that have the same bytes wherever they are made.
    """

    fingerprint: str
    files: dict[str, str]


class Submission(Record):
    """A finished study, without its files.

    Attributes:
        study: its configuration, which names files of components by those of ``components``.
        components: name -> text of the user's files that its methods were trained with.
        root_hash: what ``rlvr-bench verify`` prints of its results.
        addresses: where its results can be had.
        table: the lines of its main table.
        cells: run -> what a replay must give.
    """

    study: dict[str, Any]
    components: dict[FileName, str] = Field(default={})
    root_hash: str
    addresses: tuple[str, ...] = ()
    table: tuple[str, ...]
    cells: dict[str, Cell]


def submission_of(directory: Path, addresses: Sequence[str] = ()) -> Submission:
    """Verify a finished study and describe it; one that was altered, or whose bytes cannot be repeated, is refused."""
    entries = list(read_finished(directory))
    if len(entries) > 1:
        raise UserError(f"{directory}: holds {counted(len(entries), 'study')}; accepted: a directory of one")
    (entry,) = entries
    runs = [run.run for run in entry.results.runs if run.seed is not None]
    if not runs:
        raise UserError(f"{directory}: its study has no training runs; accepted: one that compares methods")
    return Submission(
        study=dict(entry.study),
        components={name: source.decode("utf-8") for name, source in entry.components.items()},
        root_hash=entry.root_hash,
        addresses=tuple(addresses),
        table=tuple(markdown([entry.content["main_table"]]).splitlines()),
        cells={run: _cell(run, entry.results.benchmarks, entry.directory) for run in runs},
    )


def _cell(run: str, benchmarks: Sequence[str], results: Path) -> Cell:
    """What the manifests of a run, its samples and its grades say."""
    manifest = read_manifest(results / "runs" / run / "manifest.json", "run")
    same = str(manifest.details.get("same_bytes", "nowhere"))
    if not same.startswith(_PORTABLE):
        accepted = "runs of engine local on a CPU in float32, which have the same bytes everywhere"
        raise UserError(f"{run}: has the same bytes {same}; accepted: {accepted}")
    files = {f"runs/{run}/{name}": of for name, of in manifest.outputs.items() if name.startswith("checkpoint/")}
    for kind in ("samples", "grades"):
        for directory in (f"{kind}/{run}/{name}" for name in benchmarks):
            made = read_manifest(results / directory / "manifest.json", kind).outputs
            files |= {f"{directory}/{name}": of for name, of in made.items() if name.startswith(f"{kind}.jsonl")}
    return Cell(fingerprint=manifest.fingerprint, files=files)


def write_submission(study: Path, out: Path, address: Sequence[str] = ()) -> list[str]:
    """Write the small file by which a study is submitted to a board: configuration, table, and hashes of every run.

    The study is checked first, as by verify. Its runs must have the same bytes on every machine: engine local, on a
    CPU, in float32.

    Args:
        study: directory of a finished study, or its results/.
        out: file to write.
        address: where the results can be had; may be given several times.
    """
    submission = submission_of(study, address)
    write_text(out, json.dumps(submission.to_json(), indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    return [f"{out}: {counted(len(submission.cells), 'cell')}, root hash {submission.root_hash}"]


def replay(study: Path, seed: str, cells: int = 5, cores: Cores = None) -> Iterator[str]:
    """Make some runs of a study again from nothing, and compare their bytes with those that the study names.

    Problems, base model, training run, samples and grades are made by the study's configuration and this version of
    the code, in a temporary directory. The command says how likely such a replay is to find a false run. A difference
    ends with status 2.

    Args:
        study: directory of a finished study, or the file of a submission.
        seed: text that draws the cells, such as the hash of a commit made after the study.
        cells: number of training runs to make again.

    Raises:
        UserError: a cell has other bytes, or cannot be made again.
    """
    submission = submission_of(study) if study.is_dir() else Submission.read(study)
    if not 0 < cells <= len(submission.cells):
        raise InvalidInput("--cells", "", f"is {cells}", f"1 to {len(submission.cells)}, the cells of the study")
    chosen = draw_cells(list(submission.cells), cells, seed)
    with TemporaryDirectory(prefix="replay-") as temporary:
        made = _make_again(submission, chosen, Path(temporary), cores)
    faults = []
    for run in chosen:
        fault = difference(submission.cells[run], made[run])
        yield f"{run}: {fault or 'the same bytes in ' + counted(len(made[run].files), 'file')}"
        faults += [f"{run}: {fault}"] if fault else []
    yield odds(len(submission.cells), cells)
    if faults:
        raise UserError(f"not what the study says: {len(faults)} of {counted(cells, 'cell')}: {faults[0]}")


def draw_cells(cells: Sequence[str], count: int, seed: str) -> list[str]:
    """Draw some cells by a text that nobody could know when the study was made."""
    return sorted(cells, key=lambda run: (sha256(f"{seed} {run}".encode()).hexdigest(), run))[:count]


def chance_to_find(cells: int, false: int, replayed: int) -> float:
    """Return the probability that at least one of the ``false`` cells is among those that are ``replayed``."""
    return 1 - comb(cells - false, replayed) / comb(cells, replayed)


def odds(cells: int, replayed: int) -> str:
    """Say how likely a replay of so many cells is to find a study with one false cell, and one with a tenth of them."""
    some = max(2, round(_FALSE_SHARE * cells)) if cells > 1 else 1
    one, several = (f"{100 * chance_to_find(cells, false, replayed):.0f} %" for false in (1, some))
    return (
        f"made again: {replayed} of {counted(cells, 'cell')}; this finds a false one with a probability of {one} if "
        f"one cell is false, and of {several} if {some} are"
    )


def _make_again(submission: Submission, runs: Sequence[str], out: Path, cores: int | None) -> dict[str, Cell]:
    """Run the study's configuration up to the grades of some runs, in an empty directory."""
    settings: dict[str, Any] = json.loads(json.dumps(submission.study))
    for name, source in submission.components.items():
        write_text(out / name, source)
    for part in (part for method in settings.get("methods", {}).values() for part in parts_in_files(method)):
        if part["file"] not in submission.components:
            raise InvalidInput("components", "", f"lacks {part['file']}, which the study names", "the file's text")
        part["file"] = str(out / part["file"])
    names = settings.get("benchmarks", ())
    run_study(settings, out, cores, [f"results/grades/{run}/manifest.json" for run in runs])
    return {run: _cell(run, names, out / "results") for run in runs}


def difference(said: Cell, made: Cell) -> str:
    """Say in what a cell that was made again differs from what is said of it; nothing where it does not."""
    if said.fingerprint != made.fingerprint:
        return "is another run here: its settings, the versions of the code, its base model or its problems differ"
    for name in sorted({**said.files, **made.files}):
        ours, theirs = made.files.get(name, "no such file"), said.files.get(name, "no such file")
        if ours != theirs:
            return f"{name} has other bytes here ({ours[:12]}) than the study says ({theirs[:12]})"
    return ""
