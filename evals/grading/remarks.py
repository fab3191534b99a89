r"""Words beside a value: units and remarks that say nothing about it, and others that change or deny it.

``15\text{ cm}^2`` is 15; ``7\text{ squared}``, ``7\text{ or more}``, ``7\text{ is wrong}`` are not 7. Words are dropped
if they can be a unit, a noun or an aside; number words, operators, comparatives, verbs and denials stay, and with them
the whole is no number.
"""

import re

_UNIT_WORDS = (
    "cm|mm|km|dm|nm|kg|mg|ml|mL|ft|mi|mph|km/h|kmh|m/s|hr|hrs|min|mins|sec|secs|deg|rad|sq|cu|lb|lbs|oz|"
    "Hz|kHz|MHz|GHz|Pa|kPa|eV|keV|MeV|GeV|mol|dollars?|cents?|euros?|yuan|units?"
)
_WORD = (  # shorter ones are products of variables, unless they are known
    rf"(?:[A-Za-z]{{4,}}|{_UNIT_WORDS}|yds?|gal|kW|kJ|cal|rpm|psi|bps|fps|pts|pct|USD|EUR|GBP|yr|yrs|day|"
    r"ways?|cup|m[ae]n|boy|car|cat|dog|cow|pig|hen|egg|box|bag|jar|ton|row|hat|bus|odd|pen|pie|bit|"
    r"set|lap|win|key|toy|bee)"
    r"(?![A-Za-z])"
)
_FONT = r"\\(?:text(?:rm|bf|it|normal|sf)?|mbox|mathrm|mathbf|rm)\s*"
_TEXT_UNIT = re.compile(
    rf"(?<=[\d\w}}\])])\s*(?:\\[,;: ]|~|\\q?quad)*\s*{_FONT}"
    r"\{\s*(?P<word>(?:[^{}\d]|\^\s*\{?-?\d\}?)*)\}\s*(?:\^\s*\{?\s*-?\s*\d\s*\}?)?\s*\.?$"
)
_PLAIN_UNIT = re.compile(
    rf"^(?P<value>[^=]*?(?:\d|\}}|\\pi|\)))\s*(?:(?<=\s){_WORD}\.?(?:[\s/-]+[A-Za-z]+\.?)*|(?:{_UNIT_WORDS})|m(?=\^))"
    r"\s*(?:\^\s*\{?\s*\d\s*\}?)?$"
)
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_DENIAL = (
    r"not|\w+n't|isn|aren|cannot|wrong\w*|incorrect\w*|false\w*|never|nor|neither|no|nope|none|except|"
    r"unless|but|instead|"
    r"maybe|perhaps|possibl[ey]|probabl[ey]|likely|unlikely|hardly|doubt\w*|unsure|guess\w*|suppos\w+|"
    r"either|versus|vs|through|"
    r"fail\w*|invalid|impossible|mistak\w+|error|rejected|refuted|excluded|discarded|eliminated|"
    r"disproved|contradict\w*|"
    r"extraneous|absurd|nonsense"
)
_NUMBER_WORD = (
    r"zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|"
    r"fifty|sixty|seventy|"
    r"eighty|ninety|hundred\w*|thousand\w*|[mbtr]+illion\w*|quadrillion\w*|dozens?|half|halves|"
    r"thirds?|fourths?|fifths?|"
    r"sixths?|sevenths?|eighths?|ninths?|tenths?|\w+tieths?|once|twice|thrice|doubled?|tripled?|quadrupled?|halved|"
    r"squared?|cubed|factorial|reciprocal|inverse|plus|minus|divided|multiplied|modulo|power"
)
_REFUSED = re.compile(rf"\b(?:{_DENIAL}|{_NUMBER_WORD}|or|than|least|most)\b|^!|[?=<>+*|]", re.IGNORECASE)
_DENIED = re.compile(rf"\b(?:{_DENIAL}|or)\b|\?", re.IGNORECASE)
_SQUARE_UNIT = re.compile(  # "square meters", "feet squared"
    r"\b(?:squared?|cubed)(?=\s+[A-Za-z]{2})|(?<=[A-Za-z]{2}\s)(?:squared|cubed)\b", re.IGNORECASE
)
_REFUSED_FIRST = re.compile(
    r"(?:and|at|over|under|above|below|beyond|almost|nearly|off|too|short|to|by|is|are|was|were|be|"
    r"does|did|do|has|had|have|can|"
    r"could|would|should|might|must|exceeds?|times\s+(?!as\b|larger|bigger|more|the\b)\w)\b"
    r"|(?:more|less|fewer|greater|smaller|bigger|larger|higher|lower)\s*$"
    r"|(?!\w*eed\b)\w{3,}ed\b(?!\s+\w+s\b)",
    re.IGNORECASE,
)
_WORD_OPERATORS = re.compile(
    r"\b(?:and|or|in|mod|sin|cos|tan|log|ln|exp|sqrt|pi|if|for|choose|infinity|inf|oo|is|are)\b"
)
_CONSTANT_IN_TEXT = re.compile(r"\s*(?:[eiπ]|th|st|nd|rd|T|and|or|if|mod.*|)\s*")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(
    rf"(?<=\d)\s*(?:\\[,;: ]|~)*\s*(?:{_FONT}\{{\s*)?(?P<scale>{'|'.join(_SCALES)})(?![A-Za-z])"
    r"[^{}\d]*\}?\s*$"
)
_DOZEN = re.compile(rf"(?<=\d)\s*(?:\\[,;: ]|~)*\s*(?:{_FONT}\{{\s*)?dozens?(?![A-Za-z])[^{{}}\d]*\}}?\s*$")
_APPROXIMATION = (
    r"about|approx\w*\.?|roughly|around|circa|ca\.|nearly|or about|or approximately|exact(?:ly)?|"
    r"in decimals?|see|by|as|from|since|because"
)
_ASIDE = re.compile(
    rf"\s*(?:\\[,;: !]|~|\\q?quad)*\s*\(\s*(?:(?:{_APPROXIMATION})\b|\\(?:approx|simeq|"
    rf"sim)(?![a-zA-Z])|not\s+[-\d\\]|i\.e\.)"
    r"(?P<aside>[^()]*(?:\([^()]*\)[^()]*)*)\)\s*\.?$",
    re.IGNORECASE,
)
_WORDS_ASIDE = re.compile(r"(?<=[\d}\s])\s+\(\s*(?P<aside>[A-Za-z]{3,}[A-Za-z\s,'-]*)\)\s*\.?$")
_LEAD_IN_TEXT = re.compile(r"^\\(?:text|mbox|textrm|mathrm)\s*\{(?P<words>[^{}\d]*)\}\s*(?P<rest>.*)$", re.DOTALL)
_LEAD = re.compile(r"^(?P<words>[A-Za-z][A-Za-z ,']*?[A-Za-z:])\s+(?P<rest>[-\d\\($.].*)$", re.DOTALL)
_LEADS_UP = re.compile(r"(?:^|.*\W)(?:is|are|equals|is equal to|becomes)\s*$|.*[:=]\s*$", re.IGNORECASE | re.DOTALL)
_RELATIONS = {
    r"greater than or equal to|at least|no (?:less|fewer) than|not less than": r"\ge ",
    r"less than or equal to|at most|no more than|not more than|up to": r"\le ",
    r"greater than|more than|larger than|over|above": "> ",
    r"less than|fewer than|smaller than|under|below": "< ",
    r"negative|minus": "-",
    rf"(?:it is )?(?:{_APPROXIMATION})|(?:the )?(?:point|vertex|center|centre|interval|"
    rf"set|pair|ordered pair|vector|"
    r"number|value|total|sum|total of|equation|line|function|coordinates)": "",
}
_WHERE = re.compile(r"^(?P<name>[A-Za-z])\s*,?\s+(?:where|with|for)\s+(?P=name)\s*=\s*(?P<value>[^=]+)$")


