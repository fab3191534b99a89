"""Runs that the real tools wrote, and lines and bytes that none did.

TRL 1.16.0 wrote ``*/trainer_state.json``: GRPOTrainer, 12 steps of a Llama of two layers, loss_type grpo and dapo,
seeds 1 and 2. wandb 0.31.0 (``WANDB_MODE=offline``, run.log), torch's SummaryWriter (add_scalar) and MLflow
(log_metrics into a directory) wrote what TRL logged for grpo-1. verl 0.9.1 wrote ``verl.jsonl`` and ``verl.console``,
its console, in ``tests/engines/test_verl_training.py`` with ``trainer.logger=["console","file"]``. ``wandb/`` has runs
of wandb 0.31.0: one that was resumed at step 5 of 8, one with a step of its own by ``define_metric`` and four entries a
step, and one with keys within keys and a NaN.
"""

import contextlib
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evals.core.errors import UserError
from rlvr.cli import main
from rlvr_curves.compare import Fit, Methods, methods_of
from rlvr_curves.names import NAMES, SHOWN
from rlvr_curves.page import write_curves
from rlvr_curves.runs import Run, read_runs
from rlvr_curves.sources import FILES
from tests.printed import printed_faults

RECORDED = Path(__file__).with_name("recorded")
WANDB = RECORDED / "wandb"
GRPO = [f"grpo={RECORDED}/grpo-{seed}" for seed in (1, 2)]
DAPO = [f"dapo={RECORDED}/dapo-{seed}" for seed in (1, 2)]
TIMES = "seconds: the trainer's own steps"
CLOCK = "seconds: wall clock since the first entry"
TOKENS = "tokens: prompts and responses"
INSTALLED = packages_distributions()
by_wandb = pytest.mark.skipif("wandb" not in INSTALLED, reason="wandb is not installed")
by_tensorboard = pytest.mark.skipif("tensorboard" not in INSTALLED, reason="tensorboard is not installed")


def run_of(*words: object, names: str = "") -> Run:
    """The one run of some words."""
    (run,) = read_runs([str(word) for word in words], names)
    return run


def refused(*words: object) -> str:
    with pytest.raises(UserError) as error:
        read_runs([str(word) for word in words])
    return str(error.value)


