"""A study that is ended at random points in every way, and its bytes beside an undisturbed one's; JSON is printed.

``python benchmarks/torture.py --points 200 --seed 1 [TARGET ...] [--config config/smoke.yaml] [--output torture.json]``

A point is a kind of end (:data:`KINDS`, all of them before one is repeated) and a moment: while Snakemake plans, or a
random time after a random one of the next jobs has started. The study is then started again, by the ordinary command;
once it is complete, a new one begins. What was finished before a point may not be made again, and what is complete has
to verify, with the root hash of the undisturbed one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_jsonl, sha256_bytes, sha256_file, write_json
from evals.trace.commands import verify
from rlvr.study.launch import HELD_BY

REPOSITORY = Path(__file__).resolve().parents[1]
KINDS = {
    "group -9": ("group", signal.SIGKILL),
    "group TERM": ("group", signal.SIGTERM),
    "group INT": ("group", signal.SIGINT),
    "snakemake -9": ("snakemake", signal.SIGKILL),
    "snakemake TERM": ("snakemake", signal.SIGTERM),
    "snakemake INT": ("snakemake", signal.SIGINT),
    "job -9": ("job", signal.SIGKILL),
    "job TERM": ("job", signal.SIGTERM),
    "job SEGV": ("job", signal.SIGSEGV),
    "group QUIT": ("group", signal.SIGQUIT),
    "group HUP": ("group", signal.SIGHUP),
    "group ABRT": ("group", signal.SIGABRT),
    "group INT, five times fast": ("group", signal.SIGINT),
    "group stopped, then -9": ("group", signal.SIGSTOP),
    "snakemake stopped, then -9": ("snakemake", signal.SIGSTOP),
}
"""Name of a kind -> who gets the signal, and which."""
PLANNING_SHARE = 0.2
TERMINATION_SECONDS = 10.0
PATIENCE_SECONDS = 1200.0
_STUDIES_A_POINT = 3
"""The most studies a point, on average, that may be complete before it: a moment that never comes is a fault."""
_BEFORE_A_JOB = re.compile(
    r'^Traceback \(most recent call last\):\n  File "(?:<frozen |[^"\n]*/\.snakemake/scripts/).*?^KeyboardInterrupt\n',
    re.M | re.S,
)
"""The traceback of an interrupt that meets a job while Python or Snakemake begins its process: it has no log yet."""
SAME_BYTES = (
    *(
        "base/*/checkpoint/*",
        "runs/*/checkpoint/*",
        "samples/*/*/samples.jsonl.bz2",
        "problems/*/*.jsonl",
        "base/*/*.jsonl.bz2",
    ),
    *("scores/*.json", "audits/*.json", "comparisons.json", "tables/by_seed.*", "tables/audit.*", "tables/robust.*"),
    *("figures/scores.*", "figures/differences.*", "figures/profiles.*", "figures/training_curves.*"),
)
"""Files below results/ that are the same whatever happened; others hold times or are compared without them."""


@dataclass
class Point:
    """An interruption of a study, and what followed."""

    kind: str
    is_planning: bool
    jobs: list[str]  # that were running
    seconds_to_the_end: float | None = None  # of Snakemake, from the signal on
    traceback: str | None = None  # what Snakemake printed from it on


class Study:
    """A study in a directory of its own."""

    def __init__(self, directory: Path, config: Path, cores: int, targets: Sequence[str]) -> None:
        directory.mkdir(parents=True)
        self.directory, self.results = directory, directory / "results"
        options = ["--directory", str(directory), "--configfile", str(config), "--cores", str(cores)]
        self._command = [sys.executable, "-m", "rlvr.study.launch", "--", *targets, *options]

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, or go on with it, in a process group of its own."""
        (self.directory / HELD_BY / "owner").unlink(missing_ok=True)  # it has ended
        with open(self.directory / "output.log", "wb") as output:
            return subprocess.Popen(self._command, cwd=REPOSITORY, stdout=output, stderr=output, start_new_session=True)

    def output(self) -> str:
        return (self.directory / "output.log").read_text(errors="replace")

    def finish(self) -> None:
        """Run it to its end."""
        if self.start().wait(timeout=PATIENCE_SECONDS) != 0:
            sys.exit(f"the study failed\n{self.output()}")

    def outcome(self) -> dict[str, str]:
        """Path below results/ -> hash of what must not depend on what happened on the way."""
        hashes = {}
        for path in sorted({path for pattern in SAME_BYTES for path in self.results.glob(pattern)}):
            if not path.name.endswith("manifest.json"):
                hashes[path.relative_to(self.results).as_posix()] = sha256_file(path)
        for path in sorted(self.results.glob("grades/*/*/grades.jsonl.bz2")):
            rows = [{key: value for key, value in row.items() if key != "seconds"} for row in read_jsonl(path)]
            hashes[path.relative_to(self.results).as_posix()] = fingerprint(rows)
        for path in sorted(self.results.glob("*/*/metrics.parquet")):
            frame = pd.read_parquet(path)
            kept = [name for name in map(str, frame) if not name.startswith("seconds") and name != "peak_memory_bytes"]
            hashes[path.relative_to(self.results).as_posix()] = sha256_bytes(frame[kept].to_json().encode())
        return hashes

    def finished(self) -> dict[Path, int]:
        """Every manifest of a job that Snakemake took note of, with the moment it was written, in nanoseconds.

        Taking its mark of an unfinished output away is the last thing that Snakemake does with a job: however slow the
        machine, the mark tells whether the job was over when everything was ended.
        """
        marks = (self.directory / ".snakemake" / "incomplete").glob("*")
        unfinished = {self.directory / urlsafe_b64decode(mark.name).decode() for mark in marks}
        manifests = self.results.rglob("manifest.json")
        # A job with more outputs than its manifest, in the manifest's directory, has a mark for each. The rollouts
        # below an unfinished run are written anew where the run goes on from a state before them.
        running = {mark.parent for mark in unfinished if mark.name == "manifest.json"}
        over = [
            path
            for path in manifests
            if running.isdisjoint(path.parents) and not any(mark.is_relative_to(path.parent) for mark in unfinished)
        ]
        # A job of samples or grades that is killed leaves benchmarks that it had done; its own manifest comes last.
        parts = {path for path in over if path.parents[2].name in ("samples", "grades")}
        over = [path for path in over if path not in parts or path.parent.with_name("manifest.json").exists()]
        return {path: path.stat().st_mtime_ns for path in over}

    def made_again(self, before: dict[Path, int]) -> list[str]:
        """Return which of the manifests in ``before`` were written anew, or are gone."""
        changed = [path for path, written in before.items() if not path.exists() or path.stat().st_mtime_ns != written]
        return [path.relative_to(self.directory.parent).as_posix() for path in changed]

    def torture(self, kind: str, chance: random.Random) -> tuple[Point, bool]:
        """Start the study and do what ``kind`` says at a random moment; also returns whether it was complete before."""
        process = self.start()
        snakemake = psutil.Process(process.pid)
        whom, number = KINDS[kind]
        is_planning = chance.random() < PLANNING_SHARE and whom in ("group", "snakemake")
        # Before the launcher's first file an interrupt meets Python's own start, which shows where it was. What an
        # earlier start left behind may still write its log.
        while not ((is_planning and number != signal.SIGINT) or (self.directory / HELD_BY / "owner").exists()):
            if process.poll() is not None:
                break
            time.sleep(0.02)
        if is_planning:
            time.sleep(chance.uniform(0.0, 4.0))
        else:
            self._wait_for_jobs(process, chance.randrange(1, 5))
            time.sleep(chance.uniform(0.0, 3.0))
        jobs = _children(snakemake)
        words = [" ".join(_words(job)[3:6])[:60] for job in jobs]
        point = Point(kind, is_planning and not jobs, words)
        targets = {"snakemake": [snakemake], "job": jobs}.get(whom, [])
        started = time.monotonic()
        if process.poll() is not None:
            if process.returncode != 0:
                sys.exit(f"the study failed\n{self.output()}")
            return point, True
        chosen = chance.choice(targets) if targets else None
        numbers = [number] * (5 if "five" in kind else 1) + [signal.SIGKILL] * ("then -9" in kind)
        for signal_number in numbers:
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if whom == "group":
                    os.killpg(process.pid, signal_number)
                elif chosen is not None:
                    chosen.send_signal(signal_number)
            time.sleep(0.2 if len(numbers) > 1 else 0)
        process.wait(timeout=PATIENCE_SECONDS)
        point.seconds_to_the_end = round(time.monotonic() - started, 2)
        log = _BEFORE_A_JOB.sub("", self.output())
        if number in (signal.SIGINT, signal.SIGTERM) and "Traceback" in log:
            point.traceback = log[log.index("Traceback") :][:4000]
        return point, False

    def _wait_for_jobs(self, process: subprocess.Popen[bytes], more: int) -> None:
        """Wait until so many jobs more have started, or the study has ended."""
        logs = self.results / "logs"
        before = {path: path.stat().st_mtime_ns for path in logs.rglob("*.log")}
        while process.poll() is None:
            now = {path: path.stat().st_mtime_ns for path in logs.rglob("*.log")}
            if len(now.items() - before.items()) >= more:
                return
            time.sleep(0.05)


