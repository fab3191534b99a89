"""The entries of a log, one after another, by the readers of the tools that wrote it.

Nothing is executed or unpickled: tensorboard reads event files, wandb its runs; others are JSON, text, Parquet, SQLite.
"""

import math
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError, first_line
from evals.core.files import parse_json, read_json, read_lines, read_parquet
from rlvr_curves.names import REWARD, STEPS, Name, columns_of, plain_names

Entry = tuple[str, Mapping[str, Any]]
"""The file and the line, for messages; metrics by their names, the step among them."""
WALL = "wall time"
"""Of an entry of TensorBoard or MLflow: seconds since 1970."""
_PAIR = re.compile(r"([^\s:]\S*):(?:np\.\w+\()?([-+]?(?:\d[\d.eE+-]*|nan|inf))\)?$")


@dataclass(frozen=True)
class Log:
    """What one file says of a run.

    Attributes:
        entries: in the order in which they were written.
        step: the name of the step that each entry has; empty: the first of the table's that is there.
        identity: the run's id where its tracker gives one; parts of a resumed run share it.
        step_metrics: metric, or pattern of metrics -> the step that wandb's ``define_metric`` gives it.
        counts_calls: whether ``wandb.log`` was given no step, so that wandb's own counts calls.
        directory: the one that ``add_scalars`` made for this file, whose metrics no other directory has.
    """

    entries: Sequence[Entry]
    step: str = ""
    identity: str = ""
    step_metrics: Mapping[str, str] = field(default_factory=dict)
    counts_calls: bool = False
    directory: str = ""

    def find_step(self, names: Sequence[Name]) -> tuple[Name, str]:
        """Find the step: the row of the table, and the name in the log, empty where entries with a reward count."""
        columns = plain_names(name for _, values in self.entries for name in values)
        steps = [row for row in names if row.quantity == "step"]
        if self.step:
            return next(row for row in steps if row.name == self.step), self.step
        reward = self.reward(names)
        for metric, step in self.step_metrics.items():
            if step not in STEPS and fnmatchcase(reward, metric):
                steps.insert(0, Name("step", steps[0].counts, "value", step, "wandb's define_metric"))
        row = next((row for row in steps if row.name in columns), steps[-1])
        is_counted = self.counts_calls and any(reward not in values for _, values in self.entries)
        return row, "" if row == steps[-1] and is_counted else columns.get(row.name, row.name)

    def reward(self, names: Sequence[Name]) -> str:
        """The name of the reward in the log; empty where it has none."""
        return columns_of(names, (name for _, values in self.entries for name in values)).get(REWARD, (None, ""))[1]

    def by_step(self, step: str, reward: str) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        """List place, step and values of the entries; wandb's without the step are of the step before.

        Without a step they are of the reward before, or of the one after where their metrics came before the first one.
        """
        current, rewards = None, 0
        before = list(takewhile(lambda entry: reward not in entry[1], self.entries))
        early = {name for _, values in before for name in values}
        is_wandb = any("_step" in values for _, values in self.entries[:1])
        for where, values in self.entries:
            rewards += reward in values
            if not step:
                current = rewards if reward not in values and values.keys() <= early else max(rewards - 1, 0)
            else:
                current = values.get(step, current if is_wandb else None)
            if current is not None or not is_wandb:
                yield where, current, values


def read_log(path: Path) -> Log:
    """Read a file, MLflow's directory of metrics, or ``DATABASE/ID``, a run of MLflow's database."""
    if path.parent.is_file():
        return _mlflow_run(path.parent, path.name)
    if path.is_dir():
        return Log(list(_mlflow_directory(path)), "step")
    if path.suffix == ".wandb":
        return _wandb(path)
    if ".tfevents." in path.name:
        is_inside = any(path.parent.parent.glob("*.tfevents.*"))
        return Log(list(_tensorboard(path, is_inside)), "step", directory=path.parent.name if is_inside else "")
    if path.suffix == ".parquet":
        rows = read_parquet(path, ["step"]).to_dict("records")
        return Log([(str(path), {str(name): value for name, value in row.items()}) for row in rows], "step")
    if path.suffix == ".json":
        return Log(list(_trainer_state(path)), "step")
    return Log(list(_lines(path)))


def runs_of_database(path: Path) -> dict[str, str]:
    """Read the runs with metrics in MLflow's database: id -> name."""
    with_metrics = "lifecycle_stage = 'active' AND run_uuid IN (SELECT run_uuid FROM metrics)"
    return dict(_query(path, f"SELECT run_uuid, name FROM runs WHERE {with_metrics} ORDER BY start_time"))


