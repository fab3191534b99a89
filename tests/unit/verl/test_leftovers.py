"""What verl leaves behind is known by the run that it was started for, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rlvr.engines.verl.launch import RUN_VARIABLE
from rlvr.engines.verl.leftovers import end_leftovers


def sleeper(run_file: Path | None) -> subprocess.Popen[bytes]:
    """A process, in a session of its own as vLLM's engines are, that works for a run or for none."""
    words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    more = {} if run_file is None else {RUN_VARIABLE: str(run_file)}
    process = subprocess.Popen(words, env={**os.environ, **more}, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline()  # its environment is there to be read
    return process


def test_processes_of_the_run_are_ended_and_no_others(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine" / "run.json", tmp_path / "other" / "run.json"
    processes = [sleeper(mine), sleeper(mine), sleeper(other), sleeper(None)]
    try:
        assert end_leftovers(mine) == 2
        assert [process.poll() is None for process in processes] == [False, False, True, True]
        assert end_leftovers(mine) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_caller_that_was_started_for_the_run_stays(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rlvr.engines.verl.leftovers import end_leftovers; "
        "print(end_leftovers(Path(sys.argv[1])))"
    )
    run_file = tmp_path / "run.json"
    answer = subprocess.run(
        [sys.executable, "-c", code, str(run_file)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), RUN_VARIABLE: str(run_file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (0, "0\n"), answer.stderr
