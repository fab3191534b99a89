"""The progress display's arithmetic: time left by what was measured, and what the looks to come may add."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_logger_plugin_rlvr import Job, Study

from evals.core.progress import Progress, Steps, read_steps


def study(planned: dict[str, int], ended: dict[str, tuple[int, float]] | None = None, cores: int = 1) -> Study:
    """A study of which ``ended`` has the number of jobs of a rule and the core-seconds of one."""
    known = Study(cores)
    known.planned.update(planned)
    for rule, (count, seconds) in (ended or {}).items():
        known.ended[rule], known.seconds[rule] = count, count * seconds
    return known


def job(rule: str, started: float, threads: int = 1, outputs: tuple[str, ...] = ()) -> Job:
    return Job(rule, f"{rule} tiny-dapo-s1", threads, started, outputs)


def test_time_left_counts_measured_seconds_not_jobs() -> None:
    (words,) = study({"train": 2, "grade": 100}, {"train": (1, 100.0), "grade": (1, 1.0)}).outlook(101.0)
    assert words == "2 of 102 jobs, about 3 min 19 s left"


def test_threads_and_cores_weigh_and_the_longest_running_job_bounds() -> None:
    known = study({"train": 3}, {"train": (1, 120.0)}, cores=4)
    assert known.outlook(60.0)[0] == "1 of 3 jobs, about 1 min 0 s left"
    known.running[1] = job("train", 60.0, threads=2)
    assert known.outlook(70.0)[0] == "1 of 3 jobs, about 55 s left"  # 50 s of two threads, and 60 s of two
    known.planned["train"] = 2
    assert known.outlook(70.0)[0] == "1 of 2 jobs, about 50 s left"


def test_a_job_that_takes_longer_than_usual_is_not_at_its_end() -> None:
    known = study({"sample": 2}, {"sample": (1, 30.0)})
    known.running[1] = job("sample", 0.0)
    assert known.outlook(840.0)[0] == "1 of 2 jobs, about 1 min 24 s left"


def test_a_running_job_tells_how_long_its_rule_takes(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text('{"step": 30, "steps": 60, "seconds_per_step": 2.0}')
    known = study({"train": 3})
    known.running[1] = job("train", 0.0, outputs=(str(tmp_path / "manifest.json"),))
    assert known.outlook(60.0)[0] == "0 of 3 jobs, about 5 min 0 s left"


# Some rules of config/smollm2.yaml with the seconds of a job; its training runs take eight times the default study's.
SECONDS = {"problems_read": 0.3, "fine_tuned_model": 280.0, "train": 460.0, "sample": 90.0, "grade": 3.0}
JOBS = {"problems_read": 8, "fine_tuned_model": 1, "train": 12, "sample": 39, "grade": 39}


def test_no_time_is_named_while_most_jobs_have_not_been_measured() -> None:
    """Nine jobs of no length were followed by "roughly 15 min left" of two hours, the time of the default study."""
    ended: dict[str, tuple[int, float]] = {}
    for rule, count in JOBS.items():
        ended[rule] = count, SECONDS[rule]
        (words,) = study(JOBS, ended, cores=2).outlook(0.0)
        assert ("left" in words) == (rule in ("sample", "grade")), words


def test_a_failed_job_is_not_waited_for() -> None:
    known = study({"train": 2}, {"train": (1, 60.0)})
    known.failed[2] = job("train", 60.0), ", exit status 1"
    assert known.outlook(61.0)[0] == "1 of 2 jobs, 1 failed, about 0 s left"


LOOK = {"seeds": 4, "planned": {"train": 40, "sample": 80}, "possible": {"train": 160, "sample": 320}}


def test_the_jobs_that_looks_may_add_are_said_with_their_time() -> None:
    """ "189 of 189, about 29 s left" stood there for fourteen minutes of training runs that a look had added."""
    known = study({"train": 40, "sample": 80}, {"train": (40, 60.0), "sample": (80, 3.0)}, cores=2)
    known.look = LOOK
    words, later = known.outlook(0.0)
    assert words == "120 of 120 jobs, about 0 s left to the look after 4 seeds"
    assert later == "then up to 120 training runs, 1 h 6 min, if nothing is certain"
    unmeasured = study({"train": 40, "sample": 80})
    unmeasured.look = LOOK
    assert unmeasured.outlook(0.0) == [
        "0 of 120 jobs to the look after 4 seeds",
        "then up to 120 training runs if nothing is certain",
    ]
    known.look = {**LOOK, "possible": LOOK["planned"]}  # the last one
    assert known.outlook(0.0) == ["120 of 120 jobs, about 0 s left to the look after 4 seeds"]


@given(
    rules=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0.0, 1e3)), min_size=1, max_size=4),
    started=st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 1e3), st.integers(1, 4)), max_size=5),
    cores=st.integers(1, 8),
)
def test_any_state_gives_words(
    rules: list[tuple[int, int, float]], started: list[tuple[int, float, int]], cores: int
) -> None:
    """Also where Snakemake has run more jobs than were planned."""
    planned = {str(number): count for number, (count, _, _) in enumerate(rules)}
    ended = {str(number): (count, seconds) for number, (_, count, seconds) in enumerate(rules) if count}
    known = study(planned, ended, cores)
    known.running = {number: job(str(rule), begun, threads) for number, (rule, begun, threads) in enumerate(started)}
    (words,) = known.outlook(1e3)
    assert " of " in words and "-" not in words and "nan" not in words


def read(directory: Path, content: str, since: float = 0.0) -> Steps | None:
    (directory / "progress.json").write_text(content)
    return read_steps([str(directory / "manifest.json"), str(directory / "metrics.parquet")], since)


def test_the_account_of_a_job_is_read_beside_its_outputs(tmp_path: Path) -> None:
    account: dict[str, Any] = {"step": 12, "steps": 60, "seconds_per_step": 1.5, "reward_mean": 0.52}
    assert read(tmp_path, json.dumps(account)) == Steps("step 12 of 60, reward 0.52", 0.2, 72.0)
    account |= {"unit": "response", "parts_left": 1}
    assert read(tmp_path, json.dumps(account)) == Steps("response 12 of 60, reward 0.52", 0.2, 162.0)
    assert read_steps([], 0.0) is None


def test_responses_that_run_are_told_and_count_as_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress(tmp_path, "mine", steps=80, unit="sample")
    now[0] = 60.0
    progress.report(0, "16 running, 640 of at most 4096 tokens", running=16)
    outputs = [str(tmp_path / "manifest.json")]
    steps = read_steps(outputs, 0.0)
    assert steps == Steps("sample 0 of 80, 16 running, 640 of at most 4096 tokens", 0.0, 600.0)
    now[0] = 155.0
    progress.report(15, "1 running, 1280 of at most 4096 tokens", running=1)
    assert (steps := read_steps(outputs, 0.0)) and (steps.part, steps.seconds_left) == (15 / 80, 650.0)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"step": 1}', '{"step": 7, "steps": 6}', '{"step": -1, "steps": 6}',
     '{"step": 0, "steps": 0}', '{"step": "x", "steps": 6}', '{"step": 1, "steps": 6, "reward_mean": "x"}'],
)  # fmt: skip
def test_a_senseless_account_is_no_news(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content) is None


def test_the_account_of_an_earlier_attempt_is_not_believed(tmp_path: Path) -> None:
    content = '{"step": 50, "steps": 60}'
    assert read(tmp_path, content) is not None
    os.utime(tmp_path / "progress.json", (1000.0, 1000.0))
    outputs = [str(tmp_path / "manifest.json")]
    assert read_steps(outputs, 2000.0) is None and read_steps(outputs, 1000.5) is not None
