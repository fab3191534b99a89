"""The page that shows responses: a table of problems by methods, and of a cell every response in colour.

A page opens from disk, without a network or a server. It holds the verdicts; the texts lie in files beside it that it
loads when they are looked at. A page cannot read other files from disk, but it can run scripts: the texts are scripts
that hand over compressed JSON. What the page is given stands in the templates responses.html.jinja and responses.js.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.core.files import fingerprint, sha256_file, write_text
from evals.core.manifest import Manifest, hash_files
from evals.core.records import Condition
from rlvr.report.html import render_page
from rlvr.tokens.view import LEVELS, levels

CHUNK_BYTES = 2_000_000
"""Text that a page loads at a time, about; a problem's responses are never divided."""
CORRECT, TRUNCATED = 1, 2
"""Flags of a response on every page; 4 and 8 are a page's own."""


@dataclass(frozen=True)
class Part:
    """The part of a study that is looked at together: a benchmark, or a step of the training runs."""

    step: int | None
    problems: Sequence[tuple[str, str | None, str | None]]  # id, text unless it is withheld, answer
    columns: Sequence[dict[str, Any]]  # as column_of makes them
    legends: Mapping[str, Sequence[tuple[int, str]]]  # of colours: strength and values


def column_of(condition: Condition, shown: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Make the column of a model and method, of those of its runs that are ``shown``."""
    runs = [shown[run.run] for run in condition.runs if run.run in shown]
    return {"name": f"{condition.model}-{condition.method}", "title": condition.title, "runs": runs}


def write_responses(
    name: str, run: str, seed: int | None, flags: Sequence[Sequence[int]], rows: Sequence[Sequence[Any]], texts: Path
) -> tuple[dict[str, Any], list[Path]]:
    """Write a run's responses as scripts, ``{name}-{number}.js`` in the directory ``texts``.

    Args:
        seed: of the run; None for a base model.
        flags: of each problem's responses, sums of the page's flags.
        rows: of each problem's responses, what the page shows of them.

    Returns:
        The run as a column of the page has it, and the files.
    """
    # An empty text stands for that of the tokens, if there are any.
    shown = (row[4] if not row[0] and len(row) > 4 else row[:1] for responses in rows for row in responses)
    size = sum(len(text) for texts_of_row in shown for text in texts_of_row)
    problems = max(1, min(len(rows), CHUNK_BYTES * len(rows) // max(size, 1)))
    paths = []
    for number, first in enumerate(range(0, len(rows), problems)):
        path = texts / f"{name}-{number}.js"
        write_text(path, f'loaded("{name}-{number}","{_compressed(rows[first : first + problems])}");\n')
        paths.append(path)
    digits = ["".join(f"{flag:x}" for flag in of_problem) for of_problem in flags]
    return {"run": run, "seed": seed, "texts": name, "chunk": problems, "flags": digits}, paths


def level_letters(values: npt.NDArray[np.float64], middle: float, scale: float) -> str:
    """Return the colour of each value as a letter, "e" for none; :func:`rlvr.tokens.view.levels`."""
    return "".join(chr(ord("a") + LEVELS + level) for level in levels(values, middle, scale).tolist())


def write_viewer(
    kind: str,
    out: Path,
    inputs: Sequence[Path],
    texts: Sequence[Path],
    parts: Sequence[Part],
    colours: Sequence[dict[str, str]],
    runs: Sequence[tuple[str, str]] = (),
    **content: Any,
) -> None:
    """Write the page, with the manifest of it and of its texts.

    Args:
        kind: of the manifest.
        out: the page.
        inputs: the files that it was made from.
        texts: the files beside it that it loads; others in their directory, of an earlier page, are removed.
        parts: what is shown, one at a time.
        colours: of tokens: key, title and meaning.
        runs: id and title of those that can be chosen.
        content: variables of the template.
    """
    directory = out.with_name("texts")
    directory.mkdir(parents=True, exist_ok=True)  # there may be none
    for stale in set(directory.glob("*.js")) - set(texts):
        stale.unlink()
    index = {"steps": [vars(part) for part in parts], "colours": colours, "runs": runs}
    write_text(out, render_page("responses.html.jinja", out, inputs, index=_compressed(index), **content))
    hashes = {path.as_posix(): sha256_file(path) for path in inputs}
    identity = fingerprint({"kind": kind, "inputs": sorted(hashes.values()), "parameters": {}})
    manifest = Manifest(kind, hashes, hash_files(out.parent, out, *texts), {}, identity, {})
    manifest.write(out.with_name("manifest.json"))


def _compressed(content: Any) -> str:
    """JSON, compressed as browsers can read it (zlib), in base64."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 6)).decode("ascii")
