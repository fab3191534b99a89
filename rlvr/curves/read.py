"""The metrics of a run, step by step, from the file that its trainer or its tracker wrote."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.errors import InvalidInput, UserError
from evals.core.files import parse_json, read_json, read_lines, read_parquet
from rlvr.curves.records import SINCE_START, Rows, read_tensorboard, read_wandb

NAMES: Mapping[str, list[str]] = json.loads(resources.files("rlvr.curves").joinpath("names.json").read_text("utf-8"))
"""What a metric is here -> the names that trainers give it, the first that a run has is taken."""
SHOWN = ("reward", "length", "entropy", "kl", "clip_fraction")
AXES = ("tokens", "steps", "seconds")
FILES = {
    "trainer_state.json": "TRL's, of the last checkpoint",
    "*.jsonl": "verl's file logger",
    "*.log": "verl's console",
    "run-*.wandb": "an offline run of wandb",
    "events.out.tfevents.*": "TensorBoard's",
    "metrics": "MLflow's directory of a run",
    "metrics.parquet": "of this project",
}
_PREFIXES = ("train/", "train_")
_LARGEST = 1e15
_PAIR = re.compile(r"([^\s:]\S*):(?:np\.\w+\()?([-+]?(?:\d[\d.eE+-]*|nan|inf))\)?$")
_STEPS = ("_step", "step", "global_step", "training_step", "training/global_step")


@dataclass(frozen=True)
class Run:
    """A run of a method.

    Attributes:
        metrics: a row a step: ``steps`` and those of :data:`SHOWN` and :data:`AXES` that its file has.
        names: what each was called there; ``unmapped``, the names that the table lacks.
    """

    method: str
    path: Path
    metrics: pd.DataFrame
    names: dict[str, str]
    unmapped: list[str]

    @property
    def files(self) -> list[Path]:
        """The files that were read."""
        return sorted(file for file in self.path.rglob("*") if file.is_file()) if self.path.is_dir() else [self.path]


def read_run(word: str) -> Run:
    """Read ``METHOD=PATH``, or ``PATH``, whose method is its name."""
    method, _, rest = word.rpartition("=")
    path = _file(Path(rest))
    rows = _rows(path)
    if not rows:
        raise UserError(f"{path}: has no step with a number")
    frame = pd.DataFrame.from_dict(rows, orient="index").sort_index()
    plain = {name: next((name[len(p) :] for p in _PREFIXES if name.startswith(p)), name) for name in frame.columns}
    names: dict[str, str] = {}
    for metric, accepted in NAMES.items():
        for name in accepted:
            for column in frame.columns:
                if metric not in names and name in (column, plain[column]):
                    names[metric] = column
    if "reward" not in names:
        raise InvalidInput(str(path), "", "has no metric of the reward", ", ".join(NAMES["reward"]))
    frame = frame[frame[names["reward"]].notna()]
    metrics = pd.DataFrame({"steps": frame.index.astype(float)})
    for name in SHOWN:
        if name in names:
            metrics[name] = frame[names[name]].to_numpy(dtype=float)
    for axis in ("tokens", "seconds"):
        if (total := f"{axis}_so_far") in names:
            metrics[axis] = frame[names[total]].to_numpy(dtype=float)
        elif axis in names:
            metrics[axis] = frame[names[axis]].to_numpy(dtype=float).cumsum()
    unmapped = sorted(set(frame.columns) - set(names.values()) - {SINCE_START})
    return Run(method or Path(rest).stem, path, metrics, names, unmapped)


def _file(path: Path) -> Path:
    """Find the file of a run in its directory."""
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if path.is_file() or path.name == "metrics":
        return path
    for pattern in FILES:
        files = sorted([*path.glob(pattern), *path.glob(f"*/{pattern}")], key=_number)
        if pattern != "trainer_state.json" and len(files) > 1:
            raise UserError(f"{path}: has {len(files)} of {pattern}; accepted: one of these files")
        if files:
            return files[-1]
    kinds = "; ".join(f"{name} ({words})" for name, words in FILES.items())
    raise UserError(f"{path}: has no file of a run; accepted: {kinds}")


def _number(path: Path) -> tuple[int, str]:
    """Order checkpoints by their step; TRL's own state at the end, beside them, is the last."""
    digits = re.search(r"checkpoint-(\d{1,12})$", path.parent.name)
    return (int(digits[1]) if digits else 10**12, path.name)


