"""The frame of all pages of results: one HTML file that needs nothing else, no script, no font, no file beside it."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import write_text
from evals.core.manifest import write_output_manifest
from evals.trace.chain import root_hash_of
from rlvr.page_template import page_template


def embedded(path: Path) -> str:
    """Read an SVG file as an address that holds the file's content."""
    try:
        return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None


def write_page(template: str, out: Path, inputs: Sequence[Path], notes: Sequence[str], **content: Any) -> None:
    """Write a page and its manifest; ``template`` is a file of ``templates/``, ``content`` has its other variables."""
    style = resources.files("rlvr.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    created = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    frame = {"style": style, "created": created, "notes": notes, "root_hash": root_hash_of(out, inputs)}
    page = page_template(template, "rlvr.report").render(**frame, **content)
    write_text(out, page)
    write_output_manifest("report", out.with_suffix(""), [out.suffix], inputs, {"notes": list(notes)})
