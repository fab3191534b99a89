"""Opening the MLflow database so that one process at a time makes and writes it.

MLflow 3.17 creates its tables without a lock: of several processes that open a new database at once most fail and may
leave it broken. Here it is made under a file lock, in a temporary file, and renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlflow.exceptions
import sqlalchemy
from filelock import FileLock, Timeout
from mlflow.entities import Experiment
from mlflow.tracking import MlflowClient

from evals.core.errors import UserError

LOCK_SECONDS = 600.0
_SQLITE_HEADER = b"SQLite format 3\0"
_EXPERIMENT_KIND_TAG = "mlflow.experimentKind"  # opens the interface on runs and charts instead of on chat traces


@dataclass(frozen=True)
class Database:
    """An MLflow database: ``client`` for everything, ``engine`` for bulk inserts."""

    client: MlflowClient
    engine: sqlalchemy.Engine


@contextlib.contextmanager
def writing(path: Path, lock_seconds: float = LOCK_SECONDS) -> Iterator[Database]:
    """Hold the database's lock and make the database if there is none.

    Raises:
        UserError: another process kept the lock for ``lock_seconds``, or the file is no MLflow database.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock"), timeout=lock_seconds), _without_waiting_for_the_disk():
            if path.exists():
                _check_header(path)
            else:
                _initialise(path)
            engine = sqlalchemy.create_engine(database_uri(path))
            try:
                yield Database(_client(path), engine)
            finally:
                engine.dispose()
    except Timeout:
        raise UserError(f"{path}: another process has been writing it for {lock_seconds:.0f} s") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _without_waiting_for_the_disk() -> Iterator[None]:
    """Let the system write when it likes: MLflow commits thousands of times, and each would wait for the disk.

    A killed process still leaves a whole database; after a power cut it may have to be made again from the results.
    """

    def relax(connection: sqlite3.Connection, record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", relax)
    try:
        yield
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "connect", relax)


def database_uri(database: Path) -> str:
    """The SQLAlchemy address of a database file."""
    return f"sqlite:///{database.resolve()}"


def _check_header(path: Path) -> None:
    """Refuse a file that is no SQLite database: MLflow would try to open it for more than a minute."""
    with open(path, "rb") as handle:
        if handle.read(len(_SQLITE_HEADER)) != _SQLITE_HEADER:
            raise UserError(f"{path}: is not an SQLite database; delete it, it is made again from the results")


def _initialise(database: Path) -> None:
    unfinished = database.with_name(f".{database.name}.new")
    unfinished.unlink(missing_ok=True)  # left by a process that died here; the lock says that none is at it now
    _client(unfinished)
    os.replace(unfinished, database)


def _client(database: Path) -> MlflowClient:
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)  # dozens of lines about migrations of an empty database
    try:
        client = MlflowClient(tracking_uri=database_uri(database))
        client.get_experiment("0")
    except (sqlalchemy.exc.SQLAlchemyError, mlflow.exceptions.MlflowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{database}: is not an MLflow database ({reason}); delete it, it is made again from the results"
        ) from None
    return client


def open_experiment(client: MlflowClient, name: str, artifacts: Path) -> Experiment:
    """The experiment of a study, made or restored if need be.

    Raises:
        UserError: it exists and keeps its artifacts elsewhere, as after results/ was moved.
    """
    location = artifacts.resolve().as_uri()
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return client.get_experiment(
            client.create_experiment(name, location, {_EXPERIMENT_KIND_TAG: "custom_model_development"})
        )
    if experiment.artifact_location != location:
        raise UserError(
            f"experiment {name}: keeps its artifacts in {experiment.artifact_location}, not in {location}; "
            "delete the MLflow database, it is made again from the results"
        )
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return experiment
