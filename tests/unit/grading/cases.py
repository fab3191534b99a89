"""The tables of cases.txt: a case a line, its parts between " | ", and "~" for the end of a line of a text."""

from pathlib import Path


def table(name: str) -> list[tuple[str, ...]]:
    """The cases below the heading ``== name``."""
    content = Path(__file__).with_suffix(".txt").read_text("utf-8")
    tables = dict(part.split("\n", 1) for part in content.removeprefix("== ").removesuffix("\n").split("\n\n== "))
    return [tuple(line.replace("~", "\n").split(" | ")) for line in tables[name].split("\n")]
