"""A token table as text: one problem's rollouts, every token coloured by what the update did to it."""

from __future__ import annotations

import html
import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from evals.artifacts import write_text
from evals.errors import UserError
from rlvr.diagnostics.token_table import read_token_table

_FULL_COLOUR = 0.1
"""Change of log-probability, in nats, from which a colour is full."""
_BOOSTED, _SUPPRESSED = "0, 114, 178", "213, 94, 0"  # Okabe and Ito's blue and vermilion
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #222; }
pre { font: 15px/1.9 ui-monospace, monospace; white-space: pre-wrap; margin: .2rem 0 1.2rem; }
pre span { border-radius: 3px; padding: 1px 2px; }
.stopped { text-decoration: line-through; }
.end { color: #888; }
"""


def write_page(table: Path, step: int, problem: str | None, out: Path) -> None:
    """Write an HTML page that loads nothing from elsewhere and runs no script.

    Args:
        table: directory of a token table.
        step: one of its steps.
        problem: a problem's id; None for the first whose rollouts differ in reward.
        out: the file.

    Raises:
        UserError: the table has no such step or problem.
    """
    rows = read_token_table(table / "tokens.parquet")
    steps = sorted(rows["step"].unique().tolist())
    if step not in steps:
        raise UserError(f"--step: is {step}; accepted: {', '.join(map(str, steps))}")
    rows = rows[rows["step"] == step]
    names = list(dict.fromkeys(rows["problem"]))
    if problem is None:
        mixed = rows.groupby("problem")["reward"].nunique()
        problem = next((name for name in names if mixed[name] > 1), names[0])
    if problem not in names:
        raise UserError(f"--problem: is {problem!r}; accepted: {', '.join(names[:5])} ...")
    write_text(out, _page(rows[rows["problem"] == problem], problem))


def _page(rows: pd.DataFrame, problem: str) -> str:
    first = rows.iloc[0]
    title = f"{first['run']}, step {first['step']}, {problem}"
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>",
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>",
        "<p>Blue: the step's updates made the token more likely; orange: less likely; full colour from "
        f"{_FULL_COLOUR:g} nats. Struck through: the loss stopped the token's gradient. Hover over a token for "
        "its numbers.</p>",
    ]
    for (_, sample), rollout in rows.groupby(["group", "sample"], sort=False):
        head = rollout.iloc[0]
        parts.append(f"<div>Rollout {sample}: reward {head['reward']:g}, advantage {head['advantage']:+.3f}</div><pre>")
        parts += [_token(row) for row in rollout.to_dict("records")]
        parts.append("</pre>")
    return "".join(parts) + "</html>\n"


def _token(row: Mapping[Hashable, Any]) -> str:
    change = row["new_log_prob"] - row["old_log_prob"]
    colour = _BOOSTED if change > 0 else _SUPPRESSED
    strength = min(1.0, abs(change) / _FULL_COLOUR) * 0.7
    shown = html.escape(row["text"]) if row["text"] != "\n" else "<span class='end'>⏎</span>\n"
    title = (
        f"p {math.exp(row['old_log_prob']):.4f}, log-prob {change:+.5f} nats, weight {row['weight']:.3f}, entropy "
        f"{row['entropy']:.3f} nats, ratio {row['ratio']:.3f}, gate {row['gate']:.3f}, {row['token_class']}"
    )
    stopped = " class='stopped'" if row["gate"] == 0 else ""
    style = f"background: rgba({colour}, {strength:.2f})"
    return f"<span{stopped} style='{style}' title='{html.escape(title)}'>{shown}</span>"