def _query(path: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")  # a view in a file from elsewhere calls nothing
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise InvalidInput(str(path), "", f"cannot be read as MLflow's database ({error})") from None


def _mlflow_run(path: Path, identity: str) -> Log:
    query = "SELECT key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step"
    entries = [
        (f"{path}: {key}", {"step": step, str(key): math.nan if is_nan else value, WALL: time / 1000})
        for key, value, time, step, is_nan in _query(path, query, identity)
    ]
    return Log(entries, "step", identity)


def _mlflow_directory(path: Path) -> Iterator[Entry]:
    """List MLflow's directory of metrics: a file for each, lines of time in milliseconds, value and step."""
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        for where, line in read_lines(file):
            try:
                time, value, step = (float(word) for word in line.split()[:3])
            except ValueError:
                raise InvalidInput(where, "", "is no metric of MLflow", "time, value and step") from None
            yield where, {"step": step, file.relative_to(path).as_posix(): value, WALL: time / 1000}


def _tensorboard(path: Path, is_inside: bool) -> Iterator[Entry]:
    """List the scalars of an event file; of one that is still written, as far as it goes."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ModuleNotFoundError:
        raise _missing(path, "tensorboard") from None
    try:
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    name = _of_add_scalars(path, value.tag) if is_inside else value.tag
                    number = float(make_ndarray(value.tensor).item())
                    yield str(path), {"step": event.step, name: number, WALL: event.wall_time}
    except UserError:
        raise
    except Exception as error:  # what damaged bytes raise in tensorboard and protobuf has no common class
        raise InvalidInput(str(path), "", f"is no event file of TensorBoard ({first_line(error)})") from None


def _of_add_scalars(path: Path, tag: str) -> str:
    """The name of a metric that ``add_scalars`` wrote into a directory of its own: ``loss/mean`` of ``loss_mean``."""
    begin = tag.replace("/", "_") + "_"
    if not path.parent.name.startswith(begin):
        raise InvalidInput(str(path), tag, "lies below the event files of another run", "a directory of its own")
    return f"{tag}/{path.parent.name[len(begin) :]}"


def _missing(path: Path, package: str) -> UserError:
    return UserError(f"{path}: is read by {package}, which is not installed; pip install 'rlvr-curves[{package}]'")


def _wandb(path: Path) -> Log:
    """Read a run of wandb with its ``wandb leet inspect``; of one that is still written, as far as it goes."""
    if find_spec("wandb") is None:
        raise _missing(path, "wandb")
    entries, identity, step_metrics, complaint, counts_calls = list[Entry](), "", dict[str, str](), "", True
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "wandb", "leet", "inspect", "--json", str(path.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"},  # it calls nobody
    ) as process:
        for line in process.stdout or ():
            if not line.startswith(b"{"):
                complaint = line.decode("utf-8", "replace").strip() or complaint
                continue
            record = parse_json(line, str(path))
            content = record.get(record["type"]) or {}
            if record["type"] == "history":
                values = {name: _number(value) for name, value in content.get("item", {}).items()}
                entries.append((f"{path}: record {record['num']}", values))
            elif record["type"] == "run":
                identity = str(content.get("run_id", ""))
            elif record["type"] == "metric" and content.get("step_metric"):
                step_metrics[str(content.get("name") or content.get("glob_name"))] = str(content["step_metric"])
            elif record["type"] == "telemetry" and content.get("feature", {}).get("set_step_log"):
                counts_calls = False
    if process.returncode and not entries:
        reason = complaint or f"status {process.returncode}"
        raise InvalidInput(str(path), "", f"cannot be read by wandb leet inspect ({reason})", "a run of wandb")
    return Log(entries, "", identity, step_metrics, counts_calls)


def _number(value: Any) -> Any:
    """A value of wandb's JSON, which has words for what is not finite."""
    return math.nan if value in ("NaN", "Infinity", "-Infinity") else value


def _trainer_state(path: Path) -> Iterator[Entry]:
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
            yield where, entry


def _lines(path: Path) -> Iterator[Entry]:
    """List lines of JSON, as of verl's file logger, or ``step:1 - name:number - ...`` among others of its console."""
    is_json = None
    for where, line in read_lines(path):
        is_json = line.startswith("{") if is_json is None else is_json
        if is_json:
            entry = parse_json(line, where)
            data = entry.get("data", entry) if isinstance(entry, dict) else None
            if not isinstance(data, dict):
                raise InvalidInput(where, "data", "is no object", 'lines as {"step": 1, "data": {...}}')
            yield where, {**entry, **data}
        elif (start := line.find("step:")) >= 0 and " - " in line:
            pairs = [_PAIR.match(part.strip()) for part in line[start:].split(" - ")]
            values = {pair[1]: _float(pair[2]) for pair in pairs if pair}
            if "step" in values:
                yield where, values


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
