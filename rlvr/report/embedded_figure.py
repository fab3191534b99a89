"""A figure inside a page that needs nothing beside it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import UserError


@dataclass(frozen=True)
class EmbeddedFigure:
    """A figure inside a page."""

    name: str
    data_uri: str
    alternative: str
    caption: str

    @classmethod
    def read(cls, path: Path, alternative: str, caption: str) -> EmbeddedFigure:
        """An SVG file.

        Raises:
            UserError: there is none.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        uri = "data:image/svg+xml;base64," + base64.b64encode(content).decode("ascii")
        return cls(path.stem, uri, alternative, caption)