def write_lines(path: Path, rewards: Sequence[float], first: int = 1, every: int = 1, **others: float) -> Path:
    rows = [{"step": first + every * i, "data": {"reward": float(x), **others}} for i, x in enumerate(rewards)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_state(path: Path, rewards: Sequence[float], every: int = 1, **others: float) -> Path:
    entries = [{"step": every * (i + 1), "reward": float(x), **others} for i, x in enumerate(rewards)]
    path.mkdir(parents=True, exist_ok=True)
    (path / "trainer_state.json").write_text(json.dumps({"log_history": entries}))
    return path


def write_events(directory: Path, rewards: dict[int, float], name: str = "reward", wall: float = 1.7e9) -> None:
    """Write an event file with tensorboard's own writer: the file's version is of now, the scalars of ``wall``."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    before = set(directory.glob("*"))
    writer = EventFileWriter(str(directory))
    for step, reward in rewards.items():
        summary = Summary(value=[Summary.Value(tag=name, simple_value=reward)])
        writer.add_event(Event(step=step, wall_time=wall + 60 * step, summary=summary))
    writer.close()
    (file,) = set(directory.glob("*")) - before
    file.rename(directory / f"events.out.tfevents.{1_700_000_000 + len(before)}.host.{len(before)}")


# Reading: the same run by each of its files


def test_a_state_of_trl_is_read_by_its_names() -> None:
    run, history = run_of(GRPO[0]), json.loads((RECORDED / "grpo-1/trainer_state.json").read_text())["log_history"]
    assert run.method == "grpo" and list(run.metrics["steps"]) == list(range(1, 13)) and run.steps == 12
    assert list(run.metrics["reward"]) == [entry["reward"] for entry in history if "reward" in entry]
    assert list(run.metrics[TOKENS]) == [entry["num_tokens"] for entry in history if "reward" in entry]
    assert run.names["clip_fraction"][1] == "clip_ratio/region_mean" and "learning_rate" in run.unmapped
    assert run.metrics[TIMES].is_monotonic_increasing


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("run-tiny.wandb", marks=by_wandb),
        pytest.param("events.out.tfevents.host", marks=by_tensorboard),
        "metrics",
    ],
)
def test_trackers_of_the_same_run_say_the_same(name: str) -> None:
    state, run = run_of(GRPO[0]).metrics, run_of(RECORDED / name)
    for column in ("steps", "reward", "length", TOKENS):
        np.testing.assert_allclose(run.metrics[column], state[column], rtol=1e-6)
    assert run.metrics[CLOCK].is_monotonic_increasing and run.metrics[CLOCK][0] >= 0
    with pytest.raises(UserError, match="has the rewards of"):
        read_runs([GRPO[0], f"grpo={RECORDED / name}"])


def test_verls_file_logger_and_console_say_the_same() -> None:
    by_file, by_console = (run_of(RECORDED / name).metrics for name in ("verl.jsonl", "verl.console"))
    assert list(by_file[TOKENS]) == [1041, 2057] and by_file["reward"][0] == 0.140625
    pd.testing.assert_frame_equal(by_console, by_file[:1], check_like=True)


def test_verls_console_is_read_among_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(
        "INFO started\n(TaskRunner pid=7) step:0 - val-core/acc:0.1\n"
        "(TaskRunner pid=7) step:1 - critic/score/mean:0.25 - actor/entropy:np.float64(1.5) - "
        "perf/total_num_tokens:80\n"
        "step:2 - critic/score/mean:nan - actor/entropy:1e-05 - perf/total_num_tokens:70\n"
        "step:3 - critic/score/mean:0.5 - perf/total_num_tokens:90\n"
    )
    run = run_of(path)
    assert list(run.metrics["steps"]) == [1, 3] and list(run.metrics[TOKENS]) == [80, 240] and run.lost == 1
    assert run.metrics["entropy"][0] == 1.5 and run.names["reward"][1] == "critic/score/mean"


@by_wandb
def test_the_step_of_wandb_is_the_trainers_where_there_is_one() -> None:
    defined = run_of(WANDB / "offline-run-20261128_130212-defined")
    assert list(defined.metrics["steps"]) == list(range(12)) and defined.steps == 12
    assert defined.names["steps"][1] == "iteration" and defined.names["reward"][1] == "rollout/raw_reward"
    np.testing.assert_allclose(defined.metrics["reward"], 0.2015 + 0.01 * np.arange(12))  # the mean of four
    nested = run_of(WANDB / "offline-run-20261128_130213-nested")
    assert nested.names["steps"][1] == "trainer/global_step" and nested.names["reward"][1] == "train.reward"
    assert nested.lost == 1 and len(nested.metrics) == 11
    resumed = run_of(*(f"a={part}" for part in WANDB.glob("*-resumed")))
    assert resumed.names["steps"][1] == "_step"


@by_wandb
@pytest.mark.parametrize("order", [("reward", "entropy"), ("entropy", "reward")])
def test_without_a_step_the_rewards_of_wandb_are_counted_not_its_calls(order: Sequence[str], tmp_path: Path) -> None:
    code = """if True:
        import os, sys, wandb
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        with wandb.init(project="p", dir=sys.argv[1]) as run:
            for step in range(12):
                for name in sys.argv[2:]:
                    run.log({name: step / 10, "iteration": 5 * step})
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path), *order], check=True)
    run = run_of(tmp_path)
    assert list(run.metrics["steps"]) == list(range(12)) and run.steps == 12 and run.names["steps"][1] == ""
    assert list(run.metrics["reward"]) == list(run.metrics["entropy"]) == [step / 10 for step in range(12)]
    assert "a step is an entry with a reward" in " ".join(write_curves([str(tmp_path)], out=tmp_path / "out"))
    assert run_of(tmp_path, names="step=iteration").steps == 60


