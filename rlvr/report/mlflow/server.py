"""MLflow's web interface, on loopback only."""

import contextlib
import errno
import os
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from evals.core.errors import InvalidInput, UserError
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.experiment import OWNER_TAG, is_of
from rlvr.report.mlflow.in_progress import show_in_progress, watch
from rlvr.report.mlflow.projected import project_newer
from rlvr.report.mlflow.views import CURVES, SCORES, save_views

HOST = "127.0.0.1"


def browse(results: Path, port: int = 5000) -> None:
    """Show the runs in MLflow's web interface, on this machine only; trainings under way are watched as well.

    The first study's curves open in a browser, if this is a terminal on a desktop. With a tracking server in
    ``MLFLOW_TRACKING_URI`` the runs are brought there, and its addresses are printed.

    Args:
        results: results/, where runs, samples and grades lie.
        port: on loopback.
    """
    store = Store.of(results)
    if store.server is None:
        check_port(port)
    studies = [results / "tracking.json", *sorted(results.glob("studies/*/tracking.json"))]
    for record in [*filter(Path.exists, studies), *sorted(results.glob("*.tracking.json"))]:
        with _warning():
            if (counts := project_newer(record, results, store)) is not None:
                print(f"{record}: {describe(counts)}")
    with _warning():
        if number := show_in_progress(results, store):
            print(f"trainings in progress, or of a study that is: {number}")
    if store.server is not None:
        print(*links(store, store.address), sep="\n")
        return
    if not store.database.exists():
        raise UserError(f"{results}: holds no study that was started; run one first")
    serve(results, store, port)


def describe(counts: Mapping[str, int]) -> str:
    """The counts of a projection in words."""
    return "MLflow runs: " + ", ".join(f"{number} {word}" for word, number in counts.items())


@contextlib.contextmanager
def _warning() -> Iterator[None]:
    """Print what cannot be shown; a study in progress lacks some outputs, and the rest is still worth browsing."""
    try:
        yield
    except UserError as error:
        print(f"warning: {error}; showing what there is", file=sys.stderr)


def serve(results: Path, store: Store, port: int) -> NoReturn:
    """Be MLflow's own command, which starts the server, hands signals on to it and ends with it.

    A thread says where the server is once it answers, and watches the trainings in progress in ``results``.
    """
    from mlflow.cli import cli as mlflow

    # Of jobs that MLflow could run (scorers of chat traces) a study has none: nine processes and 2 GB less.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    threading.Thread(target=_accompany, args=(results, store, port), daemon=True).start()
    stored = ["--backend-store-uri", store.uri, "--default-artifact-root", store.artifacts.resolve().as_uri()]
    mlflow(["server", *stored, "--host", HOST, "--port", str(port), "--workers", "1"])
    raise AssertionError("the command ends the process")


def _accompany(results: Path, store: Store, port: int) -> None:
    """Print the addresses of the studies once the server answers, and show what trainings do until the process ends."""
    wait_until_served(port)
    first, *addresses = links(store, f"http://{HOST}:{port}")
    print(first, *addresses, sep="\n", flush=True)
    if addresses and is_on_desktop():
        webbrowser.open(addresses[0].split()[-1])
    watch(results, store)


def is_on_desktop() -> bool:
    """Whether a browser that opens is seen, and does not fill the terminal as one without windows would."""
    has_windows = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and has_windows


def wait_until_served(port: int, seconds: float = 0.3) -> None:
    """Wait until the server answers on a port of loopback."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=seconds):
            return
        time.sleep(seconds)


def links(store: Store, root: str) -> list[str]:
    """The addresses of each study's trainings in the web interface: their curves, scores and responses.

    MLflow opens an experiment on its page of chat traces, of which a study has none. The views are kept with the
    experiment before.
    """
    lines = [f"MLflow on {root}" + ("" if store.server else " (Ctrl-C ends it)")]
    with store.writing() as client:
        mine = f'tags.`{OWNER_TAG}` = "{store.owner}"' if store.server else None
        experiments = [each for each in client.search_experiments(filter_string=mine) if is_of(each, store)]
        for experiment in experiments:
            save_views(client, experiment)
    for experiment in experiments:
        page = f"{root}/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey="
        lines += [f"  {experiment.name}: curves     {page}{CURVES}&compareRunsMode=CHART"]
        lines += [f"  {experiment.name}: scores     {page}{SCORES}"]
        lines += [f"  {experiment.name}: responses  {page}{SCORES}&compareRunsMode=ARTIFACT"]
    return lines


def check_port(port: int) -> None:
    """Refuse a port on which no server could listen, on loopback."""
    try:
        _bind(port)
    except (OSError, OverflowError) as error:
        is_taken = getattr(error, "errno", None) == errno.EADDRINUSE
        reason = f"{port} is taken" if is_taken else f"{port} cannot be used ({error})"
        raise InvalidInput("", "--port", reason, f"a free port, such as {_bind(0)}") from None


def _bind(port: int) -> int:
    """Listen on a port for a moment; the port's number, which the system chooses for 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return int(probe.getsockname()[1])
