"""The names that trainers and trackers give to steps, rewards, tokens and times: one table, ``names.csv``."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from evals.core.errors import InvalidInput

SHOWN = ("reward", "length", "entropy", "kl", "clip_fraction")
REWARD = ("reward", "")
_PREFIXES = ("train/", "train_", "train.")


@dataclass(frozen=True)
class Name:
    """A row of the table.

    Attributes:
        quantity: what it is here: one of :data:`SHOWN`, step, tokens or seconds.
        counts: which steps, tokens or seconds; two kinds never stand on one axis.
        form: value, so far (a total), each step (a mean over the steps since the row before), or time (a clock).
        name: what it is called in a log.
        written_by: the trainers or trackers that call it so.
    """

    quantity: str
    counts: str
    form: str
    name: str
    written_by: str


def _table() -> tuple[Name, ...]:
    text = resources.files("rlvr_curves").joinpath("names.csv").read_text("utf-8")
    return tuple(Name(**row) for row in csv.DictReader(text.splitlines()))


NAMES = _table()
STEPS = tuple(row.name for row in NAMES if row.quantity == "step")


def parse_names(text: str) -> list[Name]:
    """Read ``--names``, such as ``reward=rewards/accuracy/mean,step=iteration``."""
    rows = []
    for word in filter(None, text.split(",")):
        quantity, _, name = word.partition("=")
        if quantity not in ("step", *SHOWN) or not name:
            raise InvalidInput(
                "", "--names", f"is {word!r}", f"{', '.join(f'{each}=NAME' for each in ('step', *SHOWN))}"
            )
        rows.append(Name(quantity, "the trainer's steps" if quantity == "step" else "", "value", name, "--names"))
    return rows


def plain_names(columns: Iterable[str]) -> dict[str, str]:
    """The columns of a log by their names with and without ``train/``, and with / for the dots of nested keys."""
    plain: dict[str, str] = {}
    for column in columns:
        for form in (column, next((column[len(each) :] for each in _PREFIXES if column.startswith(each)), column)):
            plain.setdefault(form, column)
            plain.setdefault(form.replace(".", "/"), column)
    return plain


def columns_of(rows: Iterable[Name], columns: Iterable[str]) -> dict[tuple[str, str], tuple[Name, str]]:
    """Quantity and what it counts -> the first row of the table that a log has, and its column there."""
    plain, chosen = plain_names(columns), dict[tuple[str, str], tuple[Name, str]]()
    for row in rows:
        if row.quantity != "step" and row.name in plain:
            chosen.setdefault((row.quantity, row.counts), (row, plain[row.name]))
    return chosen
