"""The tracking server, or the MLflow database, that a study is projected into; one process at a time writes it.

MLflow 3.17 creates its tables without a lock: of several processes that open a new database at once most fail and may
leave it broken. Here it is made under a file lock, in a temporary file, and renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import mlflow.exceptions
import sqlalchemy
from filelock import FileLock, Timeout
from mlflow.tracking import MlflowClient

from evals.core.errors import UserError

SERVER_VARIABLE = "MLFLOW_TRACKING_URI"
_SQLITE_HEADER = b"SQLite format 3\0"
_BUSY_SECONDS = 10.0
_DELETE_IT = "delete it, it is made again from the results"


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
    """The MLflow store of a results directory: an SQLite file, and a directory for copies of tables and figures.

    With a tracking server named in ``MLFLOW_TRACKING_URI`` both are the server's, and the file is only its lock's name.
    """

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

    @property
    def owner(self) -> str:
        """Whose results these are: on a server, several people may have a study of one name."""
        return f"{user_name()}:{self.database.parent.resolve()}"

    @property
    def exists(self) -> bool:
        """Whether something may have been projected here."""
        return self.server is not None or self.database.exists()

    @contextlib.contextmanager
    def writing(self, lock_seconds: float = 600.0) -> Iterator[MlflowClient]:
        """Hold the database's lock, and make the database if there is none."""
        path = self.database
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(path.name + ".lock"), timeout=lock_seconds), _without_waiting_for_the_disk():
                if self.server is None:
                    if not path.exists():
                        self._initialise()
                    _require_usable(path)
                yield self._client()
        except mlflow.exceptions.MlflowException as error:
            if self.server is None:
                raise
            reason = str(error).splitlines()[0].replace(self.server, self.address)
            raise UserError(f"{SERVER_VARIABLE}: {self.address}: {reason}") from None
        except Timeout:
            raise UserError(f"{path}: another process has been writing it for {lock_seconds:.0f} s") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error

    def _initialise(self) -> None:
        unfinished = self.database.with_name(f".{self.database.name}.new")
        unfinished.unlink(missing_ok=True)  # left by a process that died here; the lock says that none uses it now
        Store(unfinished, self.artifacts, None)._client()
        os.replace(unfinished, self.database)

    def _client(self) -> MlflowClient:
        for name in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(name).setLevel(logging.WARNING)  # dozens of lines about migrations of an empty database
        try:
            client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)  # else MLFLOW_REGISTRY_URI's
            client.get_experiment("0")
        except (sqlalchemy.exc.SQLAlchemyError, mlflow.exceptions.MlflowException) as error:
            if self.server is not None:
                raise
            reason = str(error).splitlines()[0]
            raise UserError(f"{self.database}: is not an MLflow database ({reason}); {_DELETE_IT}") from None
        return client


def _require_usable(path: Path) -> None:
    """Open the database as it is, and refuse one that is damaged or held: MLflow would try for more than a minute."""
    with open(path, "rb") as handle:
        if handle.read(len(_SQLITE_HEADER)) != _SQLITE_HEADER:
            raise UserError(f"{path}: is not an SQLite database; {_DELETE_IT}")
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
            found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise UserError(
            f"{path}: cannot be written ({error}); another program may hold it, such as a browser of it"
        ) from None
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise UserError(f"{path}: is damaged ({' '.join(found.split())}); {_DELETE_IT}")


@contextlib.contextmanager
def _without_waiting_for_the_disk() -> Iterator[None]:
    """Let the system write to the disk when it likes: MLflow commits several times for each run, a third of the time.

    A killed process still leaves a whole database; after a power cut it may have to be made again from the results.
    Connections are relaxed through an event of SQLAlchemy's public interface; MLflow itself is not touched.
    """

    def relax(connection: sqlite3.Connection, record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", relax)
    try:
        yield
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "connect", relax)
