r"""One spelling for the many ways to write the same answer, by rules on text alone.

Everything here takes time linear in the text, and is applied to answers of at most :data:`MAX_LENGTH` characters.
"""

import json
import re
import unicodedata
from fractions import Fraction
from functools import cache
from itertools import accumulate, groupby
from pathlib import Path

from evals.grading.boxes import matching
from evals.grading.exact import ascii_digit
from evals.grading.languages import BASES
from evals.grading.remarks import FONT, without_asides, without_lead, without_plain_unit, without_text_unit

MAX_LENGTH = 2_000
MAX_DEPTH = 60

_UNICODE = str.maketrans(json.loads(Path(__file__).with_name("characters.json").read_text(encoding="utf-8")))
"""Replacements that no rule of Unicode gives: LaTeX for symbols, nothing for signs without width or of direction."""

_OVERLINED = re.compile(r"(?:\d\u0305)+")
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)")
_PYTHON_COMPLEX = re.compile(r"^\(?\s*(-?[\d.]*\s*[-+]?\s*[\d.]*)j\s*\)?$")
_EXPONENT = re.compile(r"\^\s*(-\s*\d+|\d{2,})(?![\d.])")
_IN_PARENTHESES = re.compile(r"(?:(?<![\\A-Za-z])(abs|floor|ceil|cbrt)|(\\sqrt\s*|\^\s*))\(")
_DELIMITERS = {"abs": "|@|", "floor": r"\lfloor @\rfloor ", "ceil": r"\lceil @\rceil ", "cbrt": r"\sqrt[3]{@}"}
_INVERSE = re.compile(r"(?<![\\A-Za-z])a(?:rc)?(sinh?|cosh?|tanh?)(?![A-Za-z])")
_LOG_BASE = re.compile(r"(?<![\\A-Za-z])log_?(2|10)(?=\s*\()")
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(sqrt|pi|arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|ln|exp)(?![A-Za-z])")
_EXPONENT_NOTATION = re.compile(r"(?<![\w.])([-+]?(?:\d+\.?\d*|\.\d+))[eE]\+?(-?)0*(\d+)(?![\w.])")
_BARE_POINT = re.compile(r"(?<=\d)\.(?=\s*[/*\\^)+-])")
_REPEATING = re.compile(r"(?<!\d)(\d{0,30})\.(\d{0,30})\\(?:overline|bar|dot|overbar)\s*\{\s*(\d{1,30})\s*\}")
_PERIOD = re.compile(r"(?<![\d.])(\d{0,30})\.(\d{0,30})\((\d{1,30})\)$")
_DOTTED_PERIOD = re.compile(  # 0.1666..., 0.1212...
    r"(?<![\d.])(\d{0,30})\.(\d{0,30}?)(?:(\d)\3\3+|(\d{2,15})\4+)\s*(?:\.\.\.|\\[lc]?dots|\u2026)$"
)

