"""The progress display's arithmetic and words."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from snakemake_logger_plugin_rlvr import wording
from snakemake_logger_plugin_rlvr.live import LiveDisplay
from snakemake_logger_plugin_rlvr.plain import PlainDisplay
from snakemake_logger_plugin_rlvr.study import (
    FailedJob,
    Outlook,
    RunningJob,
    StepProgress,
    Study,
    earlier_seconds,
    read_step_progress,
)


def job(job_id: int, rule: str, started: float, threads: int = 1, name: str = "tiny-dapo-s1") -> RunningJob:
    return RunningJob(job_id, rule, (name,), threads, started)


def failed(rule: str) -> FailedJob:
    return FailedJob(rule, rule, 1.0, ())


def test_time_left_counts_measured_seconds_not_jobs() -> None:
    study = Study(cores=1, planned={"train": 2, "grade": 100})
    study.start(job(1, "train", 0.0))
    study.finish(1, 100.0)
    study.start(job(2, "grade", 100.0))
    study.finish(2, 101.0)
    outlook = study.outlook(101.0, {})
    assert outlook.seconds_left == pytest.approx(100.0 + 99 * 1.0)
    assert outlook.fraction == pytest.approx(101.0 / (101.0 + 199.0))


def test_threads_and_cores_weigh() -> None:
    study = Study(cores=4, planned={"train": 3})
    study.start(job(1, "train", 0.0, threads=2))
    study.finish(1, 60.0)
    outlook = study.outlook(60.0, {})
    assert outlook.seconds_left == pytest.approx(2 * 60.0 * 2 / 4)
    study.start(job(2, "train", 60.0, threads=2))
    outlook = study.outlook(70.0, {})
    assert outlook.seconds_left == pytest.approx((50.0 + 60.0) * 2 / 4)
    assert outlook.fraction == pytest.approx(70.0 / 180.0)


def test_the_longest_running_job_bounds_the_time_left() -> None:
    study = Study(cores=8, planned={"train": 1})
    study.start(job(1, "train", 0.0))
    outlook = study.outlook(10.0, {1: StepProgress(step=10, steps=60, seconds_per_step=2.0)})
    assert outlook.seconds_left == pytest.approx(50 * 2.0)
    assert outlook.fraction == pytest.approx(10.0 / 110.0)


def test_a_running_job_tells_how_long_its_rule_takes() -> None:
    study = Study(cores=1, planned={"train": 3})
    study.start(job(1, "train", 0.0))
    outlook = study.outlook(30.0, {1: StepProgress(step=30, steps=60)})
    assert outlook.seconds_left == pytest.approx(30.0 + 2 * 60.0)


# Some rules of config/smollm2.yaml with the seconds of a job; its trainings take eight times the default study's.
SECONDS = {"problems_read": 0.3, "fine_tuned_model": 280, "train": 460, "sample": 90, "grade": 3, "figure": 30}
JOBS = {"problems_read": 8, "fine_tuned_model": 1, "train": 12, "sample": 39, "grade": 39, "figure": 1}


def test_no_time_is_named_while_most_of_the_work_has_not_been_measured() -> None:
    """Nine jobs of no length were followed by "roughly 15 min left" of two hours, the time of the default study."""
    study, now, number = Study(cores=2, planned=JOBS), 0.0, 0
    whole = sum(JOBS[rule] * seconds for rule, seconds in SECONDS.items())
    for rule in JOBS:
        for _ in range(JOBS[rule]):
            study.start(job(number, rule, now))
            now += SECONDS[rule]
            study.finish(number, now)
            number += 1
            outlook = study.outlook(now, {})
            if rule in ("problems_read", "fine_tuned_model", "train"):
                assert wording.time_left(outlook) == ""
            else:
                assert outlook.seconds_left == pytest.approx((whole - now) / 2, abs=0.15 * whole / 2)
    assert wording.time_left(outlook) == "about 0 s left"


def test_what_an_earlier_run_measured_is_known() -> None:
    """A study that goes on: its trainings are known before the first of them has ended."""
    study = Study(cores=1, planned={"train": 6, "sample": 2}, earlier={"train": 60.0})
    outlook = study.outlook(0.0, {})
    assert outlook.seconds_left == pytest.approx(6 * 60 + 2 * 3)
    assert outlook.guessed == 2 / 8  # jobs of which nothing is known
    study.start(job(1, "train", 0.0))
    study.finish(1, 30.0)  # half as long as then
    assert study.outlook(30.0, {}).seconds_left == pytest.approx(5 * 30 + 2 * 3)


def test_the_bar_is_not_full_while_most_of_the_work_has_not_been_measured() -> None:
    """Nine short jobs of 58 were 100 %."""
    study = Study(cores=2, planned={"problems": 9, "base_model": 1, "train": 24, "sample": 12, "grade": 12})
    for number in range(9):
        study.start(job(number, "problems", 0.0))
        study.finish(number, 1.0)
    outlook = study.outlook(9.0, {})
    assert outlook.fraction < 0.1 and wording.time_left(outlook) == ""


def test_the_costs_of_an_earlier_run_are_what_its_jobs_usually_take(tmp_path: Path) -> None:
    for name, text in {
        "s1": "s\th:m:s\n40.0\t0:00:40\n",
        "s2": "s\th:m:s\n60.0\t0:01:00\n",
        "s3": "",
        "s4": "x\n1\n",
    }.items():
        path = tmp_path / f"train/tiny-dapo-{name}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert earlier_seconds(tmp_path) == {"train": 50.0}
    assert earlier_seconds(tmp_path / "none") == {}


def test_a_failed_job_is_not_waited_for_and_a_retried_one_is() -> None:
    study = Study(cores=1, planned={"train": 2})
    study.start(job(1, "train", 0.0))
    study.finish(1, 60.0)
    study.start(job(2, "train", 60.0))
    study.fail(2, failed("train"))
    outlook = study.outlook(61.0, {})
    assert outlook.seconds_left == 0.0
    study.start(job(2, "train", 62.0))
    assert study.failed == {}
    outlook = study.outlook(62.0, {})
    assert outlook.seconds_left == pytest.approx(60.0)


@given(
    events=st.lists(st.tuples(st.sampled_from("sfx"), st.integers(0, 5), st.floats(0.0, 50.0)), max_size=30),
    steps=st.integers(0, 60),
    cores=st.integers(1, 8),
)
def test_any_order_of_events_gives_a_sane_outlook(events: list[tuple[str, int, float]], steps: int, cores: int) -> None:
    study = Study(cores=cores, planned={"train": 3, "grade": 3})
    now = 0.0
    for kind, job_id, seconds in events:
        now += seconds
        rule = "train" if job_id < 3 else "grade"
        if kind == "s":
            study.start(job(job_id, rule, now, threads=1 + job_id % 3))
        elif kind == "f":
            study.finish(job_id, now)
        else:
            study.fail(job_id, failed(rule))
    outlook = study.outlook(now, dict.fromkeys(study.running, StepProgress(steps, 60, 1.0)))
    assert 0.0 <= outlook.fraction <= 1.0
    assert 0.0 <= outlook.guessed <= 1.0
    assert 0.0 <= outlook.seconds_left < 1e5


def test_progress_is_read_beside_the_outputs(tmp_path: Path) -> None:
    account = {"step": 12, "steps": 60, "seconds_per_step": 1.1, "reward_mean": 0.52}
    (tmp_path / "progress.json").write_text(json.dumps(account))
    running = RunningJob(1, "train", (), 1, 0.0, outputs=(str(tmp_path / "manifest.json"),))
    assert running.read_progress() == StepProgress(12, 60, 1.1, 0.52)


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"step": 1}', '{"step": 7, "steps": 6}', '{"step": -1, "steps": 6}',
        '{"step": 0, "steps": 0}', '{"step": "1", "steps": 6}',
        '{"step": 1.5, "steps": 6}', '{"step": true, "steps": 6}',
    ],
)  # fmt: skip
def test_a_senseless_account_is_no_news(tmp_path: Path, content: str) -> None:
    (tmp_path / "progress.json").write_text(content)
    assert read_step_progress(tmp_path / "progress.json", since=0.0) is None


def test_senseless_measures_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text('{"step": 1, "steps": 6, "seconds_per_step": -1, "reward_mean": NaN}')
    assert read_step_progress(path, since=0.0) == StepProgress(1, 6, None, None)


def test_the_account_of_an_earlier_attempt_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text('{"step": 50, "steps": 60}')
    os.utime(path, (1000.0, 1000.0))
    assert read_step_progress(path, since=2000.0) is None
    assert read_step_progress(path, since=1000.5) is not None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (80, "1 min 20 s"), (1020, "17 min"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


def test_words_are_less_sure_while_much_is_unmeasured() -> None:
    assert wording.time_left(Outlook(0.5, 30.0, guessed=0.05)) == "about 30 s left"
    assert wording.time_left(Outlook(0.5, 30.0, guessed=0.3)) == "roughly 30 s left"
    assert wording.time_left(Outlook(0.5, 30.0, guessed=0.6)) == ""


def test_a_failure_names_the_log_and_its_last_line_without_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n\x1b[31merror: the disk is full\x1b[0m\n\n")
    job = FailedJob("train", "train tiny-dapo-s1", 12.0, (str(log),), "python -m x", "exit status 2")
    assert wording.failure(job, tmp_path.parent) == [
        "failed: train tiny-dapo-s1 after 12 s, exit status 2",
        f"  log: {tmp_path.name}/train.log",
        "  [31merror: the disk is full[0m",
    ]
    assert wording.failure(FailedJob("all", "all", 1.0, (), "false", ""), tmp_path) == [
        "failed: all after 1 s",
        "  command: false",
    ]


def test_results_are_named_as_seen_from_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smoke" / "results" / "tables").mkdir(parents=True)
    for name in ("report.html", "tables/main.md", "mlflow.db"):
        (tmp_path / "smoke" / "results" / name).touch()
    monkeypatch.chdir(tmp_path / "smoke")
    assert wording.results(tmp_path) == [
        "  report: smoke/results/report.html",
        "  table: smoke/results/tables/main.md",
        f"  MLflow: {Path(sys.executable).parent}/rlvr-bench ui --results smoke/results",
    ]
    assert wording.results(tmp_path / "smoke")[-1] == "  MLflow: make ui"


def test_the_live_display_shows_the_study_and_its_jobs(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text('{"step": 30, "steps": 60, "seconds_per_step": 2.0, "reward_mean": 0.5}')
    study = Study(cores=2, planned={"train": 24, "grade": 300})
    study.start(RunningJob(1, "train", ("tiny-dapo-s1",), 1, 0.0, outputs=(str(tmp_path / "manifest.json"),)))
    for job_id in range(2, 20):
        study.start(job(job_id, "grade", 55.0, name=f"g{job_id}"))
    screen = Console(file=io.StringIO(), width=140, force_terminal=False)
    screen.print(LiveDisplay(io.StringIO(), study, no_color=True).render(60.0))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert "0 of 324 jobs" in shown and " left" in shown
    assert "train tiny-dapo-s1" in shown and "step 30 of 60, reward 0.50" in shown and "1 min, 1 min left" in shown
    assert "grade g2" in shown and "and 7 more" in shown and "grade g19" not in shown


def test_a_log_gets_one_line_about_all_that_count_their_steps(tmp_path: Path) -> None:
    study = Study(planned={"train": 2})
    for number, step in enumerate((5, 7)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "progress.json").write_text(json.dumps({"step": step, "steps": 60}))
        outputs = (str(tmp_path / str(number) / "manifest.json"),)
        study.start(RunningJob(number, "train", (f"s{number}",), 1, 0.0, outputs=outputs))
    stream = io.StringIO()
    PlainDisplay(stream, study).report()
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("running: train s0 step 5 of 60; train s1 step 7 of 60")


def test_trainings_whose_contrast_alone_changed_keep_their_policies() -> None:
    before, now = (
        "'resolved.contrast.reference_method: \"dapo\"'",
        "'resolved.contrast.reference_method: \"grpo\"', 'job'",
    )
    _, kept = wording.changes({("train", before, now): 112})
    assert kept.startswith("  train (112 jobs, the policies keep their bytes: of contrast alone): ")
    _, changed = wording.changes({("train", before, f"{now}, 'resolved.training.steps: 3'"): 1})
    assert changed.startswith("  train (1 job): ")