def test_own_names_come_before_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"iteration": i, "reward": 0.1, "rewards/accuracy": 0.2 + 0.01 * i} for i in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_of(path, names="reward=rewards/accuracy,step=iteration")
    assert list(run.metrics["steps"]) == list(range(5)) and run.metrics["reward"][4] == pytest.approx(0.24)
    counted = [{"_step": number, **row} for number, row in enumerate([{"loss": 1.0}, *rows, {"kl": 0.5}])]
    path.write_text("".join(json.dumps(row) + "\n" for row in counted))
    run = run_of(path, names="step=iteration")  # an entry without it is of the step before, if there is one
    assert list(run.metrics["steps"]) == list(range(5)) and run.metrics["kl"].iloc[-1] == 0.5
    for names, words in (("reward=nothing", "is in no run"), ("advantage=x", "accepted: step=NAME, reward=NAME")):
        with pytest.raises(UserError, match=words):
            run_of(path, names=f"step=iteration,{names}")


# What is one run


def test_a_directory_of_several_runs_is_refused_and_a_pattern_takes_them_as_seeds(tmp_path: Path) -> None:
    for name, shift in (("a1", 0.0), ("a2", 0.01), ("b1", 0.02)):
        write_state(tmp_path / name, 0.1 + shift + 0.01 * np.arange(4))
        write_state(tmp_path / name / "checkpoint-2", 0.1 + shift + 0.01 * np.arange(2))
    assert "holds 3 runs, a1, a2, b1" in refused(f"a={tmp_path}")
    shutil.rmtree(tmp_path / "b1")  # the pattern that it names takes the runs, and nothing that lies beside them
    (tmp_path / "notes.txt").write_text("no run")
    assert f"METHOD='{tmp_path}/a*'" in refused(f"a={tmp_path}")
    (tmp_path / "a.txt").write_text("no run")
    assert "METHOD=RUN each is a seed" in refused(f"a={tmp_path}")
    (tmp_path / "a.txt").unlink()
    nested = tmp_path / "[g]"  # as directories of wandb below a directory for each run
    for number, name in enumerate(("x 1", "x 2")):
        write_lines(nested / name / "logs" / "run.jsonl", [0.1 * number, 0.2])
    (pattern,) = shlex.split(re.search(r"METHOD=('.*'), of which", refused(f"a={nested}"))[1])
    assert [run.path.parent.parent.name for run in read_runs([f"a={pattern}"])] == ["x 1", "x 2"]
    assert [run.path.name for run in read_runs([f"a={tmp_path}/a*"])] == ["a1", "a2"]
    assert [run.method for run in read_runs([f"{tmp_path}/a*"])] == ["a1", "a2"]
    assert len(run_of(f"a={tmp_path}/a1").metrics) == 4
    assert "no such file matches the pattern" in refused(f"a={tmp_path}/c*")