def _children(process: psutil.Process) -> list[psutil.Process]:
    """The jobs of a Snakemake, without the server that they are forks of."""
    try:
        return [child for child in process.children() if "rlvr.runs.warm_start" not in _words(child)]
    except psutil.Error:
        return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _left_over(directory: Path) -> list[str]:
    """Processes that work in a directory and do not end by themselves."""
    deadline = time.monotonic() + PATIENCE_SECONDS / 10
    while (commands := _working_in(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return commands


def _working_in(directory: Path) -> list[str]:
    commands = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(directory):
                commands.append(" ".join(process.cmdline())[:200])
        except psutil.Error:
            continue
    return commands


def measure(
    points: int, seed: int, config: Path, cores: int, directory: Path, targets: Sequence[str] = ()
) -> dict[str, Any]:
    """Torture studies in ``directory`` at so many points; returns what the JSON says."""
    chance = random.Random(seed)
    reference = Study(directory / "undisturbed", config, cores, targets)
    reference.finish()
    expected, said = reference.outcome(), io.StringIO()
    with contextlib.redirect_stdout(said):
        verify(reference.results, as_json=True)
    root_hash = json.loads(said.getvalue())["root_hash"]
    done, differing, made_again, kinds, completed = list[Point](), list[str](), list[str](), list[str](), 0

    finished = dict[Path, int]()

    def compare(study: Study) -> None:
        study.finish()
        made_again.extend(study.made_again(finished))
        hashes = study.outcome()
        names = sorted(expected.keys() | hashes.keys())
        differing.extend(f"{study.directory.name}/{name}" for name in names if expected.get(name) != hashes.get(name))
        try:
            with contextlib.redirect_stdout(sys.stderr):
                verify(study.results, root_hash)
        except UserError as error:
            differing.append(str(error))
        shutil.rmtree(study.directory)

    study = Study(directory / "study-0", config, cores, targets)
    while len(done) < points:
        kinds = kinds or chance.sample(list(KINDS), len(KINDS))
        point, was_complete = study.torture(kinds[-1], chance)
        made_again.extend(study.made_again(finished))
        finished = {} if was_complete else study.finished()
        if was_complete:
            compare(study)
            completed += 1
            if completed > _STUDIES_A_POINT * points:
                sys.exit(f"{kinds[-1]}: {completed} studies were complete before it; {len(done)} points are done")
            study = Study(directory / f"study-{completed}", config, cores, targets)
            continue
        done.append(point)
        kinds.pop()
        print(f"{len(done)} of {points}: {point}", file=sys.stderr, flush=True)
    last = study.directory.resolve()
    compare(study)
    stopped = [point for point in done if point.kind in ("group TERM", "snakemake TERM")]
    slow = [point for point in stopped if (point.seconds_to_the_end or 0) > TERMINATION_SECONDS]
    return {
        "points": len(done),
        "seed": seed,
        "while_a_job_ran": sum(bool(point.jobs) for point in done),
        "studies": completed + 1,
        "files_compared": len(expected),
        "differing": differing,
        "made_again": made_again,
        "left_over": _left_over(last),
        "tracebacks": [asdict(point) for point in done if point.traceback],
        "slower_than_10_s_after_sigterm": [asdict(point) for point in slow],
        "longest_seconds_after_sigterm": max((point.seconds_to_the_end or 0 for point in stopped), default=None),
        "each": [asdict(point) for point in done],
    }


def main() -> None:
    """Print the JSON; the exit status is 1 if a byte differs, finished work was repeated or a process is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="of Snakemake; default: the whole study")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", type=Path, default=REPOSITORY / "config/smoke.yaml")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="where the studies work; default: a temporary one")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    # A shell's background processes, and theirs, ignore the first two; those of nohup the third.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary)) / "torture"
        config = options.config.resolve()
        report = measure(options.points, options.seed, config, options.cores, directory, options.targets)
    print(json.dumps(report, indent=2))
    if options.output:
        write_json(options.output, report)
    sys.exit(bool(report["differing"] or report["made_again"] or report["left_over"]))


if __name__ == "__main__":
    main()
