"""A board of finished studies: static pages, made from verified results alone.

What a study's own pages hold is not shown, for they may come from anybody; every number is made from its files again.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from typer import Option

from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, write_bytes, write_text
from evals.core.manifest import Manifest, read_manifest
from evals.core.records import BASE
from evals.core.run_spec import parts_in_files
from evals.results import Results, read_results
from evals.tables import numbers
from evals.tables.layout import Table
from evals.trace.commands import read_verified
from rlvr.report.html import fill_template
from rlvr.report.page import report_content
from rlvr.report.provenance import component_files, read_run_manifest, read_study, studies_of
from rlvr.report.responses import write_responses_page
from rlvr_board.comparability import Setup, differing, setup_of

_COLUMNS = ("Method", "Versus ", "Verdict", "MDE", "Contrast", "Fell", "Seeds", "Tokens", "CPU")
_PAGE = "index.html"
_KIND = "RLVR Bench board"


@dataclass(frozen=True)
class Entry:
    """A verified study.

    Attributes:
        name: its directory on the board.
        study: its resolved configuration, which names files of components by those of ``components``.
        content: variables of the report's template.
        results, directory: what it found, and results/, where that lies.
        sheet: its run sheet, runs.json.
        root_hash: of everything in ``directory``.
        made: when its last file was written.
        components: name -> bytes of the user's files that its methods were trained with.
    """

    name: str
    study: Mapping[str, Any]
    content: Mapping[str, Any]
    results: Results
    directory: Path
    sheet: Path
    root_hash: str
    made: str
    components: Mapping[str, bytes]

    @property
    def address(self) -> str:
        """Of its page, from that of the board."""
        return f"{self.name}/{_PAGE}"


@dataclass(frozen=True)
class Row:
    """A method beside its reference method: cells of the board's table, and what it can be compared within."""

    entry: Entry
    model: str
    header: tuple[str, ...]
    cells: tuple[str, ...]
    setup: Setup


def write_board(results: Sequence[Path], out: Path, responses: Annotated[int, Option(min=0)] = 0) -> list[str]:
    """Write a board of finished studies: static pages that need no network and no server.

    Every study is checked first, as by verify; one that was altered is refused by name, and nothing is written. Methods
    stand in one table where task, model, budget and reference method are the same; elsewhere the page says in what they
    are not comparable. Each study has a page with its curves and its file. The same studies give the same bytes.

    Args:
        results: directories of studies, or their results/.
        out: directory of the pages: a new one, or a board to replace.
        responses: number of each method's seeds whose responses are shown.

    Returns:
        A line for each study, and one for the board.

    Raises:
        UserError: a study does not verify, or is not finished.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not _is_board(out))):
        raise InvalidInput("", "--out", f"{out} holds other files", "a new directory, or a board to replace")
    entries = _named([entry for directory in results for entry in read_finished(directory)])
    rows = [row for entry in entries for row in _rows(entry)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        built = Path(temporary, "board")
        write_text(built / _PAGE, _board_page(entries, rows))
        for entry in entries:
            write_text(built / entry.address, _entry_page(entry, has_responses=responses > 0))
            for name in entry.results.benchmarks if responses else ():
                _write_responses(entry, name, responses, built / entry.name / "responses" / name)
            write_text(built / entry.name / "study.json", _json(entry.study))
            for name, source in entry.components.items():
                write_bytes(built / entry.name / name, source)
        if out.exists():
            shutil.rmtree(out)
        built.rename(out)
    return [
        *(f"{entry.name}: verified, root hash {entry.root_hash}" for entry in entries),
        f"{out / _PAGE}: studies: {len(entries)}, comparisons: {len(rows)}",
    ]


def _is_board(directory: Path) -> bool:
    page = directory / _PAGE
    return page.is_file() and f": {_KIND}</title>" in page.read_text(encoding="utf-8", errors="replace")[:1000]


def read_finished(directory: Path) -> Iterator[Entry]:
    """Verify a directory, and read the finished studies in it."""
    results, chain = read_verified(directory)
    finished = [study for study in studies_of(results) if (study / "report.manifest.json").is_file()]
    if not finished:
        raise UserError(f"{directory}: holds no finished study; accepted: one with its report, which snakemake makes")
    made = max(maker.manifest.created for maker in chain.makers)[:16].replace("T", " ") + " UTC"
    for study in finished:
        settings = read_study(study / "study.json")
        scores = [study / "scores" / f"{name}.json" for name in settings.get("benchmarks", ())]
        read = read_results(study / "runs.json", scores, study / "comparisons.json")
        notes = read_manifest(study / "report.manifest.json", "report").parameters.get("notes", [])
        drawn = [figure for figure in [study / "figures/differences.svg"] if figure.is_file()]
        of_report = settings, read, results, drawn, notes, settings.get("title")
        content, inputs = report_content(study / "study.json", *of_report)
        verified = {path.resolve() for path in chain.files}
        if foreign := [path for path in inputs if path.resolve() not in verified]:
            raise UserError(f"{directory}: needs {foreign[0]}, which is none of its verified files")
        manifests = [read_run_manifest(run, results) for run in read.runs]
        components = {
            f"{_plain(Path(name).stem)}.py": file.read_bytes() for name, file in component_files(manifests, results)
        }
        settings = _with_files_beside(settings, components)
        texts = {name: source.decode("utf-8", "replace") for name, source in components.items()}
        content = {**content, "notes": notes, "settings": _json(settings), "components": texts}
        sheet = study / "runs.json"
        yield Entry(settings["study"], settings, content, read, results, sheet, chain.root_hash(), made, components)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _with_files_beside(settings: Mapping[str, Any], components: Mapping[str, bytes]) -> dict[str, Any]:
    """The configuration with the names of components' files in place of where they lay on its maker's machine."""
    copied: dict[str, Any] = json.loads(json.dumps(settings))
    for method in copied.get("methods", {}).values():
        for part in parts_in_files(method):
            beside = f"{_plain(Path(part['file']).stem)}.py"
            part["file"] = beside if beside in components else part["file"]
    return copied


def _plain(name: str) -> str:
    """A name that is one in every file system and address."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "study"


