"""What was made beside a study, such as the claims of the papers: one run of its own in the study's experiment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file, write_json
from rlvr.tracking.database import open_experiment, writing
from rlvr.tracking.entry import Entry, content_hash
from rlvr.tracking.projection import project

_LONGEST_NOTE = 8000  # characters of a tag that MLflow keeps
_FOLDERS = {".png": "figures", ".svg": "figures", ".md": "tables", ".csv": "tables"}


@dataclass(frozen=True)
class Part:
    """What is shown.

    Attributes:
        study: name of the experiment.
        name: of the part, such as ``phenomena``; projecting it leaves every other part alone.
        title: of its run.
        note: Markdown file whose beginning, up to its second table, is the description that MLflow renders.
        files: pages, tables and figures.
    """

    study: str
    name: str
    title: str
    note: Path
    files: tuple[Path, ...]


def project_part(part: Part, database: Path, artifacts: Path, record: Path) -> dict[str, int]:
    """Project a part and write the record.

    Returns:
        How many runs were created, kept, replaced and removed.

    Raises:
        UserError: a file is missing, or the database cannot be written.
    """
    for path in (part.note, *part.files):
        if not path.is_file():
            raise UserError(f"{path}: no such file")
    beginning = "\n## ".join(part.note.read_text(encoding="utf-8").split("\n## ")[:2])
    tags = {"study": part.study, "stage": part.name, MLFLOW_RUN_NOTE: beginning[:_LONGEST_NOTE]}
    content = content_hash(tags, {path.name: sha256_file(path) for path in part.files})
    now = max(path.stat().st_mtime_ns for path in part.files) // 1_000_000
    # Pages lie to each other as on disk, so that their links hold.
    places = {path: os.path.relpath(path.parent, record.parent) for path in part.files}
    shown = {path: _FOLDERS.get(path.suffix, "" if place == "." else place) for path, place in places.items()}
    entry = Entry(f"{part.name} {part.study}", part.title, None, content, content, tags, now, now, artifacts=shown)
    with writing(database) as opened:
        experiment = open_experiment(opened.client, part.study, artifacts)
        counts = project(opened, experiment.experiment_id, artifacts, [entry], part.name)
    # Beside the record, so that results/ can be looked at from anywhere.
    note, *files = (os.path.relpath(path, record.parent) for path in (part.note, *part.files))
    written = {"study": part.study, "part": part.name, "title": part.title, "note": note, "files": files}
    write_json(record, {**written, "projected": content})
    return counts


def replay_part(record: Path, database: Path, artifacts: Path, lost: bool = False) -> dict[str, int] | None:
    """Project again what the record names, if the database is missing or ``lost``, or a file is newer.

    Raises:
        UserError: a file is missing, or the record is of another form.
    """
    content = read_json(record)
    try:
        note, files = record.parent / content["note"], tuple(record.parent / path for path in content["files"])
        part = Part(content["study"], content["part"], content["title"], note, files)
    except (KeyError, TypeError) as error:
        raise UserError(f"{record}: lacks {error}; delete it and make what it stands for again") from None
    written = record.stat().st_mtime_ns
    newer = any(path.exists() and path.stat().st_mtime_ns > written for path in (part.note, *part.files))
    return project_part(part, database, artifacts, record) if newer or lost or not database.exists() else None