def test_the_last_checkpoint_of_a_run_is_taken(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        write_state(tmp_path / f"checkpoint-{step}", [step])
    assert list(run_of(tmp_path).metrics["reward"]) == [100]


def test_what_is_no_seed_of_its_own_is_refused(tmp_path: Path) -> None:
    rewards = 0.1 + 0.01 * np.arange(20)
    run = write_state(tmp_path / "a", rewards)
    checkpoint = write_state(run / "checkpoint-15", rewards[:15])
    copy = write_state(tmp_path / "copy", rewards)
    (tmp_path / "link").symlink_to(run)
    for other in (run, run / "trainer_state.json", checkpoint, copy, tmp_path / "link"):
        for method in ("a", "b"):
            assert "is the run of" in refused(f"a={run}", f"{method}={other}"), other
    lines = write_lines(tmp_path / "a.jsonl", rewards, entropy=1.0)
    assert "has the rewards of" in refused(f"a={run}", f"a={lines}")
    shorter = write_lines(tmp_path / "shorter.jsonl", rewards[:7])
    assert "has the rewards of" in refused(f"a={lines}", f"a={shorter}")
    rest = write_lines(tmp_path / "rest.jsonl", rewards[12:] + 0.001, first=13)
    assert "begins at step 13" in refused(f"a={run}", f"a={rest}")
    read_runs([f"a={run}", f"a={write_lines(tmp_path / 'b.jsonl', rewards + 0.001)}"])
    read_runs([f"a={write_lines(tmp_path / f'dead-{i}.jsonl', [0.0] * 9, x=i)}" for i in range(2)])


def test_the_parts_of_a_resumed_run_are_one_run_and_the_later_steps_win(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "first.log.jsonl", [0.1] * 10)
    rest = write_lines(tmp_path / "rest.jsonl", [0.2] * 10, first=6)
    run = run_of(f"a={first}+{rest}")
    assert list(run.metrics["steps"]) == list(range(1, 16)) and run.steps == 15 and len(run.files) == 2
    assert list(run.metrics["reward"]) == [0.1] * 5 + [0.2] * 10
    begun = write_lines(tmp_path / "begun.jsonl", [0.2] * 2, first=6)  # what it has not reached again is not its own
    assert list(run_of(f"a={first}+{begun}").metrics["reward"]) == [0.1] * 5 + [0.2] * 2
    dead = write_lines(tmp_path / "dead.jsonl", [], first=6)  # ended before its first reward: no step is its own
    dead.write_text('{"step": 3, "data": {"entropy": 9.0}}\n')
    assert "entropy" not in run_of(f"a={first}+{dead}").names
    measured = write_lines(tmp_path / "measured.jsonl", [0.1] * 10, entropy=1.0)  # replaced though no part has it again
    assert run_of(f"a={measured}+{rest}").metrics["entropy"].count() == 5
    with rest.open("a") as file:  # TRL's run by wandb after a restart begins with times of step 0
        file.write('{"step": 0, "data": {"entropy": 9.0}}\n')
    resumed = run_of(f"a={first}+{rest}")
    assert list(resumed.metrics["reward"]) == list(run.metrics["reward"]) and "entropy" not in resumed.names
    assert "holds two runs that begin at step 1" in refused(f"a={first}+{write_lines(tmp_path / 'c.jsonl', [0.3] * 9)}")


@by_wandb
def test_a_run_that_wandb_resumed_is_one_run_by_its_id(tmp_path: Path) -> None:
    parts = sorted(WANDB.glob("*-resumed"))
    directory = tmp_path / "wandb"
    for part in parts:
        shutil.copytree(part, directory / part.name)
        (directory / part.name / "logs").mkdir()
        (directory / part.name / "logs/debug.log").write_text("no log of a trainer\n")
    (directory / "latest-run").symlink_to(parts[-1].name)
    (directory / "debug.log").write_text("nor is this\n")
    runs = [run_of(f"a={directory}"), run_of(*(f"a={directory / part.name}" for part in reversed(parts)))]
    for run in runs:
        assert list(run.metrics["steps"]) == list(range(12)) and len(run.files) == 2
        np.testing.assert_allclose(run.metrics["reward"], 0.2 + 0.01 * np.arange(12))
    assert len(run_of(f"a={directory / 'latest-run'}").metrics) == 7
    assert "is the run of" in refused(f"a={directory / parts[0].name}", f"b={directory / parts[1].name}")
    assert "is the run of" in refused(f"a={directory / 'latest-run'}", f"a={directory}")
    assert "holds 3 runs" in refused(f"a={WANDB}")


@by_tensorboard
def test_event_files_of_a_directory_are_one_run(tmp_path: Path) -> None:
    restarted = tmp_path / "restarted"
    write_events(restarted, {step: 0.1 for step in range(30)})
    write_events(restarted, {step: 0.2 for step in range(20, 50)})
    run = run_of(f"a={restarted}")
    assert (
        list(run.metrics["steps"]) == list(range(50))
        and run.metrics["reward"].round(3).tolist() == [0.1] * 20 + [0.2] * 30
    )
    assert run.metrics[CLOCK].tolist() == [60.0 * step for step in range(50)]  # whatever the clock of the file says
    first, second = sorted(restarted.iterdir())
    assert "is the run of" in refused(f"a={first}", f"a={second}")
    dictionary = tmp_path / "dictionary"  # add_scalars, with add_hparams beside it
    write_events(dictionary, {step: 0.3 for step in range(5)}, "kl")
    write_events(dictionary / "reward_mean", {step: 0.4 for step in range(5)})
    write_events(dictionary / "1795870079.3584702", {0: 1.0})
    run = run_of(dictionary)
    assert run.names["reward"][1] == "reward/mean" and set(run.metrics["reward"].round(6)) == {0.4}
    assert set(run.metrics["kl"].round(6)) == {0.3}
    write_events(dictionary / "other", {step: 0.4 for step in range(5)})
    assert "lies below the event files of another run" in refused(dictionary)
    write_events(restarted, {step: 0.3 for step in range(5)})
    assert "holds two runs that begin at step 0" in refused(restarted)


def test_mlflows_database_is_read_run_by_run(tmp_path: Path) -> None:
    """Tables of mlflow 3.17.2, with the columns that are read."""
    database = tmp_path / "mlflow.db"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT, lifecycle_stage TEXT, start_time INT)")
    columns = "key TEXT, value FLOAT, timestamp BIGINT, run_uuid TEXT, step BIGINT, is_nan BOOLEAN"
    connection.execute(f"CREATE TABLE metrics ({columns})")
    for number, (name, stage) in enumerate((("g-1", "active"), ("g-2", "active"), ("d", "active"), ("g-3", "deleted"))):
        connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", (f"id{number}", name, stage, number))
        for step in range(1, 13):
            values = ("reward", 0.1 * number + 0.01 * step, 1000 * step, f"id{number}", step, step == 5)
            connection.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", values)
    connection.commit()
    runs = read_runs([f"g={database}/g-*", f"{database}/d"])
    assert [run.method for run in runs] == ["g", "g", "d"] and runs[0].files == [database]
    assert [run.lost for run in runs] == [1, 1, 1] and len(runs[0].metrics) == 11
    np.testing.assert_allclose(runs[1].metrics["reward"], [0.1 + 0.01 * step for step in range(1, 13) if step != 5])
    assert runs[0].metrics[CLOCK].iloc[-1] == 11
    assert "holds 3 runs, d, g-1, g-2" in refused(f"g={database}") and "has no run x" in refused(f"g={database}/x")
    assert "is the run of" in refused(f"g={database}/g-1", f"g={database}/id0")
    (tmp_path / "text.db").write_text("no database")
    assert "cannot be read as MLflow's database" in refused(f"g={tmp_path}/text.db")