def without_text_unit(text: str) -> str:
    r"""Remove a trailing ``\text{ cm}^2``, and read ``4\text{ million}`` as a number."""
    text = _DOZEN.sub(r"\\cdot 12", text)
    text = _SCALE.sub(lambda match: rf"\times 10^{{{_SCALES[match['scale']]}}}", text)
    match = _TEXT_UNIT.search(text)
    if match is None or _CONSTANT_IN_TEXT.fullmatch(match["word"]) or not _says_nothing(match["word"]):
        return text
    value = text[: match.start()].strip()
    is_number = r"\pi" in value or any(map(str.isdigit, value))
    return value.rstrip(" \t\r\n.,;:\\") if is_number and value.count("{") == value.count("}") else text


def without_plain_unit(text: str) -> str:
    """Remove trailing words after a value: ``125 miles``; one-letter words may be variables and stay."""
    match = _PLAIN_UNIT.match(text)
    if match is None:
        return text
    words = text[match.end("value") :].strip()
    if _WORD_OPERATORS.search(words) or words in _ALPHABET or not _says_nothing(words):  # "3 abcd" is a product
        return text
    has_words = re.search(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+|\bsqrt\b|\bpi\b", "", match["value"]))
    return text if has_words else match["value"].strip()


def without_asides(text: str) -> str:
    r"""Remove ``(about 18.9 cards)``, ``(see above)`` after a value; ``n where n = 7`` is 7."""
    for pattern, refused in ((_ASIDE, _DENIED), (_WORDS_ASIDE, _REFUSED)):
        match = pattern.search(text)
        if match and match.start() and not refused.search(match["aside"]):
            text = text[: match.start()].strip()
    where = _WHERE.match(text)
    return where["value"].strip() if where else text


def without_lead(text: str) -> str:
    r"""Remove words before a value: ``\text{The area is }7``, ``There are 7 ways``; ``\text{negative }7`` is -7."""
    match = _LEAD_IN_TEXT.match(text) or _LEAD.match(text)
    if match is None or not match["rest"].strip():
        return text
    words, rest = " ".join(match["words"].split()), match["rest"].strip()
    for pattern, sign in _RELATIONS.items():
        if re.fullmatch(pattern, words, re.IGNORECASE):
            return sign + rest
    leads = _LEADS_UP.match(words) and not re.search(rf"\b(?:{_DENIAL}|if|whether)\b|\?", words, re.IGNORECASE)
    return rest if leads else text


def _says_nothing(words: str) -> bool:
    """Return whether words beside a value can be its unit or an aside, which leave it as it is."""
    if words.count("(") != words.count(")"):  # the end of an aside
        return False
    words = _SQUARE_UNIT.sub("", words.strip()).strip(" ,;.()")
    return not (_REFUSED.search(words) or _REFUSED_FIRST.match(words))
