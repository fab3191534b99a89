"""The spellings of calculators and of Python in LaTeX: ``sqrt(2)``, ``2**3``, ``8.7e8``, ``abs(x)``, ``0.(3)``."""

import re

from evals.grading.boxes import matching

_PYTHON_COMPLEX = re.compile(r"^\(?\s*(-?[\d.]*\s*[-+]?\s*[\d.]*)j\s*\)?$")
_EXPONENT = re.compile(r"\^\s*(-\s*\d+|\d{2,})(?![\d.])")
_IN_PARENTHESES = re.compile(r"(?:(?<![\\A-Za-z])(abs|floor|ceil|cbrt)|(\\sqrt\s*|\^\s*))\(")
_DELIMITERS = {
    "abs": ("|", "|"),
    "floor": (r"\lfloor ", r"\rfloor "),
    "ceil": (r"\lceil ", r"\rceil "),
    "cbrt": (r"\sqrt[3]{", "}"),
}
_INVERSE = re.compile(r"(?<![\\A-Za-z])a(?:rc)?(sinh?|cosh?|tanh?)(?![A-Za-z])")
_LOG_BASE = re.compile(r"(?<![\\A-Za-z])log_?(2|10)(?=\s*\()")
FUNCTION = re.compile(r"(?<![\\A-Za-z])(sqrt|pi|arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|ln|exp)(?![A-Za-z])")
_EXPONENT_NOTATION = re.compile(r"(?<![\w.])([-+]?(?:\d+\.?\d*|\.\d+))[eE]([-+]?\d+)(?![\w.])")
_BARE_POINT = re.compile(r"(?<=\d)\.(?=\s*[/*\\^)+-])")
_REPEATING = re.compile(r"(?<!\d)(\d{0,30})\.(\d{0,30})\\(?:overline|bar|dot|overbar)\s*\{\s*(\d{1,30})\s*\}")
_PERIOD = re.compile(r"(?<![\d.])(\d{0,30})\.(\d{0,30})\((\d{1,30})\)$")
_DOTTED_PERIOD = re.compile(  # 0.1666..., 0.1212...
    r"(?<![\d.])(\d{0,30})\.(\d{0,30}?)(?:(\d)\3\3+|(\d{2,15})\4+)\s*(?:\.\.\.|\\[lc]?dots|\u2026)$"
)


def latex_of_ascii(text: str) -> str:
    """Rewrite calculator spelling (``sqrt(2)``, ``2**3``, ``3*x``, ``8.7e8``, ``pi``) in LaTeX."""
    if (complex_number := _PYTHON_COMPLEX.match(text)) and any(map(str.isdigit, text)):
        text = complex_number[1] + "i"
    text = _LOG_BASE.sub(r"\\log_{\1}", _INVERSE.sub(r"\\arc\1 ", text))
    text = _EXPONENT_NOTATION.sub(_power_of_ten, _BARE_POINT.sub("", text))
    text = FUNCTION.sub(r"\\\1 ", text.replace("**", "^"))
    while call := _IN_PARENTHESES.search(text):
        closing = matching(text, call.end() - 1)
        if closing is None:
            break
        opened, closed = _DELIMITERS[call[1]] if call[1] else (call[2] + "{", "}")
        text = text[: call.start()] + opened + text[call.end() : closing] + closed + text[closing + 1 :]
    return re.sub(r"\s*\*\s*", r"\\cdot ", _EXPONENT.sub(r"^{\1}", text))


def _power_of_ten(match: re.Match[str]) -> str:
    """``8.7e08`` as a product; the exponent loses its leading zeros."""
    mantissa, exponent = match.groups()
    sign = "-" if exponent.startswith("-") else ""
    return rf"{mantissa}\times 10^{{{sign}{exponent.lstrip('+-0') or '0'}}}"


def without_periods(text: str) -> str:
    """The text with decimals that repeat as fractions."""
    for repeating in (_REPEATING, _PERIOD, _DOTTED_PERIOD):
        text = repeating.sub(_repeating_decimal, text)
    return text


def _repeating_decimal(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` as a fraction."""
    whole, fixed, period = [group for group in match.groups() if group is not None]
    top = int(whole + fixed + period or "0") - int(whole + fixed or "0")
    return rf"\frac{{{top}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"