def test_equals_signs_belong_to_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(Path("lr=1e-4,beta=0/run+1.jsonl"), [0.1, 0.2])
    assert run_of("grpo=lr=1e-4,beta=0/run+1.jsonl").method == "grpo"
    assert run_of("lr=1e-4,beta=0/run+1.jsonl").method == "run+1" and run_of("g=lr=*/*.jsonl").method == "g"


# Axes


def test_numbers_of_each_step_count_for_the_steps_between_entries(tmp_path: Path) -> None:
    """A trainer that logs every fifth step spends what the same trainer spends that logs every step."""
    every = run_of(write_state(tmp_path / "every", 0.01 * np.arange(60), step_time=0.5, num_tokens=9))
    fifth = run_of(write_state(tmp_path / "fifth", 0.01 * np.arange(12), every=5, step_time=0.5, num_tokens=9))
    assert every.metrics[TIMES].iloc[-1] == fifth.metrics[TIMES].iloc[-1] == 30 and every.steps == fifth.steps == 60
    assert fifth.metrics[TIMES].iloc[0] == 2.5
    from_zero = run_of(write_lines(tmp_path / "zero.jsonl", [0.1] * 10, first=0, seconds_step=2.0))
    assert from_zero.steps == 10 and from_zero.metrics[TIMES].iloc[-1] == 20
    with_first = tmp_path / "first.jsonl"  # logging_first_step
    rows = [{"step": step, "reward": 0.1, "step_time": 1.0} for step in (1, 5, 10)]
    with_first.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(run_of(with_first).metrics[TIMES]) == [1, 5, 10]


