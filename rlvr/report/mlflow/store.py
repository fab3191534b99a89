"""The MLflow database of a results directory, or the tracking server of the user; one process at a time writes it.

MLflow 3.17 creates its tables without a lock: of several processes that open a new database at once most fail and may
leave it broken. Here it is made under a file lock, in a temporary file, and renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import sqlalchemy
from filelock import FileLock, Timeout
from mlflow.entities import Experiment, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from evals.core.errors import InvalidInput, UserError

SERVER_VARIABLE, OWNER_TAG = "MLFLOW_TRACKING_URI", "rlvr.results"
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # opens on runs and charts instead of on chat traces
_BUSY_SECONDS = 10.0


def _server_named() -> str | None:
    """The server that users of MLflow name in the environment; databases and directories named there are not ours."""
    uri = os.environ.get(SERVER_VARIABLE, "")
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else None


def user_name() -> str:
    """The name of who runs this, or nothing where the system has none."""
    with contextlib.suppress(KeyError, OSError):  # a user identifier without a name
        return getpass.getuser()
    return ""


@dataclass(frozen=True)
class Store:
    """An SQLite file and a directory for copies of tables and figures; with a ``server`` the file only names a lock."""

    database: Path
    artifacts: Path
    server: str | None = field(default_factory=_server_named)

    @classmethod
    def of(cls, results: Path) -> Store:
        """The store of a results/ directory."""
        return cls(results / "mlflow.db", results / "mlflow-artifacts")

    @property
    def uri(self) -> str:
        """MLflow's address of the server or of the database."""
        return self.server or f"sqlite:///{self.database.resolve()}"

    @property
    def address(self) -> str:
        """The server's address for people, without a password."""
        parts = urlsplit(self.server or "")
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    @contextlib.contextmanager
    def writing(self, server_seconds: int = 60, lock_seconds: float = 600.0) -> Iterator[MlflowClient]:
        """Hold the database's lock, and make the database if there is none; a server has so many seconds for it all."""
        path = self.database
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(path.name + ".lock"), timeout=lock_seconds):
                if self.server is not None:
                    with _limited(server_seconds):
                        yield self._client()
                    return
                if not path.exists():
                    unfinished = path.with_name(f".{path.name}.new")
                    unfinished.unlink(missing_ok=True)  # left by a process that died here
                    Store(unfinished, self.artifacts, None)._client()
                    os.replace(unfinished, path)
                _require_usable(path)
                yield self._client()
        except MlflowException as error:
            if self.server is None:
                raise
            reason = str(error).splitlines()[0].replace(self.server, self.address)
            raise UserError(f"{SERVER_VARIABLE}: {self.address}: {reason}") from None
        except Timeout:
            raise UserError(f"{path}: another process has been writing it for {lock_seconds:.0f} s") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error

    def _client(self) -> MlflowClient:
        for name in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(name).setLevel(logging.WARNING)  # dozens of lines about migrations of an empty database
        try:
            client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)  # else MLFLOW_REGISTRY_URI's
            client.get_experiment("0")
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise _damaged(self.database, error) from None
        return client

    def experiment(self, client: MlflowClient, name: str) -> Experiment:
        """Open an experiment; it is made or restored if need be.

        One of a directory that this was copied from is renamed and kept; on a server one of others is refused.
        """
        experiment = client.get_experiment_by_name(name)
        if experiment and experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        owner = f"{user_name()}:{self.database.parent.resolve()}"  # two people may have a study of one name
        location = None if self.server else self.artifacts.resolve().as_uri()  # a server chooses its own
        if experiment and self.server and (other := experiment.tags.get(OWNER_TAG)) != owner:
            reason = f"has an experiment {name} of {other or 'others'}, not of {owner}"
            raise InvalidInput(SERVER_VARIABLE, self.address, reason, "another name of the study or experiment")
        if experiment and location not in (None, experiment.artifact_location):
            client.rename_experiment(experiment.experiment_id, f"{name}, copied, {experiment.experiment_id}")
        elif experiment:
            return experiment
        return client.get_experiment(client.create_experiment(name, location, _KIND | {OWNER_TAG: owner}))

    def delete(self, client: MlflowClient, run: Run) -> None:
        """Delete a run and its files; on a server it is hidden, as by its own pages, until ``mlflow gc`` there."""
        client.delete_run(run.info.run_id)
        if self.server is None:
            client._tracking_client.store._hard_delete_run(run.info.run_id)  # `mlflow gc` would take the user's too
            folder = Path(url2pathname(urlsplit(run.info.artifact_uri).path))
            if folder.is_relative_to(self.artifacts.resolve()):
                shutil.rmtree(folder.parent, ignore_errors=True)


def _require_usable(path: Path) -> None:
    """Refuse a database that is damaged or held: MLflow would try for more than a minute."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
            if (state := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise _damaged(path, state)
            database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        reason = f"cannot be written ({error}); another program may hold it, such as a browser of it"
        raise UserError(f"{path}: {reason}") from None
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, reason: object) -> UserError:
    text = " ".join(str(reason).partition("\n")[0].split())
    return UserError(f"{path}: is damaged or no MLflow database ({text}); delete it, it is made again from the results")


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raise after so many seconds, whatever a server sends or not; Python has this for the main thread alone."""

    def stop(*_: object) -> None:
        raise MlflowException(f"has not taken the runs within {seconds} s")

    is_main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGALRM, stop) if is_main else None
    signal.alarm(seconds if is_main else 0)
    try:
        yield
    finally:
        if is_main:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)
