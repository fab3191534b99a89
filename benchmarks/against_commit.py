"""Seconds of the default study of commit 5f22d6df and of the same study today, config/sharpening.yaml, by kind of job.

    python benchmarks/against_commit.py --policies 4 --out pair      (some ten minutes of two idle cores)
    python benchmarks/against_commit.py --policies 1 --steps 4 --base-steps 50 --out pair      (a trial)

Both commits are cloned below ``--out`` and run with the packages of this environment by turns: the base model, then two
policies at a time, trained, sampled and graded; who comes first changes every time. Seconds are those of a call of
Snakemake, less those of a call that has nothing to do; processor seconds those of all its processes, orphans included.
The jobs of a kind have wall seconds alone. The script prints JSON: for each kind both sides' seconds and their ratio,
and the megabytes of the policies' files.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
METHODS = ("dapo", "grpo_no_kl", "sapo", "gspo", "delta", "dapo_forking_tokens", "dapo_query_preserved")
BASE = ["results/base/tiny/manifest.json"]
_SUBREAPER = 36
"""Linux's PR_SET_CHILD_SUBREAPER: orphans of our processes become ours, so that their seconds are counted."""


@dataclass
class Side:
    """One of the two commits."""

    commit: str
    options: list[str]  # of Snakemake
    changes: list[str]  # of the study, as of `snakemake --config`
    grades: tuple[str, ...]  # the last files of a policy, below the directory of its grades
    corpus: str
    directory: Path
    cores: int
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)  # kind -> wall and, of calls, processor seconds

    def clone(self) -> None:
        """Clone the repository, unless that is done."""
        if not self.directory.is_dir():
            clone = ["git", "clone", "--quiet", "--no-checkout", str(REPOSITORY), str(self.directory)]
            subprocess.run(clone, check=True)
            subprocess.run(["git", "-C", str(self.directory), "checkout", "--quiet", self.commit], check=True)

    def make(self, targets: list[str]) -> dict[str, float]:
        """Let Snakemake make the targets; returns wall and processor seconds."""
        command = [
            sys.executable,
            "-m",
            "rlvr.study.launch",
            "--",
            *targets,
            "--cores",
            str(self.cores),
            "--quiet",
            "all",
        ]
        command += [*self.options, *(["--config", *self.changes] if self.changes else [])]
        path = f"{self.directory}:{self.directory}/workflow/progress"
        before, started = _processor_seconds(), time.monotonic()
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, cwd=self.directory, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{self.commit}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        wall = time.monotonic() - started
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        return {"wall": wall, "processor": _processor_seconds() - before}

    def measure(self, kind: str, targets: list[str]) -> None:
        """Make the targets and add their seconds to those of their kind."""
        taken, nothing, total = self.make(targets), self.seconds.get("nothing to do", {}), self.seconds.get(kind, {})
        self.seconds[kind] = {name: total.get(name, 0.0) + now - nothing.get(name, 0.0) for name, now in taken.items()}
        print(
            f"{self.commit}: {kind}, {', '.join(f'{now:.1f} s of {name}' for name, now in taken.items())}",
            file=sys.stderr,
        )

    def measure_jobs(self) -> None:
        """Add up the wall seconds of the policies' jobs by their kind, as Snakemake measured them."""
        for kind in ("train", "sample", "grade"):
            files = (self.directory / "results/costs" / kind).glob("*.tsv")
            self.seconds[kind] = {"wall": sum(float(file.read_text().splitlines()[-1].split()[0]) for file in files)}

    def megabytes(self) -> float:
        """The size of the files of the policies."""
        directories = [self.directory / "results" / kind for kind in ("runs", "samples", "grades")]
        files = [file.stat() for directory in directories for file in directory.rglob("*") if file.is_file()]
        return round(sum({file.st_ino: file.st_size for file in files}.values()) / 1e6, 1)  # of links the file once


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run both sides and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="5f22d6df")
    parser.add_argument("--after", default="HEAD")
    parser.add_argument("--policies", type=int, default=4, help=f"1 to {len(METHODS)}")
    parser.add_argument("--steps", type=int, help="of a training, in place of the study's")
    parser.add_argument("--base-steps", type=int, help="of the base model, in place of the study's")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="an empty directory, or that of a run that was cut off")
    chosen = parser.parse_args()
    changes = [f"training={{steps: {chosen.steps}}}"] if chosen.steps else []
    changes += [f"models={{tiny: {{training: {{steps: {chosen.base_steps}}}}}}}"] if chosen.base_steps else []
    today = ["--configfile", "config/sharpening.yaml"]
    of_benchmarks = tuple(f"worded_{operands}/manifest.json" for operands in range(3, 7))
    corpus = "results/base/tiny/corpus.jsonl"
    place = chosen.out.resolve()
    sides = [
        Side(chosen.before, [], changes, of_benchmarks, corpus, place / "before", chosen.cores),
        Side(chosen.after, today, changes, ("manifest.json",), f"{corpus}.bz2", place / "after", chosen.cores),
    ]
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    for side in sides:
        side.clone()
        side.make(["results/problems/train/manifest.json", side.corpus])  # in no kind
        side.measure("nothing to do", [side.corpus])
    methods = METHODS[: chosen.policies]
    pairs = [methods[start : start + 2] for start in range(0, len(methods), 2)]
    for number, pair in enumerate([(), *pairs]):
        for side in sides if number % 2 == 0 else sides[::-1]:
            grades = [f"results/grades/tiny-{method}-s1/{file}" for method in pair for file in side.grades]
            side.measure("policies" if pair else "base", grades or BASE)
    for side in sides:
        side.measure_jobs()
    before, after = sides
    result = {
        kind: {
            name: {"before": round(seconds, 1), "after": round(now, 1), "ratio": round(now / max(seconds, 0.1), 2)}
            for name, seconds in before.seconds[kind].items()
            for now in [after.seconds[kind][name]]
        }
        for kind in before.seconds
    }
    print(json.dumps({"sides": [before.commit, after.commit], **result, "megabytes": [s.megabytes() for s in sides]}))


if __name__ == "__main__":
    main()