_NESTING = dict.fromkeys("{([", 1) | dict.fromkeys("})]", -1)
_DOUBLED_COMMAND = re.compile(r"\\\\(?=[a-zA-Z{}()\[\]])")
_THOUSANDS_GAP = re.compile(r"(?<=\d)(?:,\\!\s*|\\!,|\\,|(?:\\text\w*)?\{\s*,\s*\}|\\ )(?=\d{3})")
_BRACED_COMMA = re.compile(r"\{\s*,\s*\}")
_GROUPED_DIGITS = re.compile(
    r"(?<![\w.])\d{1,3}(?:_\d{3})+(?!\w)|(?<![\w.])\d{1,3}(?:'\d{3})+(?![\w'])"
)  # 1_234, 1'234
_NO_CONTENT = re.compile(
    r"\\(?:label|tag\*?|ref|eqref)\s*\{[^{}]*\}|\\(?:therefore|because|blacksquare|qed|checkmark|notag|"
    r"nonumber)(?![a-zA-Z])"
)
_QUANTITY = re.compile(r"\\(?:qty|SI)\s*\{([^{}]*)\}\s*\{[^{}]*\}")
_OPERATOR = re.compile(r"\\operatorname\*?\s*\{\s*([A-Za-z]+)\s*\}|\\(Re|Im)(?![a-zA-Z])")
_POINT = r"\s*([A-Z](?:'+|_(?:\d|\{\d\}))?)\s*"
_ANGLE = re.compile(
    rf"(?<![A-Za-z\\])(?:m\s*)?(?:\\(?:measured)?angle(?![A-Za-z])(?:\s*\{{{_POINT}{_POINT}{_POINT}\}}|{_POINT}{_POINT}{_POINT}(?![A-Za-z]))"
    rf"|\\(?:wide)?hat\s*\{{{_POINT}{_POINT}{_POINT}\}})"
)
_ANGLE_FONT = re.compile(
    r"(\\(?:(?:measured)?angle|triangle)\s*)\\(?:text\w*|math\w+|mbox|operatorname)\s*(\{[^{}]*\})"
)
_SIMILAR = re.compile(r"\\(?:sim|cong|simeq)(?![A-Za-z])")
_FIGURE = re.compile(r"(?<![A-Za-z\\])[A-Z]{3,}(?![A-Za-z])")
_SCRIPT = re.compile(r"\\text(super|sub)script\s*(?=\{)|<(sup|sub)>([^<>]{0,99})</\2>")
_BASE = re.compile(  # 204_{\text{base five}}, 204_{(5)}, 204 (base 5), 204 in base 5
    r"(?<=[\w)}])\s*(?:_\s*\{[\s(]*(?:base[\s-]*)?(NUMBER)[\s)]*\}|"
    r"(\()?\s*(?:in\s+)?(?<=[\s(])[Bb]ase[\s-]*(NUMBER)\s*(?(2)\)))$".replace("NUMBER", rf"\d{{1,2}}|{'|'.join(BASES)}")
)
_TRANSPOSED_ROW = re.compile(
    r"^(?:\[([^\[\]()&]*)\]|\(([^\[\]()&]*)\)|"
    r"\\begin\{[pb]matrix\}([^\\]*)\\end\{[pb]matrix\})\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?$"
)
_ROWS = re.compile(
    r"^(?:(?:np\.)?(?:array|matrix)\s*\(\s*|Matrix\s*\(\s*)?\[\s*(\[[^\[\]]*\](?:\s*,\s*\[[^\[\]]*\])*)\s*\]\s*\)?$"
)
_SIZE = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|hfill|tiny|small|normalsize|large|"
    r"Large|LARGE|huge|Huge)(?![a-zA-Z])\.?"
)
_COLOUR = re.compile(r"\\(?:text)?color(?:box)?\s*(?:\[[^\[\]{}]*\])?\{[^{}]*\}")
_ROW_SPACING = re.compile(r"(\\\\)\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|cm|mm)\s*\]")
_COLON = re.compile(r"\\colon(?![a-zA-Z])|\{\s*:\s*\}")
_TH = r"(?:\\(?:text|mathrm|textrm|mbox)\s*\{\s*(?:th|st|nd|rd)\s*\}|(?:th|st|nd|rd)(?![A-Za-z]))"
_ORDINAL = re.compile(rf"(?<=\d)(?:\s*\^\s*\{{\s*{_TH}\s*\}}|(?:\s*\^?\s*(?=\\))?{_TH})")  # 8th, 8^{\text{th}}
_THIN_SPACE = re.compile(r"\\[!]\s*")
_SPACE = re.compile(r"\\q?quad|(?<!\\)\\[,;:> ]|\\(?:hspace|vspace|phantom)\*?\{[^{}]*\}|(?<![\\}])\{\}|\s+")
_FRACTION = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_FONT = re.compile(FONT)
_CIRCLE = r"\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![a-zA-Z]))"
_PRIME = r"(?:'|\^\s*\{?\s*\\prime\s*\}?)"
_SECOND = r"(?:''|\\?\"|\^\s*\{?\s*(?:\\prime\s*){2}\}?)"
_ARC = re.compile(rf"(\d+)\s*{_CIRCLE}\s*(\d+(?:\.\d+)?)\s*{_PRIME}(?:\s*(\d+(?:\.\d+)?)\s*{_SECOND})?")
_DEGREES = re.compile(
    rf"{_CIRCLE}(?:\s*\\(?:text|mathrm|textrm)\s*\{{\s*[CF]\s*\}}|\s*[CF](?![A-Za-z]))?|\\degrees?(?![a-zA-Z])|"
    rf"(?<=\d)\s*degrees?\b"
)
_PERCENT = re.compile(
    r"\\%|\\(?:text|mathrm|mbox)\s*\{\s*(?:percent|per cent|percentage points?)\s*\}|"
    r"(?<=[\d}$%])\s*(?:percentage|per ?cent|pct)\b(?:\s+points?)?"
)
_HALF_DAY = re.compile(r"(?<=\d)\s*(?:\\text\w{0,6}|\\mathrm)?\s*\{?\s*\b([AaPp])\.?\s*[mM]\b\.?\s*\}?\s*\.?$")
_CURRENCY = re.compile(
    r"(?:\b(?:US|HK|NZ|[AC]))?\\?\$|(?:\b(?:USD|EUR|GBP|INR|CNY|Rs\.?)\s*|[€£¥₹₽₩₪¢₺])(?=\s*[\d.])|"
    r"(?<=\d)\s*[€£¥₹₽₩₪¢₺]"
)
_INFINITY = re.compile(r"\+\s*\\infty|(?<![\\A-Za-z])(?:infinity|infty|inf|oo)(?![A-Za-z])")
_NOT_EQUAL = re.compile(r"(?<![\d)}])!=|\\ne(?![a-zA-Z])|\\not\s*=")
_LE = re.compile(r"<=|=<|\\leqs?lant(?![a-zA-Z])|\\leqq?(?![a-zA-Z])")
_GE = re.compile(r">=|\\geqs?lant(?![a-zA-Z])|\\geqq?(?![a-zA-Z])")
_LT_GT = re.compile(r"\\(lt|gt)(?![a-zA-Z])")
_AND = re.compile(r",?\s*(?<![A-Za-z\\])(?:and|&)(?![A-Za-z])\s*|(?<=[\d})\]])and(?=\w|[\\({\[])")
_OR = re.compile(r",?\s*(?<![A-Za-z\\])or(?![A-Za-z])\s*|(?<=[\d})\]])or(?=\w|[\\({\[])")
RELATION = re.compile(r"<|>|\\(?:le|ge|neq)(?![a-zA-Z])")
_TRAILING = " \t\r\n.,;:\\"
_SHORT = r"(?:(\d|[a-zA-Z]|\\(?!frac|sqrt)[a-zA-Z]+)|\{([^{}]*)\})"
_SHORT_FRACTION = re.compile(rf"\\(frac|binom)\s*{_SHORT}\s*{_SHORT}")
_SHORT_ROOT = re.compile(r"(\\sqrt(?:\[[34]\])?)\s*(\d+|[a-zA-Z])")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*10\s*\^")
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\(?:R|Reals?)(?![a-zA-Z])|\ball real numbers\b")
_EMPTY_SET = re.compile(r"\\varnothing(?![a-zA-Z])|^\\\{\s*\\\}$")
_SEGMENT = re.compile(r"\\(?:overline|overleftrightarrow)\s*\{\s*([A-Z]{2,})\s*\}")
_TRIGONOMETRIC = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREE_ARGUMENT = re.compile(rf"(\d+(?:\.\d+)?)\s*{_CIRCLE}")
_SET_BUILDER = re.compile(
    r"^\\\{\s*([A-Za-z])\s*(?:\\in\s*\(-\\infty,\\infty\)\s*)?(?:\\mid|:|\|)(.*\b\1\b.*)\\\}$", re.DOTALL
)
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}")
_WRAPPED = re.compile(r"^(?:\*\*(.+)\*\*|`+(.+?)`+)$", re.DOTALL)
_COMMENT = re.compile(r"(?<!\\)%[^\n]*\S[^\n]*\n|\s%\s*(?!of|off|increase|decrease|chance)[A-Za-z][^\n]*$")
_PER_MILLE = re.compile(r"(\d[\d.]*)\s*\u2030")
_CHOSEN_FROM = re.compile(r"(?:\{\s*\}|(?<![\w)}\]]))[_^]\s*\{?\s*(\w+)\s*\}?\s*C\s*_\s*\{?\s*(\w+)\s*\}?")
_RATIO = re.compile(r"(?<=[\d}])\s*(?:\\text\s*\{\s*to\s*\}|(?<=\s)to(?=\s))\s*(?=\d)")
_VARIANT = re.compile(r"\\var(?=epsilon|phi|theta|rho|sigma|kappa)")
_LAYOUT = re.compile(
    r"(?s)\\begin\{(aligned|align\*?|gathered|gather\*?|split|alignedat|multline\*?|cases|"
    r"array)\}(?:\{[^{}]*\})?(.*?)\\end\{\1\}"
)
_ROW = re.compile(r"\\\\(?:\[[^\[\]]*\])?")
_TRIANGLE = re.compile(r"\\triangle\s*(?=\{?[A-Z]{3}(?![A-Za-z])|\\theta_)")
_CHOOSE_IN_WORDS = re.compile(r"(?<![\w)}\]])(\w+) choose (\w+)(?!\w)")
_UNIT_VECTOR = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|hat|vec)\s*(?:\{\s*(?:\\(?:hat|vec|mathbf)\s*\{)?\s*\\?([ijk])(?:math)?\s*\}{1,2})"
)
_VECTOR = r"\\(?:vec|overrightarrow|mathbf|boldsymbol|bm)\s*\{?\s*([A-Za-z]+)(?![A-Za-z])\s*\}?"
_CROSS = re.compile(rf"{_VECTOR}\s*\\times\s*{_VECTOR}")
_PAIR = re.compile(r"([(\[][^()\[\],;]*);([^()\[\],;]*[)\]])")  # (0;1)
_COMPONENT = re.compile(r"\s*([+-]?)\s*([^@+-]*|\([^()@]*\))\s*@([ijk])")
_NO_SOLUTION = re.compile(r"^\s*(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?\s*$", re.IGNORECASE)
_ABSENT = re.compile(r"^\s*DNE\s*$")
_ARTICLE = re.compile(r"^(?:an?|the)\s+(?=-?\d)")


