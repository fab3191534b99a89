"""Characters of Unicode in LaTeX and ASCII: symbols, digits of all scripts, raised and lowered ones, Greek letters."""

import re
import unicodedata
from functools import cache
from itertools import groupby

from evals.grading.exact import ascii_digit

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "≈": r"\approx ", "∞": r"\infty ", "±": r"\pm ",
        "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
        "°": r"^\circ ", "º": r"^\circ ", "٫": ".", "٬": ",", "•": r"\cdot ", "∙": r"\cdot ", "∠": r"\angle ",
        "ℝ": r"\mathbb{R}", "ℕ": r"\mathbb{N}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
        "△": r"\triangle ", "∖": r"\setminus ", "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ",
        "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∧": r"\land ", "∨": r"\lor ", "∀": r"\forall ",
        "≡": r"\equiv ", "∼": r"\sim ", "~": " ", "⁄": "/", "\u2010": "-", "\u2011": "-", "∛": r"\sqrt[3]",
        "∜": r"\sqrt[4]", "√": r"\sqrt ", "′": "'", "’": "'", "。": ".", "、": ",", "｛": r"\{", "｝": r"\}",
        **dict.fromkeys("\u20e3\ufe0f\u200b\u200c\u200d\u2060\ufeff"),  # of no width
        **dict.fromkeys("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"),  # directions
    }
)  # fmt: skip
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
