"""MLflow's web interface, on loopback only."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from pathlib import Path

from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from evals.core.errors import InvalidInput, UserError
from rlvr.report.mlflow.projection import CURVES, SCORES, project, studies_of
from rlvr.report.mlflow.store import Store
from rlvr.report.provenance import StudyName

HOST = "127.0.0.1"


def browse(results: Path, port: int = 5000) -> None:
    """Show the runs in MLflow's web interface, on this machine only; trainings under way grow there.

    The first study's curves open in a browser, if this is a terminal on a desktop. With a tracking server in
    ``MLFLOW_TRACKING_URI`` the runs are brought there, and its addresses are printed.

    Args:
        results: results/, where runs, samples and grades lie.
        port: on loopback.
    """
    store = Store.of(results)
    if not studies_of(results):
        raise UserError(f"{results}: holds no study that was started; run one first")
    if store.server is None:
        check_port(port)
    print("making the runs in MLflow from the results", flush=True)
    show(results, store)
    if store.server is not None:
        print(*links(results, store, store.address), sep="\n")
    else:
        serve(results, store, port)


def show(results: Path, store: Store) -> None:
    """Make the runs of every study; what cannot be shown is printed, and the rest is still worth browsing."""
    for study in studies_of(results):
        try:
            project(study, results, store)
        except (UserError, MlflowException, SQLAlchemyError, OSError) as error:
            print(f"warning: {str(error).partition(chr(10))[0]}; showing what there is", file=sys.stderr, flush=True)


def serve(results: Path, store: Store, port: int) -> None:
    """Run MLflow's server until this process ends, however it ends, and show what trainings do meanwhile."""
    # Of jobs that MLflow could run (scorers of chat traces) a study has none: nine processes and 2 GB less.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store.uri, "--default-artifact-root"]
    command += [store.artifacts.resolve().as_uri(), "--host", HOST, "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(command, env=environment, start_new_session=True)
    # The guard's input ends with this process; MLflow's server would stay on its port after kill -9.
    guard = ["sh", "-c", f"cat; kill -- -{server.pid} 2>/dev/null"]
    with subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True):
        threading.Thread(target=_accompany, args=(results, store, port), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.wait()
        server.terminate()
    if server.wait() not in (0, -signal.SIGTERM):
        raise UserError(f"MLflow's server ended with status {server.returncode}")


def _accompany(results: Path, store: Store, port: int) -> None:
    """Print the addresses of the studies once the server answers, and show what trainings do until the process ends."""
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.3)
    first, *addresses = links(results, store, f"http://{HOST}:{port}")
    print(f"{first} (Ctrl-C ends it)", *addresses, sep="\n", flush=True)
    if is_on_desktop():
        webbrowser.open(addresses[0].split()[-1])
    while store.database.exists():  # MLflow keeps a deleted one open
        started = time.monotonic()
        show(results, store)
        time.sleep(max(20.0, 20 * (time.monotonic() - started)))  # a twentieth of the time at most
    print(f"warning: {store.database}: was deleted; trainings are watched no longer", file=sys.stderr, flush=True)


def links(results: Path, store: Store, root: str) -> list[str]:
    """The addresses of each study's curves, scores and responses in the web interface.

    MLflow opens an experiment on its page of chat traces, of which a study has none; its views are kept with it.
    """
    lines = [f"MLflow on {root}"]
    with store.writing() as client:
        for own in studies_of(results):
            experiment = store.experiment(client, StudyName.read(own / "study.json").study)
            page = f"{root}/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning"
            for name, view in {"curves": CURVES, "scores": SCORES, "responses": SCORES}.items():
                mode = {"curves": "&compareRunsMode=CHART", "responses": "&compareRunsMode=ARTIFACT"}.get(name, "")
                lines.append(f"  {experiment.name}: {name:10} {page}&viewStateShareKey={view}{mode}")
    return lines


def check_port(port: int) -> None:
    """Refuse a port on which no server could listen, on loopback."""
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError) as error:
        reason = "is taken" if getattr(error, "errno", None) == errno.EADDRINUSE else f"cannot be used ({error})"
        with socket.create_server((HOST, 0)) as free:
            raise InvalidInput(
                "", "--port", f"{port} {reason}", f"a free port, such as {free.getsockname()[1]}"
            ) from None


def is_on_desktop() -> bool:
    """Whether a browser that opens is seen, and does not fill the terminal as one without windows would."""
    has_windows = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and has_windows