def is_readable(text: str) -> bool:
    """Return whether an answer is short and flat enough to be parsed; nested or huge text is refused."""
    if len(text) > MAX_LENGTH:
        return False
    return max(accumulate(_NESTING.get(character, 0) for character in text), default=0) <= MAX_DEPTH


def normalise(text: str, variables: frozenset[str] = frozenset()) -> str:
    """The canonical spelling of an answer: no sizes, fonts, units, degrees, currency or thousands separators.

    ``variables``: the letters of the reference answer, which are no units.
    """
    text = text.strip()
    text = text[:-1] if text.endswith("$.") else text
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)")):  # around the whole text
        if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)].strip()
            break
    text = _in_ascii(_PER_MILLE.sub(r"\\frac{\1}{1000}", _COMMENT.sub(" ", text)))
    if "matrix" not in text and "array" not in text and "cases" not in text:
        text = _DOUBLED_COMMAND.sub(r"\\", text)
    if not re.search(r"\\(?:epsilon|phi|theta|rho|sigma|kappa)(?![a-zA-Z])", text):
        text = _VARIANT.sub(r"\\", text)  # one letter in two shapes, unless the text has both
    text = _ANGLE_FONT.sub(r"\1\2", _SCRIPT.sub(_script, text.replace(r"\backslash", r"\setminus")))
    if _SIMILAR.search(text):  # the order of the letters says which points correspond
        text = _FIGURE.sub(r"\\theta_{\g<0>}", text)
    text = _components(_CROSS.sub(r"\\theta_{\1X\2}", _TRIANGLE.sub("", text)))
    text = _CHOSEN_FROM.sub(r"\\binom{\1}{\2}", _RATIO.sub(":", _PERCENT.sub("%", text)))
    text = without_lead(_CURRENCY.sub("", _WRAPPED.sub(r"\1\2", text)))
    text = text.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}")
    text = _OPERATOR.sub(_function_name, _QUANTITY.sub(r"\1", _NO_CONTENT.sub(" ", text)))
    text = _COLON.sub(":", _ORDINAL.sub("", _ROW_SPACING.sub(r"\1", _COLOUR.sub("", text))))
    text = _GROUPED_DIGITS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = _BRACED_COMMA.sub(",", _THOUSANDS_GAP.sub("", _SIZE.sub("", text)))
    text = _ANGLE.sub(_angle, _ARC.sub(_degrees_of_arc, text))
    if _TRIGONOMETRIC.search(text):
        text = _DEGREE_ARGUMENT.sub(r"(\\frac{\1\\pi}{180})", text)
    text = _DEGREES.sub("", text)
    for repeating in (_REPEATING, _PERIOD, _DOTTED_PERIOD):
        text = repeating.sub(_repeating_decimal, text)
    text = _SEGMENT.sub(r"\1", _EMPTY_SET.sub(r"\\emptyset ", _REALS.sub(r"(-\\infty,\\infty)", text)))
    text = _HALF_DAY.sub(lambda match: f" {match[1].lower()}m", text.rstrip(_TRAILING))
    text = _TIMES_TEN.sub(r"\\times 10^", without_text_unit(text, variables))
    text = _SPACE.sub(" ", _THIN_SPACE.sub("", _unwrap_fonts(_flat(text)))).strip()
    text = without_asides(without_lead(_ARTICLE.sub("", _BASE.sub(_in_base, text.rstrip(_TRAILING)))))
    text = _NOT_EQUAL.sub(r"\\neq ", _INFINITY.sub(r"\\infty", text))
    text = _GE.sub(r"\\ge ", _LE.sub(r"\\le ", text))
    text = _LT_GT.sub(lambda match: "<" if match.group(1) == "lt" else ">", text)
    text = _PERCENT.sub("%", text.rstrip(_TRAILING))
    text = _join_parts(without_plain_unit(text, variables))
    text = _matrix(_latex_of_ascii(_ascending(_PAIR.sub(r"\1,\2", text))))
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", _SET_BUILDER.sub(r"\2", text))
    text = _SHORT_FRACTION.sub(r"\\\1{\2\3}{\4\5}", _FRACTION.sub(r"\\frac", text))
    text = _CHOOSE_IN_WORDS.sub(r"\\binom{\1}{\2}", _SHORT_ROOT.sub(r"\1{\2}", text))
    text = _ABSENT.sub("does not exist", _NO_SOLUTION.sub(r"\\emptyset ", text))
    while (
        text.startswith("(")
        and matching(text, 0) == len(text) - 1
        and (("=" in text and "," not in text) or (text.startswith("((") and matching(text, 1) == len(text) - 2))
    ):
        text = text[1:-1].strip()
    return " ".join(text.split())


