"""The frame of all pages of results: one HTML file that needs nothing else, no font, no file beside it."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from evals.core.files import reading, write_text
from evals.core.manifest import write_output_manifest
from evals.trace.chain import root_hash_of
from rlvr.page_template import page_template


def embedded(path: Path) -> str:
    """Read an SVG file as an address that holds the file's content."""
    with reading(path):
        return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def fill_template(template: str, script: str, *packages: str, **content: Any) -> str:
    """Fill a template of the report's or of other packages' pages; the report's style and a script of its are added."""
    files = resources.files("rlvr.report").joinpath("templates")
    path = files.joinpath(script)
    return page_template(template, *packages, "rlvr.report").render(
        style=files.joinpath("report.css").read_text(encoding="utf-8"),
        script=path.read_text(encoding="utf-8") if path.is_file() else "",
        **content,
    )


def render_page(template: str, out: Path, inputs: Sequence[Path], *packages: str, **content: Any) -> str:
    """Fill a template of pages; the script of its name, the time and the hash of what is behind it are added.

    A time ``created`` and a ``root_hash`` in the content stand in place of these two.
    """
    if "root_hash" not in content:
        content["root_hash"] = root_hash_of(out, inputs)
    content = {"created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), **content}
    return fill_template(template, template.replace(".html.jinja", ".js"), *packages, **content)


def write_page(
    template: str, out: Path, inputs: Sequence[Path], notes: Sequence[str], *packages: str, **content: Any
) -> None:
    """Write a page and its manifest; ``template`` is a file of ``templates/``, ``content`` has its other variables."""
    write_text(out, render_page(template, out, inputs, *packages, notes=notes, **content))
    write_output_manifest("report", out.with_suffix(""), [out.suffix], inputs, {"notes": list(notes)})
