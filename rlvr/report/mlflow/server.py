"""MLflow's web interface, on loopback only."""

import os
import socket
import sys
import threading
import time
import warnings
from pathlib import Path

from mlflow.server.constants import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR
from uvicorn import Config, Server

from evals.core.errors import InvalidInput, UserError
from rlvr.report.mlflow.projection import CURVES, SCORES, project
from rlvr.report.mlflow.store import Store
from rlvr.report.provenance import StudyName, studies_of

HOST = "127.0.0.1"
_VIEWS = {"curves": (CURVES, "CHART"), "scores": (SCORES, "TABLE"), "responses": (SCORES, "ARTIFACT")}


def browse(results: Path, port: int = 5000) -> None:
    """Show the runs in MLflow's web interface, on this machine only; runs under way grow there.

    With a tracking server in ``MLFLOW_TRACKING_URI`` the runs are brought there, and its addresses are printed.

    Args:
        results: results/, where runs, samples and grades lie.
        port: on loopback.
    """
    store = Store(results)
    if not studies_of(results):
        others = ", ".join(str(sheet.parent) for sheet in sorted(results.glob("*/results/runs.json")))
        raise UserError(
            f"{results}: holds no study that was started; {f'--results {others} does' if others else 'run one first'}"
        )
    if store.server is not None:
        _show(store)
        print(*links(store, store.address), sep="\n")
        return
    try:
        listening = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise InvalidInput("", "--port", f"{port} cannot be served ({error})", "a free port, or 0 for any") from None
    with listening:
        print("making the runs in MLflow from the results", flush=True)
        _show(store)
        address = f"http://{HOST}:{listening.getsockname()[1]}"
        first, *addresses = links(store, address)
        # Of jobs that MLflow could run (scorers of chat traces) a study has none: nine processes and 2 GB less.
        os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        os.environ.update({BACKEND_STORE_URI_ENV_VAR: store.uri, ARTIFACT_ROOT_ENV_VAR: store.artifacts.as_uri()})
        server = Server(Config("mlflow.server.fastapi_app:app", log_level="warning"))
        with warnings.catch_warnings(action="ignore"):  # MLflow's own about its parts
            server.config.load()  # takes seconds; connections wait meanwhile
        print(f"{first} (Ctrl-C ends it)", *addresses, sep="\n", flush=True)
        threading.Thread(target=_watch, args=(store,), daemon=True).start()
        server.run(sockets=[listening])


def _show(store: Store) -> None:
    """Make the runs of every study; what cannot be shown is printed, and the rest is still worth browsing."""
    for study in studies_of(store.results):
        try:
            project(study, store)
        except UserError as error:
            print(f"warning: {error}; showing what there is", file=sys.stderr, flush=True)


def _watch(store: Store) -> None:
    """Show what runs do until the process ends."""
    while store.database.exists():  # MLflow keeps a deleted one open
        started = time.monotonic()
        _show(store)
        time.sleep(max(20.0, 20 * (time.monotonic() - started)))  # a twentieth of the time at most
    print(f"warning: {store.database}: was deleted; training runs are watched no longer", file=sys.stderr, flush=True)


def links(store: Store, root: str) -> list[str]:
    """The addresses of each study's curves, scores and responses; MLflow itself would open on chat traces."""
    lines = [f"MLflow on {root}"]
    with store.writing():
        for study in studies_of(store.results):
            experiment = store.experiment(StudyName.read(study / "study.json").study)
            page = f"{root}/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning"
            for name, (view, mode) in _VIEWS.items():
                address = f"{page}&viewStateShareKey={view}&compareRunsMode={mode}"
                lines.append(f"  {experiment.name}: {name:10} {address}")
    return lines