def _function_name(match: re.Match[str]) -> str:
    """LaTeX's command for a function that it has, else the name."""
    name = match[1] or match[2]
    return rf"\{name} " if _FUNCTION.fullmatch(name) or name in ("max", "min", "gcd", "lcm", "det") else name


def _ascending(text: str) -> str:
    """``c > b > a`` as ``a < b < c``."""
    sides = re.split(r"\s*(>|\\ge )\s*", text)
    if len(sides) < 5 or re.search(r"<|\\le |,|\\l(?:and|or)|=", text):
        return text
    return "".join({">": " < ", r"\ge ": r" \le "}.get(side, side) for side in reversed(sides))


def _script(match: re.Match[str]) -> str:
    """A raised or lowered text as LaTeX's exponent or index."""
    if match[1]:
        return "^" if match[1] == "super" else "_"
    return f"{'^' if match[2] == 'sup' else '_'}{{{match[3]}}}"


def _angle(match: re.Match[str]) -> str:
    r"""``\angle CBA`` as one name, the same as of ``\angle ABC``: its letters are points and no factors."""
    first, vertex, last = (point.replace("{", "").replace("}", "") for point in match.groups() if point)
    return rf"\theta_{{{min(first, last)}{vertex}{max(first, last)}}}"


def _in_base(match: re.Match[str]) -> str:
    base = match[1] or match[3]
    return f"_{{{BASES.index(base) + 2 if base in BASES else base}}}"