def test_what_counts_other_things_is_on_no_axis_with_it(tmp_path: Path) -> None:
    rewards = 0.1 + 0.01 * np.arange(12)
    ours = write_lines(tmp_path / "ours.jsonl", rewards, tokens_generated=10, _timestamp=1.0)
    words = [f"ours={ours}", *GRPO]
    with pytest.raises(UserError, match=r"ours.jsonl has tokens: responses \(tokens_generated\); .* prompts"):
        methods_of(read_runs(words), "tokens")
    with pytest.raises(UserError, match="accepted: runs that count the same, or --axis steps"):
        methods_of(read_runs(words), "seconds")
    both = write_lines(tmp_path / "both.jsonl", rewards, step_time=1.0, _timestamp=1.0)
    assert methods_of(read_runs([f"both={both}", *GRPO]), "seconds").axis == TIMES
    assert methods_of(read_runs([f"both={both}", f"ours={ours}"]), "seconds").axis == CLOCK
    assert methods_of(read_runs([f"both={both}", *GRPO]), "seconds").unit == "seconds (the trainer's own steps)"


def test_a_total_that_falls_is_no_axis(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"step": step, "reward": 0.1, "num_tokens": tokens} for step, tokens in ((1, 5), (2, 9), (3, 4))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="or falls; accepted: --axis steps, or a metric num_tokens"):
        methods_of(read_runs([str(path)]), "tokens")


# Comparing


def methods_from(tmp_path: Path, axis: str, **methods: Sequence[Sequence[float]]) -> Methods:
    words = [
        f"{method}={write_lines(tmp_path / f'{method}-{seed}.jsonl', rewards, tokens_generated=100)}"
        for method, seeds in methods.items()
        for seed, rewards in enumerate(seeds)
    ]
    return methods_of(read_runs(words), axis)


def test_a_ceiling_is_found_where_rewards_bend_and_seeds_give_its_interval(tmp_path: Path) -> None:
    steps = np.arange(40)
    with np.errstate(divide="ignore"):
        course = 0.2 + 0.5 / (1 + (8.0 / steps) ** 1.5)
    seeds = [course + shift for shift in (-0.01, 0.0, 0.01)]
    fit = methods_from(tmp_path, "tokens", a=seeds).fit("a")
    assert isinstance(fit, Fit) and fit.is_identified
    value, interval = fit.parameter("ceiling")
    assert value == pytest.approx(0.7, abs=0.01) and interval is not None and interval[0] < 0.7 < interval[1]
    assert fit.parameter("log_midpoint")[0] == pytest.approx(800, rel=0.05)
    short = methods_of(read_runs(GRPO), "tokens").fit("grpo")
    assert isinstance(short, Fit) and (interval := short.parameter("ceiling")[1]) is not None
    assert interval[1] == 1.0  # not beyond the most that a reward can be
    # Steps from 0, as wandb counts, are as many as steps from 1.
    counted = [write_lines(tmp_path / f"{first}.jsonl", course, first=first) for first in (0, 1)]
    fits = [methods_of(read_runs([str(path)]), "steps").fit(path.stem) for path in counted]
    assert [fit.parameter("log_midpoint")[0] for fit in fits] == pytest.approx([8, 8], rel=0.05)


