"""A disk that is full, or where nothing can be written: one line that names the file, and nothing lost."""

import resource
import subprocess
import sys
from pathlib import Path

from tests.commands import ended

LIMIT = 2000  # bytes that a file may have: the operating system then refuses to write on, as on a full disk
PROBLEMS = "results/problems/x"

DRAW = """
import sys
from pathlib import Path
from rlvr.runs.job import job
from evals.problems.arithmetic import write_problems
with job("job.log"):
    kinds = [{"family": "chain", "operands": 5}]
    write_problems("x", kinds, "train", int(sys.argv[1]), 1, Path("results/problems/x"))
"""
SAVE = """
import sys, torch
from pathlib import Path
from evals.core.errors import UserError
from rlvr.runs.state import StateStore
store = StateStore(Path(sys.argv[1]), "a" * 64)
store.save(1, {"model.w": torch.ones(8)}, {})
for tensor, text in ((10_000, 0), (8, 10_000)):
    try:
        store.save(2, {"model.w": torch.ones(tensor)}, {"metrics": ["x" * text]})
    except UserError as error:
        print(error)
    print(store.latest()[0], sorted(path.name for path in (Path(sys.argv[1]) / ("a" * 16)).iterdir()))
"""


def limited(command: list[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that may write no file larger than the limit."""
    return ended(
        [sys.executable, *command],
        cwd=directory,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT)),
    )


def draw(directory: Path, count: int) -> tuple[int, str]:
    """Draw problems to results/problems/x below a directory, as a job of the workflow; its status and its log."""
    status = limited(["-c", DRAW, str(count)], directory).returncode
    return status, (directory / "job.log").read_text()


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path: Path) -> None:
    assert draw(tmp_path, 5) == (0, "")
    drawn = tmp_path / PROBLEMS
    before = (drawn / "problems.jsonl").read_bytes()
    complaint = f"error: {PROBLEMS}/problems.jsonl: cannot be written: File too large\n"
    assert draw(tmp_path, 500) == (2, complaint)
    assert (drawn / "problems.jsonl").read_bytes() == before
    assert sorted(path.name for path in drawn.iterdir()) == ["manifest.json", "problems.jsonl"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    status, log = draw(tmp_path, 5)
    assert status == 2 and log.count("\n") == 1
    assert log.startswith(f"error: {PROBLEMS}/problems.jsonl: cannot be written: Not a directory")


def test_a_state_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    answer = limited(["-c", SAVE, str(tmp_path)])
    lines = answer.stdout.splitlines()
    assert len(lines) == 4 and all("cannot be written" in line for line in lines[::2]), answer.stderr
    assert lines[1::2] == ["1 ['step-00000001']"] * 2
