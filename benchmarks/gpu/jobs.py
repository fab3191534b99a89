"""Carry out jobs of a study on one machine without Snakemake, several at a time on one GPU, for a card that is lent.

    rlvr-bench plan --config STUDY.yaml                     # where Snakemake is: writes results/jobs
    python benchmarks/gpu/jobs.py grades/smollm2-base grades/smollm2-dapo-s1 --at-once 8 --seconds 450

Names are those of files in results/jobs. Each job starts when what it reads is there, those named first come first, and
what is made already is left alone. At the end of ``--seconds`` the jobs that still run are told to save and end; the
same command goes on with them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rlvr.stages.stage import Stage

JOBS = Path("results/jobs")


class Job:
    """One job: not started, running, or ended."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name, self.stage = name, stage
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0

    @property
    def is_made(self) -> bool:
        """Tell whether all of its outputs are there."""
        return all(Path(path).exists() for path in self.stage.paths())

    @property
    def may_start(self) -> bool:
        """Tell whether it has not run, and all that it reads is there."""
        return self.process is None and not self.is_made and all(Path(path).exists() for path in self.stage.inputs())

    @property
    def runs(self) -> bool:
        """Tell whether its process lives."""
        return self.process is not None and self.process.poll() is None

    def start(self, scratch: str) -> None:
        """Start its command; its locks of the GPU lie alone in ``scratch``, so that jobs share the card."""
        log = Path("results/logs") / f"{self.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "TMPDIR": tempfile.mkdtemp(dir=scratch)}
        words = [sys.executable, "-m", "rlvr", "stage", str(JOBS / f"{self.name}.json")]
        with log.open("w") as out:
            self.process = subprocess.Popen(words, stdout=out, stderr=out, env=environment, start_new_session=True)
        self.started = time.monotonic()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its children."""
        if self.runs and self.process is not None:
            os.killpg(self.process.pid, number)


def needed(names: list[str]) -> list[Job]:
    """The named jobs and those whose outputs they read, in the order in which they are wanted."""
    stages = {path.relative_to(JOBS).with_suffix("").as_posix(): path for path in JOBS.rglob("*.json")}
    if unknown := [name for name in names if name not in stages]:
        sys.exit(f"error: {JOBS}: no job {', '.join(unknown)}")
    read: dict[str, Stage] = {}
    by_output: dict[str, str] = {}
    for name, path in stages.items():
        stage, _ = Stage.read(path)
        read[name] = stage
        by_output |= dict.fromkeys(stage.paths(), name)
    order: dict[str, Job] = {}

    def add(name: str) -> None:
        for path in read[name].inputs():
            if path in by_output and by_output[path] not in order:
                add(by_output[path])
        order.setdefault(name, Job(name, read[name]))

    for name in names:
        add(name)
    return list(order.values())


def main() -> None:
    """Run the jobs, and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="files in results/jobs without .json, the most wanted first")
    parser.add_argument("--at-once", type=int, default=4, help="jobs that run at the same time")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which all are ended")
    chosen = parser.parse_args()
    jobs = needed(chosen.names)
    with tempfile.TemporaryDirectory() as scratch:
        carry_out(jobs, chosen.at_once, chosen.seconds, scratch)
    left = [job.name for job in jobs if not job.is_made]
    print(json.dumps({"made": len(jobs) - len(left), "not_made": left}))
    raise SystemExit(1 if left else 0)


def carry_out(jobs: list[Job], at_once: int, seconds: float, scratch: str) -> None:
    """Run jobs, the first ones first, until all have ended or the seconds are over."""
    began = time.monotonic()
    reported: set[str] = set()
    while True:
        spent = time.monotonic() - began
        for job in jobs:
            if job.process is not None and not job.runs and job.name not in reported:
                reported.add(job.name)
                took = round(time.monotonic() - job.started, 1)
                line = {"job": job.name, "code": job.process.poll(), "at": round(spent), "seconds": took}
                print(json.dumps(line), flush=True)
        running = [job for job in jobs if job.runs]
        ready = [job for job in jobs if job.may_start]
        if ready and len(running) < at_once and spent < seconds:
            ready[0].start(scratch)
            continue
        if not running:
            break
        if spent > seconds:
            for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
                for job in running:
                    job.signal(number)
                until = time.monotonic() + patience
                while any(job.runs for job in running) and time.monotonic() < until:
                    time.sleep(0.2)
            break
        time.sleep(0.5)


if __name__ == "__main__":
    main()
