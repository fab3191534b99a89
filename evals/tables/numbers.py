"""Numbers as text: fractions of one as per cent, p-values, counts. None is shown as a dash."""

from collections.abc import Callable

from evals.core.records import Interval

NOTHING = "–"
NO_INTERVAL = "[–]"
NO_INTERVAL_NOTE = (
    f"{NO_INTERVAL}: no interval is to be trusted: a handful of problems decides, or a method has a single seed."
)
ONE_SAMPLE_NOTE = (
    "One sample a problem does not say how large its noise is: it is counted with the problems and with the seeds. "
)


def rounded(value: float, form: str) -> str:
    """A number in a format of Python, without a sign if nothing is left of it: -0.04 as ``+.1f`` -> 0.0."""
    text = f"{value:{form}}"
    return text.lstrip("+-") if set(text) <= set("+-0.%") else text


def _or_nothing(text: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: NOTHING if value is None else text(value)


percent = _or_nothing(lambda value: rounded(100 * value, ".1f"))  # 0.485 -> 48.5
points = _or_nothing(lambda value: rounded(100 * value, "+.1f"))
"""A difference in percentage points, signed unless it is rounded to 0: 0.012 -> +1.2."""
decimal = _or_nothing(lambda value: rounded(value, ".1f"))  # an angle of 31.42 degrees, or a length in tokens -> 31.4
p_value = _or_nothing(lambda value: "<0.001" if value < 0.001 else f"{value:.3f}")
"""0.0123 -> 0.012; below a thousandth only the bound, for a permutation test resolves no more."""
whole = _or_nothing(lambda value: rounded(value, ".0f"))  # A number without decimals
seconds = _or_nothing(lambda value: f"{value:.1f}" if value < 10 else f"{value:.0f}")
"""Seconds: one decimal below ten, none above."""


def bounds(interval: Interval | None) -> str:
    """(0.42, 0.55) -> [42.0, 55.0]."""
    return NO_INTERVAL if interval is None else f"[{percent(interval[0])}, {percent(interval[1])}]"


def percent_with_interval(value: float, interval: Interval | None) -> str:
    """0.485, (0.42, 0.55) -> 48.5 [42.0, 55.0]; None is shown as [–]."""
    return f"{percent(value)} {bounds(interval)}"


def points_with_interval(value: float | None, interval: Interval | None) -> str:
    """0.012, (-0.03, 0.05) -> +1.2 [-3.0, +5.0]; None is shown as [–], or as a dash without a value."""
    if value is None:
        return NOTHING
    return f"{points(value)} {NO_INTERVAL if interval is None else f'[{points(interval[0])}, {points(interval[1])}]'}"


def count(value: float | None) -> str:
    """A count in three digits and a unit: 329412 -> 329 k."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value is not None and value >= size:
            return f"{value / size:.{0 if value >= 100 * size else 1}f} {unit}"
    return whole(value)
