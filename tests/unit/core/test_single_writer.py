"""A job that outlived its study is waited for, by the stages that take long."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from evals.core.errors import UserError
from evals.core.single_writer import single_writer
from tests.stages import grade, status

HOLDER = """
import sys, time
from pathlib import Path
from evals.core.single_writer import single_writer
with single_writer(Path(sys.argv[1]), "works here"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_another_process_is_waited_for_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} "), single_writer(tmp_path, "works here", 0):
        pass
    threading.Timer(3.0, holder.kill).start()
    with single_writer(tmp_path, "works here"):
        assert holder.wait() != 0
    assert f"waiting for process {holder.pid}, which works here" in capsys.readouterr().out


def test_grading_waits_for_whoever_writes_there(tmp_path: Path) -> None:
    """It fails on its inputs, which do not exist, but not before it may write."""
    out = tmp_path / "out"
    done = threading.Thread(target=status, args=(grade, Path("none"), Path("none"), out))
    with single_writer(out / ".writer", "works here"):
        done.start()
        time.sleep(1.5)
        assert done.is_alive()
    done.join(timeout=600)
    assert not done.is_alive()