def test_what_does_not_bend_or_is_short_or_no_share_has_no_ceiling(tmp_path: Path) -> None:
    rising = methods_from(tmp_path, "steps", b=[np.linspace(0.1, 0.5, 30).tolist()]).fit("b")
    assert isinstance(rising, Fit) and not rising.is_identified
    for rewards, why in (([0.1] * 5, "fewer than"), ([-1.0] * 20, "outside")):
        fit = methods_from(tmp_path, "steps", c=[rewards]).fit("c")
        assert isinstance(fit, str) and why in fit
    fifth = read_runs([str(write_state(tmp_path / "fifth", 0.01 * np.arange(12), every=5))])
    assert "the first reward is that of step 5" in methods_of(fifth, "steps").fit("fifth")


def test_differences_are_judged_over_seeds_at_equal_cost(tmp_path: Path) -> None:
    a, b = ([[level + i / 1000] * length for i in range(3)] for level, length in ((0.5, 20), (0.7, 30)))
    methods = methods_from(tmp_path, "tokens", a=a, b=b, c=[[0.9] * 20])
    assert methods.end == 2000 and methods.difference("b", "a").estimate == pytest.approx(0.2)
    p_values = methods.p_values("a")
    assert p_values["b"] is not None and p_values["b"] < 0.001 and p_values["c"] is None


# The command


