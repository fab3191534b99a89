"""Characters of Unicode in LaTeX and ASCII: symbols, digits of all scripts, raised and lowered ones, Greek letters."""

import re
import unicodedata
from functools import cache

from evals.grading.exact import ascii_digit

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "≈": r"\approx ", "∞": r"\infty ", "±": r"\pm ",
        "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
        "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
        "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "⅕": r"\frac{1}{5}",
        "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}", "⅚": r"\frac{5}{6}",
        "°": r"^\circ ", "º": r"^\circ ", "٫": ".", "٬": ",", "•": r"\cdot ", "∙": r"\cdot ", "∠": r"\angle ",
        "ℝ": r"\mathbb{R}", "ℕ": r"\mathbb{N}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
        "△": r"\triangle ", "∖": r"\setminus ", "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ",
        "⌋": r"\rfloor ",
        "⌈": r"\lceil ", "⌉": r"\rceil ", "∧": r"\land ", "∨": r"\lor ", "∀": r"\forall ", "≡": r"\equiv ",
        "∼": r"\sim ", "\u20e3": None, "\ufe0f": None, "~": " ", "⁄": "/", "\u2010": "-", "\u2011": "-", "\ufe63": "-",
        "∛": r"\sqrt[3]", "∜": r"\sqrt[4]",
        "\u00a0": " ", "\u202f": " ", "\u2009": " ", "，": ",", "；": ";", "：": ":", "（": "(",
        "）": ")", "％": "%", "′": "'", "’": "'", "．": ".", "。": ".", "、": ",",
        "＋": "+", "－": "-", "＝": "=", "／": "/",
        "＜": "<", "＞": ">", "［": "[", "］": "]", "｛": r"\{", "｝": r"\}", "√": r"\sqrt ",
        "\u3000": " ", "\u200b": None, "\u200c": None,
        "\u200d": None, "\u2060": None, "\ufeff": None,
        **dict.fromkeys("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"),  # directions
    }
)  # fmt: skip
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋"
_OVERLINED = re.compile(r"(?:\d\u0305)+")
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)")
_RAISED_RUN, _LOWERED_RUN = re.compile(f"[{_RAISED}]+"), re.compile(f"[{_LOWERED}]+")
_ON_THE_LINE = str.maketrans(_RAISED + _LOWERED, "0123456789+-n0123456789+-")


def in_ascii(text: str) -> str:
    """Symbols of Unicode in LaTeX, and the digits of all scripts as ours."""
    if text.isascii():
        return text.translate(_UNICODE)
    text = _RAISED_RUN.sub(lambda run: f"^{{{run[0].translate(_ON_THE_LINE)}}}", text)
    text = _LOWERED_RUN.sub(lambda run: f"_{{{run[0].translate(_ON_THE_LINE)}}}", text)
    text = _OVERLINED.sub(lambda run: r"\overline{" + run[0].replace("\u0305", "") + "}", text)
    return "".join(map(_plain_character, text.translate(_UNICODE)))


@cache
def _plain_character(character: str) -> str:
    """Our digit for a digit of any script, LaTeX's command for a Greek letter, the letter itself for one in a font."""
    if character.isascii() or character.isdecimal():
        return ascii_digit(character)
    plain = unicodedata.normalize("NFKC", character)
    if (letter := _GREEK.fullmatch(unicodedata.name(plain, "") if len(plain) == 1 else "")) is None:
        return plain
    name = letter[2].lower().replace("lamda", "lambda")
    return rf"\{name} " if letter[1] == "SMALL" else rf"\{name.capitalize()} "
