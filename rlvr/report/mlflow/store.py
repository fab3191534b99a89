"""The MLflow database of a results directory, or the tracking server of the user; one process at a time writes it.

MLflow 3.17 creates its tables without a lock: of several processes that open a new database at once most fail and may
leave it broken. Here it is made under a file lock, in a temporary file, and renamed when it is whole.
"""

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pandas as pd
import psutil
from filelock import FileLock, Timeout
from mlflow.entities import Experiment, Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint

_USER = psutil.Process().username()  # the number of a user identifier that has no name
_SERVER, _OWNER_TAG, _RESULT_TAG = "MLFLOW_TRACKING_URI", "rlvr.results", "rlvr.result"
_MADE_TAG, _SHOWN_TAG = "rlvr.made_from", "rlvr.shown"  # of a run: what it is made from; its steps, files and our tags
_HASHES = "sha256/"
_MARK, _MOST_MARKS = 8, 500  # characters of a file name's hash, and names, that a tag of 8,000 characters holds
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # opens on runs and charts instead of on chat traces
_BUSY_SECONDS = 10.0


class Store:
    """``mlflow.db`` in results/, with a directory for copies of tables and figures; or the server of the environment.

    Databases and directories that the environment names are not ours, and are not written. ``client`` writes while
    :meth:`writing` holds the lock.
    """

    client: MlflowClient

    def __init__(self, results: Path) -> None:
        self.results = results.resolve()
        self.database, self.artifacts = self.results / "mlflow.db", self.results / "mlflow-artifacts"
        named = os.environ.get(_SERVER, "").rstrip("/")
        self.server = named if named.startswith(("http://", "https://")) else None
        parts = urlsplit(named)
        self.address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without a password
        self.uri = self.server or f"sqlite:///{self.database}"

    @contextlib.contextmanager
    def writing(self, lock_seconds: float = 600.0) -> Iterator[None]:
        """Hold the lock of the results' MLflow, and make the database if there is none; what fails is one line."""
        path = self.database
        try:
            with FileLock(f"{path}.lock", timeout=lock_seconds):
                if self.server is None:
                    if not path.exists():
                        unfinished = path.with_name(f".{path.name}.new")
                        unfinished.unlink(missing_ok=True)  # left by a process that died here
                        _open(f"sqlite:///{unfinished}")
                        os.replace(unfinished, path)
                    _require_usable(path)
                self.client = _open(self.uri)
                yield
                if self.server is None:
                    with contextlib.suppress(sqlite3.OperationalError):  # somebody reads it, or the disk is full
                        _compact(path)
        except Timeout:
            raise UserError(f"{path}: another process has been writing it for {lock_seconds:.0f} s") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
        except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
            reason = " ".join(str(error).partition("\n")[0].split())
            remedy = "unless another program holds it, delete it: it is made again from the results"
            if self.server:
                raise UserError(f"{_SERVER}: {self.address}: {reason.replace(self.server, self.address)}") from None
            raise UserError(f"{path}: {reason}; {remedy}") from None

    def experiment(self, name: str) -> Experiment:
        """Open an experiment; it is made or restored if need be.

        One of a directory that this was copied from is renamed and kept; on a server one of others is refused.
        """
        experiment = self.client.get_experiment_by_name(name)
        if experiment and experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        owner = f"{_USER}:{self.results}"  # two people may have a study of one name
        location = None if self.server else self.artifacts.as_uri()  # a server chooses its own
        if experiment and self.server and (other := experiment.tags.get(_OWNER_TAG)) != owner:
            reason = f"has an experiment {name} of {other or 'others'}, not of {owner}"
            raise InvalidInput(_SERVER, self.address, reason, "another name of the study or experiment")
        if experiment and location in (None, experiment.artifact_location):
            return experiment
        if experiment:
            self.client.rename_experiment(experiment.experiment_id, f"{name}, copied, {experiment.experiment_id}")
        number = self.client.create_experiment(name, location, _KIND | {_OWNER_TAG: owner})
        return self.client.get_experiment(number)

    def runs(self, experiment: Experiment) -> list[Run]:
        """All runs of an experiment that this package made, by their tag; all others are the user's own and stay.

        Those that are whole come last.
        """
        numbers, ours = [experiment.experiment_id], f"tags.`{_RESULT_TAG}` != ''"
        runs = self.client.search_runs(numbers, ours, ViewType.ACTIVE_ONLY, max_results=50_000)
        return sorted(runs, key=lambda run: _MADE_TAG in run.data.tags)

    def log(
        self,
        experiment: Experiment,
        old: Run | None,
        key: str,
        name: str,
        tags: Mapping[str, str],
        ended: int,
        metrics: Sequence[Metric] = (),
        settings: Mapping[str, Any] = MappingProxyType({}),
        status: str = "FINISHED",
        files: Mapping[str, Path | str] = MappingProxyType({}),
        keeps: bool = False,
    ) -> str:
        """Bring what is shown of ``key`` up to date in the run ``old``, or in a new one; times are milliseconds.

        MLflow keeps every value of a metric and the first of a setting. So a run stays, with what its user added, where
        its settings are the same, its steps begin alike and no metric or file is gone. Else a new one gets the user's
        tags. A last tag says what the run was made from: one that has it is whole.

        Args:
            files: the artifacts by their paths, as files or texts.
            keeps: whether what was shown before and is not shown now stays, as scores until there are new ones.
        """
        tags = {**tags, _RESULT_TAG: key, "study": experiment.name, "mlflow.runName": name, "mlflow.user": _USER}
        tags |= {"mlflow.source.name": "rlvr-bench", "mlflow.source.type": "LOCAL"}
        params = {str(key): str(column[0]) for key, column in pd.json_normalize(dict(settings)).astype(object).items()}
        steps = sorted((m for m in metrics if m.step), key=lambda m: (m.step, m.key))
        numbers = {m.key: m.value for m in metrics if not m.step}
        points = [(m.step, m.key, m.value) for m in steps]
        states = {path: file if isinstance(file, str) else _state(file) for path, file in files.items()}
        made = {_MADE_TAG: fingerprint([name, tags, params, points, numbers, status, states])}
        if old and old.data.tags.get(_MADE_TAG) == made[_MADE_TAG]:
            return str(old.info.run_id)
        there = dict(old.data.tags) if old else {}
        count, before, paths, names = json.loads(there.get(_SHOWN_TAG, '[0, "", [], []]'))
        marks = {fingerprint(path)[:_MARK] for path in files}
        ours = {*names, _MADE_TAG, _SHOWN_TAG, *(key for key in there if key.startswith(_HASHES))}
        of_user = {key: value for key, value in there.items() if key not in ours}
        if old and not (
            (fingerprint(points[:count]), old.data.params) == (before, params)
            and (keeps or (old.data.metrics.keys() <= {*numbers, *(m.key for m in steps)} and marks.issuperset(paths)))
        ):
            old, count = None, 0
        started = min((metric.timestamp for metric in metrics if params), default=ended)
        run = old or self.client.create_run(experiment.experiment_id, started, of_user | tags)
        identifier, later = str(run.info.run_id), run.info.start_time - started  # a run that grows began once
        told = run.data.metrics
        now = time.time_ns() // 1_000_000 if old else ended  # MLflow shows the value of the latest time
        changed = [Metric(key, value, now, 0) for key, value in numbers.items() if told.get(key) != value]
        grown = [Metric(m.key, m.value, m.timestamp + later, m.step) for m in steps[count:]]
        kept = (ours & run.data.tags.keys()) - {_MADE_TAG, _SHOWN_TAG} if keeps and old else set()
        names = sorted(key for key in {*tags, *kept} if not key.startswith(_HASHES))
        marked = sorted({*marks, *paths} if kept else marks)[:_MOST_MARKS]
        shown = {_SHOWN_TAG: json.dumps([len(points), fingerprint(points), marked, names])}
        new = [RunTag(key, value) for key, value in (tags | shown).items() if run.data.tags.get(key) != value]
        settled = [] if old else [Param(key, value) for key, value in params.items()]
        self.client.log_batch(identifier, [*grown, *changed], settled, new)
        for gone in (ours & run.data.tags.keys()) - {*tags, *kept, _SHOWN_TAG}:
            self.client.delete_tag(identifier, gone)
        for path, file in files.items():
            if isinstance(file, str):
                self.client.log_text(identifier, file, path)
            else:
                folder = Path(path).parent.as_posix()
                self.client.log_artifact(identifier, str(file), folder if folder != "." else None)
        if status == "RUNNING":
            self.client.update_run(identifier, status, name)
        else:
            self.client.update_run(identifier, name=name)
            self.client.set_terminated(identifier, status, ended)
        self.client.set_tag(identifier, _MADE_TAG, made[_MADE_TAG])
        return identifier

    def delete(self, run: Run) -> None:
        """Delete a run and its files; on a server it is hidden, as by its own pages, until ``mlflow gc`` there."""
        self.client.delete_run(run.info.run_id)
        if self.server is None:
            self.client._tracking_client.store._hard_delete_run(run.info.run_id)  # `mlflow gc` takes the user's too
            folder = Path(url2pathname(urlsplit(run.info.artifact_uri).path))
            if folder.is_relative_to(self.artifacts):
                shutil.rmtree(folder.parent, ignore_errors=True)


def key_of(run: Run) -> str:
    """What a run of this package shows."""
    return str(run.data.tags[_RESULT_TAG])


def _state(file: Path) -> tuple[int, int]:
    return file.stat().st_mtime_ns, file.stat().st_size


def _open(uri: str) -> MlflowClient:
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)  # dozens of lines about migrations of an empty database
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)  # else MLFLOW_REGISTRY_URI's
    client.get_experiment("0")
    return client


def _compact(path: Path) -> None:
    """Give back what replaced runs leave empty, where it is more than a tenth of the file."""
    with contextlib.closing(sqlite3.connect(path, timeout=0.0)) as database:
        empty, pages = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
        if 10 * empty > pages:
            database.execute("VACUUM")


def _require_usable(path: Path) -> None:
    """Raise sqlite3.Error for a database that is damaged or held: MLflow would try for more than a minute."""
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
        if (state := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(state)
        database.execute("BEGIN IMMEDIATE")