def test_the_command_writes_page_figure_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with printed_faults() as faults:
        assert main(["curves", *GRPO, *DAPO, "--axis", "tokens", "--reference", "grpo", "--out", str(tmp_path)]) == 0
    assert faults == []
    printed = capsys.readouterr().out
    assert "Versus grpo" in printed and "num_tokens" in printed and "Rewards after" in printed
    page = (tmp_path / "index.html").read_text()
    assert "Ceiling and efficiency" in page and "data:image/svg+xml" in page and "grad_norm" in page
    assert all(row.name.replace("'", "&#39;") in page for row in NAMES)  # the whole table, with those that were used
    assert {"curves.png", "comparison.csv", "index.manifest.json"} <= {path.name for path in tmp_path.iterdir()}
    table = pd.read_csv(tmp_path / "comparison.csv")
    assert list(table["seeds"]) == [2, 2] and list(table["steps"]) == [12, 12]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("trainer_state.json", b"{}", "log_history: is missing"),
        ("trainer_state.json", b'{"log_history": [{"step": -1, "reward": 1}]}', "log_history[0]: step: is -1"),
        ("trainer_state.json", b'{"log_history": [{"step": 1, "loss": 1}]}', "has no metric of the reward, but loss"),
        ("trainer_state.json", b"[" * 100_000, "nested too deeply"),
        ("a.jsonl", b'{"step": 1, "data": 3}\n', "line 1: data: is no object"),
        ("a.jsonl", b'{"step": 1, "data": {"reward": 1e300}}\n', "line 1: reward: is 1e+300"),
        ("a.jsonl", b'{"step": 1, "data": {"reward": 1' + b"0" * 400 + b"}}\n", "line 1: reward: is 1000"),
        ("a.jsonl", b'{"step": true, "data": {"reward": 1}}\n', "line 1: step: is True"),
        ("a.jsonl", b'{"reward": 1}\n', "is None"),
        ("a.jsonl", b'{"step": 1, "reward": NaN}\n', "reward: is no number in any step"),
        ("a.log", b"nothing here\n", "has no step with a number"),
        pytest.param("a.wandb", b"PK" * 40, "cannot be read by wandb leet inspect", marks=by_wandb),
        pytest.param("a.tfevents.1", b"PK" * 40, "has no step with a number", marks=by_tensorboard),
        ("metrics/reward", b"1 x 2\n", "is no metric of MLflow"),
    ],
)
def test_bad_input_ends_in_one_line(
    name: str, content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert main(["curves", str(path.parent if path.parent.name == "metrics" else path), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_mistakes_in_the_words_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = write_lines(tmp_path / "a.jsonl", [1.0])
    for words, expected in (
        ([str(tmp_path / "x")], "no such file"),
        (["a=/dev/zero"], "is a pipe or a device"),
        ([f"a={tmp_path}/x+{plain}"], "x: no such file"),
        ([f"={plain}"], "lacks the method"),
        ([str(tmp_path), "--axis", "tokens"], "accepted: --axis steps"),
        ([str(plain), "--reference", "b"], "accepted: a"),
        ([str(tmp_path.parent / "recorded")], "no such file"),
    ):
        assert main(["curves", *words, "--out", str(tmp_path / "out")]) == 2
        assert expected in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert all(kind in refused(tmp_path / "empty") for kind in FILES)


@by_wandb
@by_tensorboard
def test_cut_off_logs_are_read_as_far_as_they_go_and_random_bytes_raise_no_other_error(tmp_path: Path) -> None:
    for name, times in (("run-tiny.wandb", 3), ("events.out.tfevents.host", 60)):
        content = (RECORDED / name).read_bytes()
        path = tmp_path / name
        path.write_bytes(content[: len(content) * 2 // 3])
        assert 4 <= len(run_of(path).metrics) < 12
        chance = np.random.default_rng(1)
        for _ in range(times):
            broken = bytearray(content)
            for at in chance.integers(0, len(broken), 8):
                broken[at] = chance.integers(256)
            path.write_bytes(broken)
            try:
                run_of(path)
            except UserError:
                continue


def test_the_table_of_names_has_what_is_shown_and_no_name_twice() -> None:
    from rlvr_curves.page import _TITLES

    assert set(_TITLES) == set(SHOWN) == {row.quantity for row in NAMES} - {"step", "tokens", "seconds"}
    assert {row.form for row in NAMES} == {"value", "so far", "each step", "time"}
    names = [(row.quantity, row.name) for row in NAMES]
    assert len(set(names)) == len(names)


# What the package installs


def installed_with(name: str) -> set[str]:
    """The distributions that pip installs with one, without extras."""
    seen, todo = set[str](), [name]
    while todo:
        name = re.match(r"[\w.-]+", todo.pop())[0].lower().replace("_", "-")
        if name not in seen:
            seen.add(name)
            with contextlib.suppress(PackageNotFoundError):  # of another platform
                todo += [line for line in requires(name) or () if "extra ==" not in line]
    return seen


def test_the_command_needs_nothing_but_what_its_page_installs(tmp_path: Path) -> None:
    """No torch, no Snakemake, no MLflow, and no TensorBoard or wandb where none of their files is read."""
    names = {module: {name.lower().replace("_", "-") for name in of_it} for module, of_it in INSTALLED.items()}
    allowed = installed_with("rlvr-curves")
    lacking = sorted(module for module, of_it in names.items() if not of_it & allowed)
    assert {"torch", "snakemake", "mlflow", "wandb", "transformers"} & set(INSTALLED) <= set(lacking)
    code = (
        "import sys; sys.modules |= dict.fromkeys(sys.argv.pop(1).split()); import rlvr.cli; sys.exit(rlvr.cli.main())"
    )
    command = [sys.executable, "-c", code, " ".join(lacking), "curves"]
    done = subprocess.run([*command, *GRPO, "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for file, package in (("run-tiny.wandb", "wandb"), ("events.out.tfevents.host", "tensorboard")):
        done = subprocess.run([*command, str(RECORDED / file)], capture_output=True, text=True)
        assert done.returncode == 2 and f"pip install 'rlvr-curves[{package}]'" in done.stderr
        assert done.stderr.count("\n") == 1