def _degrees_of_arc(match: re.Match[str]) -> str:
    """``45^\\circ 30'`` as 45.5 degrees."""
    seconds = Fraction(match[1]) * 3600 + Fraction(match[2]) * 60 + Fraction(match[3] or 0)
    return rf"\frac{{{seconds.numerator}}}{{{seconds.denominator * 3600}}}"


def _matrix(text: str) -> str:
    """Rows in brackets as a matrix, a row that is transposed as the tuple that a column is."""
    if row := _TRANSPOSED_ROW.match(text):
        return f"({','.join(part.strip() for part in re.split('[,&]', next(filter(None, row.groups()), '')))})"
    if rows := _ROWS.match(text):
        lines = [row.replace(",", "&") for row in re.findall(r"\[([^\[\]]*)\]", rows[1])]
        return r"\begin{pmatrix}" + r"\\".join(lines) + r"\end{pmatrix}"
    return text


def _components(text: str) -> str:
    r"""Write ``3\mathbf{i}-\mathbf{j}`` as (3, -1)."""
    marked = " ".join(_UNIT_VECTOR.sub(r"@\1", text).split())
    if "@" not in marked:
        return text
    terms = list(_COMPONENT.finditer(marked))
    names = [term[3] for term in terms]
    if not names or len(set(names)) != len(names) or "".join(term[0] for term in terms).strip() != marked.strip():
        return text
    values = {term[3]: term[1].replace("+", "") + (term[2].strip() or "1") for term in terms}
    return f"({','.join(values.get(name, '0') for name in ('ijk' if 'k' in names else 'ij'))})"