def _named(entries: Iterable[Entry]) -> list[Entry]:
    """Sort studies and give each a directory of its own, whatever order they came in; one given twice is refused."""
    ordered = sorted(entries, key=lambda entry: (_plain(entry.name).lower(), entry.root_hash, entry.name))
    counts = Counter(_plain(entry.name).lower() for entry in ordered)
    plain = [_plain(entry.name) for entry in ordered]
    names = [
        name if counts[name.lower()] == 1 else f"{name}-{entry.root_hash[:8]}"
        for name, entry in zip(plain, ordered, strict=True)
    ]
    for index, name in enumerate(names):
        if name.lower() in map(str.lower, names[:index]):
            raise UserError(f"{ordered[index].name}: is given twice, root hash {ordered[index].root_hash}")
    return [replace(entry, name=name) for name, entry in zip(names, ordered, strict=True)]


def _rows(entry: Entry) -> Iterator[Row]:
    """The rows of a study: every method that is compared with the reference."""
    table, results = entry.content["main_table"], entry.results
    chosen = [index for begin in _COLUMNS for index, name in enumerate(table.header) if name.startswith(begin)]
    controls = set(dict(results.controls or {}).values())
    for condition, cells in zip(results.conditions, table.rows, strict=True):
        if results.comparison(condition, results.reference_method) is None or condition.method == BASE:
            continue
        shown = [cells[index] for index in chosen]
        shown[0] += " (control)" if condition.method in controls else ""
        version = _version(read_run_manifest(condition.runs[0], entry.directory))
        header = (*(table.header[index] for index in chosen), "Study", "Version")
        yield Row(
            entry,
            condition.model,
            header,
            (*shown, entry.content["title"], version),
            setup_of(results, entry.study, entry.directory, condition),
        )


def _version(manifest: Manifest) -> str:
    """Method, engine and code that made a run."""
    method, versions = manifest.parameters.get("method"), manifest.parameters.get("versions", {})
    of_method = method.get("version") if isinstance(method, dict) else None
    told = [f"method {'.'.join(map(str, of_method))}"] if isinstance(of_method, list) else []
    told += [f"engine {versions['engine']}"] if "engine" in versions else []
    told += [str(manifest.environment["commit"])[:7]] if manifest.environment.get("commit") else []
    return ",\n".join(told) or numbers.NOTHING