def _rows(path: Path) -> Rows:
    """Read the numbers of every step."""
    if path.is_dir():
        return _mlflow(path)
    if path.suffix == ".wandb":
        return _wandb(path)
    if ".tfevents." in path.name:
        return _gathered((str(path), step, row) for step, row in read_tensorboard(path).items())
    if path.suffix == ".parquet":
        content: list[Any] = read_parquet(path, ["step"]).to_dict("records")
        return _gathered((str(path), row["step"], row) for row in content)
    if path.suffix == ".json":
        return _gathered(_trl(path))
    return _gathered(_lines(path))


def _gathered(entries: Iterator[tuple[str, Any, Mapping[str, Any]]]) -> Rows:
    """Gather what is said of one step in one row: numbers alone, a later one in the place of an earlier one."""
    rows: Rows = {}
    for where, step, values in entries:
        if not isinstance(step, int | float) or isinstance(step, bool) or not 0 <= step <= _LARGEST:
            raise InvalidInput(where, "step", f"is {str(step)[:40]}", "a number from 0 on")
        row = rows.setdefault(float(step), {})
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in _STEPS:
                if isinstance(value, float) and not math.isfinite(value):
                    value = math.nan
                if abs(value) > _LARGEST:
                    raise InvalidInput(where, name, f"is {str(value)[:12]}", f"up to {_LARGEST:g}")
                row[name] = float(value)
    return {step: row for step, row in rows.items() if row}


def _trl(path: Path) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """List the log_history of transformers' trainer; the sums after the last step are no step."""
    content = read_json(path)
    history = content.get("log_history") if isinstance(content, dict) else None
    if not isinstance(history, list):
        raise InvalidInput(str(path), "log_history", "is missing", "the state of a trainer of transformers")
    for number, entry in enumerate(history):
        where = f"{path}: log_history[{number}]"
        if not isinstance(entry, dict):
            raise InvalidInput(where, "", "is no object")
        if "train_runtime" not in entry:
            yield where, entry.get("step"), entry


def _lines(path: Path) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """List verl's lines: JSON of its file logger, ``step:1 - name:number - ...`` among others of its console."""
    is_json = None
    for where, line in read_lines(path):
        is_json = line.startswith("{") if is_json is None else is_json
        if is_json:
            entry = parse_json(line, where)
            data = entry.get("data", entry) if isinstance(entry, dict) else None
            if not isinstance(data, dict):
                raise InvalidInput(where, "data", "is no object", 'lines as {"step": 1, "data": {...}}')
            yield where, entry.get("step"), data
        elif (start := line.find("step:")) >= 0 and " - " in line:
            pairs = [_PAIR.match(part.strip()) for part in line[start:].split(" - ")]
            values = {pair[1]: _float(pair[2]) for pair in pairs if pair}
            if "step" in values:
                yield where, values["step"], values


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _wandb(path: Path) -> Rows:
    """Read the history of a run; values are JSON, and the step is its own or the one beside."""

    def entries() -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        for number, (texts, beside) in enumerate(read_wandb(path)):
            where = f"{path}: history {number}"
            values = {name: parse_json(text, f"{where}: {name}") for name, text in texts.items() if text}
            steps = [values[name] for name in ("train/global_step", "training_step") if name in values]
            yield where, steps[0] if steps else values.get("_step", beside), values

    return _gathered(entries())


def _mlflow(path: Path) -> Rows:
    """Read MLflow's directory of metrics: a file for each, lines of time in milliseconds, value and step."""
    entries = []
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        for where, line in read_lines(file):
            try:
                time, value, step = (float(word) for word in line.split()[:3])
            except ValueError:
                raise InvalidInput(where, "", "is no metric of MLflow", "time, value and step") from None
            entries.append((where, step, time, {file.relative_to(path).as_posix(): value}))
    start = min((time for _, _, time, _ in entries), default=0.0)
    return _gathered((where, step, {**row, SINCE_START: (time - start) / 1000}) for where, step, time, row in entries)
