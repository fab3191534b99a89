"""Characters of Unicode in LaTeX and ASCII: symbols, digits of all scripts, raised and lowered ones, Greek letters."""

import json
import re
import unicodedata
from functools import cache
from itertools import groupby
from pathlib import Path

from evals.grading.exact import ascii_digit

_UNICODE = str.maketrans(json.loads(Path(__file__).with_name("characters.json").read_text(encoding="utf-8")))
"""Replacements that no rule of Unicode gives: LaTeX for symbols, nothing for signs without width or of direction."""

_OVERLINED = re.compile(r"(?:\d\u0305)+")
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)")


def in_ascii(text: str) -> str:
    """Symbols of Unicode in LaTeX, and the digits of all scripts as ours."""
    if text.isascii():
        return text.translate(_UNICODE)
    text = _OVERLINED.sub(lambda run: r"\overline{" + run[0].replace("\u0305", "") + "}", text)
    runs = groupby(text.translate(_UNICODE), _off_the_line)
    parts = ((sign, "".join(map(_plain, run))) for sign, run in runs)
    return "".join(f"{sign}{{{plain}}}" if sign else plain for sign, plain in parts)


@cache
def _off_the_line(character: str) -> str:
    """The sign of LaTeX for a raised or lowered character; nothing for others."""
    return {"<super>": "^", "<sub>": "_"}.get(unicodedata.decomposition(character).partition(" ")[0], "")


@cache
def _plain(character: str) -> str:
    """Our digit for a digit of any script, LaTeX's command for a Greek letter, the letter itself for one in a font."""
    if character.isascii() or character.isdecimal():
        return ascii_digit(character)
    plain = unicodedata.normalize("NFKC", character).replace("\u2212", "-")
    top, slash, bottom = plain.partition("\u2044")
    if slash:  # ½
        return rf"\frac{{{top}}}{{{bottom}}}"
    if (letter := _GREEK.fullmatch(unicodedata.name(plain, "") if len(plain) == 1 else "")) is None:
        return plain
    name = letter[2].lower().replace("lamda", "lambda")
    return rf"\{name} " if letter[1] == "SMALL" else rf"\{name.capitalize()} "