def _board_page(entries: Sequence[Entry], rows: Sequence[Row]) -> str:
    by_task: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        by_task.setdefault(fingerprint(row.setup["task"]), {}).setdefault(fingerprint(row.setup), []).append(row)
    tasks: list[dict[str, Any]] = []
    first_task = next(iter(next(iter(by_task.values())).values()))[0].setup if by_task else {}
    for groups in by_task.values():
        ordered = sorted(groups.values(), key=len, reverse=True)  # of equal ones in the order of the studies
        anchor = ordered[0][0].setup
        tasks.append(
            {
                "title": anchor["task"]["benchmarks"],
                "differs": differing(anchor, first_task, ("task",)),
                "tables": [_table(group) for group in ordered],
                "differ": [differing(group[0].setup, anchor, ("model", "budget", "reference")) for group in ordered],
            }
        )
    header = ("Study", "Comparisons", "Last file", "Root hash")
    count = Counter(row.entry.name for row in rows)
    titles = {entry.name: str(entry.content["title"]) for entry in entries}
    cells = [(titles[entry.name], str(count[entry.name]), entry.made, entry.root_hash) for entry in entries]
    notes = [f"{titles[entry.name]}: {note}" for entry in entries for note in entry.content["notes"]]
    links = tuple((entry.address, "", "", "") for entry in entries)
    studies = Table("studies", "Studies", header, tuple(cells), tuple(notes), links)
    return fill_template(
        "board.html.jinja",
        "report.js",
        "rlvr_board",
        title="Methods and their references",
        kind=_KIND,
        created=max(entry.made for entry in entries),
        root_hash=fingerprint(sorted(entry.root_hash for entry in entries)),
        tasks=tasks,
        studies=studies,
    )


def _table(group: Sequence[Row]) -> Table:
    budget = ", ".join(f"{key} {value}" for key, value in group[0].setup["budget"].items())
    title = f"Model {group[0].model}; {budget}"
    links = tuple((*[""] * (len(row.cells) - 2), row.entry.address, "") for row in group)
    return Table("board", title, group[0].header, tuple(row.cells for row in group), (), links)


def _write_responses(entry: Entry, benchmark: str, seeds: int, directory: Path) -> None:
    """Write the page of the responses of each method's first seeds to a benchmark, from the verified samples."""
    runs = [run.run for run in entry.results.runs]
    if hostile := [name for name in (benchmark, *runs) if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name)]:
        raise UserError(f"{entry.directory}: has the name {hostile[0]!r}; accepted: letters, digits, '.', '_' and '-'")
    pages: dict[str, Any] = {"benchmarks": entry.results.benchmarks, "report": "../../index.html", "seeds": seeds}
    pages |= {"created": entry.made, "root_hash": entry.root_hash}
    write_responses_page(benchmark, entry.sheet, entry.directory, directory / _PAGE, **pages)
    (directory / "manifest.json").unlink()  # names the place where the studies lie


def _entry_page(entry: Entry, has_responses: bool) -> str:
    content = dict(entry.content)
    views = [view for view in content["charts"]["views"] if "isOfProblems" not in view]
    content |= {
        "charts": {**content["charts"], "views": views},
        # A row for every run, or a point for every problem, is for the study's own report.
        **dict.fromkeys(("seed_tables", "audit_tables"), ()),
        "rollouts": "",
    }
    if not has_responses:
        content["benchmark_tables"] = [_without_responses(table) for table in content["benchmark_tables"]]
        content["main_table"] = _without_responses(content["main_table"])
    return fill_template(
        "entry.html.jinja",
        "report.js",
        "rlvr_board",
        created=entry.made,
        root_hash=entry.root_hash,
        **content,
    )


def _without_responses(table: Table) -> Table:
    """A table without the links to responses, for a board that has none."""
    links = tuple(tuple(link if link.startswith("#") else "" for link in row) for row in table.links)
    return replace(table, links=links)
