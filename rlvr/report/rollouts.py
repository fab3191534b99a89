"""The page with what the policies of a study wrote while they were trained, step by step."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evals.core.files import fingerprint, read_jsonl
from evals.core.manifest import Manifest, read_manifest, verify_outputs
from evals.core.records import Run, conditions_of, read_runs
from rlvr.engines.rollouts import kept_steps
from rlvr.report.viewer import CORRECT, TRUNCATED, Part, column_of, level_letters, write_responses, write_viewer
from rlvr.tokens.table import read_recorded
from rlvr.tokens.view import Quantity, StepView, legend, recorded, scale_of

RAISED, LOWERED = 4, 8
"""Flags of rollouts: the sign of the advantage."""


@dataclass(frozen=True)
class _Table:
    """The rollouts of one run in one step."""

    run: Run
    longest: int  # response in tokens
    step: int
    directory: Path

    def read(self) -> pd.DataFrame:
        return read_recorded(self.directory, self.step)


def write_rollouts_page(
    runs: Path, results: Path, out: Path, benchmarks: Sequence[str] = (), replayed: Sequence[Path] = ()
) -> None:
    """Write the page of all rollouts that a study's training runs have kept, with the files that it loads beside it.

    Args:
        runs: the run sheet.
        results: results/, where runs and problems are.
        out: the page; the texts go to the directory texts/ beside it.
        benchmarks: of the study, each with a page in responses/, beside this page's directory.
        replayed: directories RUN made by `rlvr-bench claims replay`; a step that is replayed has more to colour by.
    """
    sheet, problems_file = read_runs(runs), results / "problems/train/problems.jsonl"
    trained = [run for run in sheet if run.seed is not None]
    texts = {str(row["id"]): (row.get("problem"), row["answer"]) for row in read_jsonl(problems_file, ("id", "answer"))}
    tables, inputs = defaultdict[int, list[_Table]](list), [runs, problems_file]
    replays = {directory.name: directory for directory in replayed}
    for run in trained:
        folder = results / "runs" / run.run
        training = read_manifest(folder / "manifest.json", "run")
        directories = dict(kept_steps(folder)) | _replayed_steps(training, replays.get(run.run))
        longest = training.parameters["training"]["max_new_tokens"] if directories else 0
        for step, directory in directories.items():
            tables[step].append(_Table(run, longest, step, directory))
            inputs.append(directory / "tokens.parquet")
        inputs.append(folder / "manifest.json")
    chunks, parts, quantities = list[Path](), list[Part](), dict[str, Quantity]()
    for step in sorted(tables):
        scales = _scales(tables[step])
        quantities |= {key: quantity for key, (quantity, _) in scales.items()}
        named = [read_recorded(table.directory, step, ["problem"])["problem"].unique() for table in tables[step]]
        problems = list(dict.fromkeys(str(id_) for of_table in named for id_ in of_table))
        numbers, shown = {id_: number for number, id_ in enumerate(problems)}, {}
        for table in tables[step]:
            flags, rows = _responses(table, numbers, scales)
            run, folder = table.run, out.with_name("texts")
            shown[run.run], written = write_responses(f"{run.run}-step{step}", run.run, run.seed, flags, rows, folder)
            chunks += written
        columns = [column_of(condition, shown) for condition in conditions_of(trained)]
        legends = {key: legend(quantity, scale) for key, (quantity, scale) in scales.items()}
        parts.append(Part(step, [(id_, *texts.get(id_, (None, None))) for id_ in problems], columns, legends))
    with_rollouts = {table.run.run for of_step in tables.values() for table in of_step}
    write_viewer(
        "rollouts",
        out,
        list(dict.fromkeys(inputs)),
        chunks,
        parts,
        [_colour(quantities[quantity.key]) for quantity in StepView.quantities if quantity.key in quantities],
        [(run.run, f"{run.title}, seed {run.seed}") for run in trained if run.run in with_rollouts],
        title="Training rollouts",
        benchmark="",
        benchmarks=benchmarks,
        report="../report.html",
        rollouts="",
        of_training=True,
    )


def _replayed_steps(training: Manifest, directory: Path | None) -> dict[int, Path]:
    """The steps of a replay, if it is of this training."""
    if directory is None:
        return {}
    replay = verify_outputs(directory / "manifest.json", "token_table")
    if replay.fingerprint != fingerprint({"parameters": dict(replay.parameters), "run": training.fingerprint}):
        return {}
    return dict.fromkeys(replay.parameters["steps"], directory)


def _scales(tables: Sequence[_Table]) -> dict[str, tuple[Quantity, float]]:
    """The quantities that rows of a step have, each with the scale of its colours: one for all runs."""
    values, known = defaultdict[str, list[Any]](list), dict[str, Quantity]()
    for table in tables:
        rows = table.read()
        for quantity in recorded(rows):
            if quantity.key not in known or quantity not in StepView.quantities:  # its title names its precision
                known[quantity.key] = quantity
            values[quantity.key].append(quantity.values(rows))
    return {key: (quantity, scale_of(np.concatenate(values[key]), quantity.middle)) for key, quantity in known.items()}


def _responses(
    table: _Table, numbers: dict[str, int], scales: dict[str, tuple[Quantity, float]]
) -> tuple[list[list[int]], list[list[list[Any]]]]:
    """The flags and the rows of a run's rollouts, by problem; ``numbers`` numbers the step's problems."""
    frame = table.read()
    quantities = recorded(frame)
    frame["rollout"] = frame.groupby(["group", "sample"], sort=False).ngroup()
    frame = frame.sort_values("rollout", kind="stable")
    starts = np.flatnonzero(np.diff(frame["rollout"], prepend=-1)).tolist()
    texts, coloured = frame["text"].tolist(), dict[str, str]()
    for quantity, scale in (scales[quantity.key] for quantity in quantities):
        coloured[quantity.key] = level_letters(quantity.values(frame), quantity.middle, scale)
    flags: list[list[int]] = [[] for _ in numbers]
    rows: list[list[list[Any]]] = [[] for _ in numbers]
    firsts = [frame[name].iloc[starts].tolist() for name in ("problem", "mini_batch", "reward", "advantage")]
    bounds = pairwise([*starts, len(frame)])
    for (first, last), problem, mini_batch, reward, advantage in zip(bounds, *firsts, strict=True):
        flag = CORRECT * (reward > 0) + TRUNCATED * (last - first >= table.longest)
        flag += RAISED * (advantage > 0) + LOWERED * (advantage < 0)
        letters = {key: of_tokens[first:last] for key, of_tokens in coloured.items()}
        number, remark = numbers[str(problem)], f"optimizer step {mini_batch}"
        flags[number].append(flag)
        numbers_shown = round(reward, 4), round(advantage, 4)
        rows[number].append([None, None, remark, last - first, texts[first:last], letters, *numbers_shown])
    return flags, rows


def _colour(quantity: Quantity) -> dict[str, str]:
    """A quantity as the page offers it."""
    side = "" if quantity.one_sided else ", orange below"
    meaning = f"blue above {quantity.middle:g}{quantity.unit}{side}; 2 % of the step's tokens have the strongest colour"
    return {"key": quantity.key, "title": quantity.title, "meaning": meaning}