def _flat(text: str) -> str:
    r"""Read ``aligned`` and the like as one formula, a chain of equations or a list of rows; matrices stay."""
    for layout in reversed(list(_LAYOUT.finditer(text))):
        rows = [row.strip() for row in _ROW.split(layout[2]) if row.strip()]
        is_table = "array" in layout[1] or "cases" in layout[1]
        if r"\begin" in layout[2] or (is_table and ("&" in layout[2] or (len(rows) > 1 and layout[1] == "array"))):
            continue
        if is_table and not all("=" in row for row in rows) and len(rows) > 1:
            continue
        lines = [row.replace("&", " ").strip() for row in rows]
        joined = "".join(line if line.startswith("=") or not index else f", {line}" for index, line in enumerate(lines))
        text = text[: layout.start()] + joined + text[layout.end() :]
    return text


def _join_parts(text: str) -> str:
    r"""Write "and" and "or" as commas; between inequalities, where they mean two things, as ``\land`` and ``\lor``."""
    if r"\begin" in text or "matrix" in text:
        return text
    related = RELATION.search(text) is not None
    text = _AND.sub(r" \\land " if related else ", ", text)
    return _OR.sub(r" \\lor " if related else ", ", text).strip(" ,")


def _unwrap_fonts(text: str) -> str:
    r"""Replace ``\text{X}`` by X: fonts carry no meaning in an answer."""
    position = 0
    while (match := _FONT.search(text, position)) is not None:
        begin, end = match.span()
        while end < len(text) and text[end] == " ":
            end += 1
        closing = matching(text, end) if text.startswith("{", end) else None
        content, rest = (" ", end) if closing is None else (text[end + 1 : closing], closing + 1)
        spaced = f" {content} " if re.search(r"[a-zA-Z]{2}", content) else content
        text = text[:begin] + spaced + text[rest:]
        position = begin
    return text


def _in_ascii(text: str) -> str:
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


def _latex_of_ascii(text: str) -> str:
    """Rewrite calculator spelling (``sqrt(2)``, ``2**3``, ``3*x``, ``8.7e8``, ``pi``) in LaTeX."""
    if (complex_number := _PYTHON_COMPLEX.match(text)) and any(map(str.isdigit, text)):
        text = complex_number[1] + "i"
    text = _LOG_BASE.sub(r"\\log_{\1}", _INVERSE.sub(r"\\arc\1 ", text))
    text = _EXPONENT_NOTATION.sub(r"\1\\times 10^{\2\3}", _BARE_POINT.sub("", text))
    text = _FUNCTION.sub(r"\\\1 ", text.replace("**", "^"))
    while call := _IN_PARENTHESES.search(text):
        closing = matching(text, call.end() - 1)
        if closing is None:
            break
        opened, closed = (_DELIMITERS[call[1]] if call[1] else call[2] + "{@}").split("@")
        text = text[: call.start()] + opened + text[call.end() : closing] + closed + text[closing + 1 :]
    return re.sub(r"\s*\*\s*", r"\\cdot ", _EXPONENT.sub(r"^{\1}", text))


def _repeating_decimal(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` as a fraction."""
    whole, fixed, period = [group for group in match.groups() if group is not None]
    top = int(whole + fixed + period or "0") - int(whole + fixed or "0")
    return rf"\frac{{{top}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"
