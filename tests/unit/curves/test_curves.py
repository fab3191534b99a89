"""Runs that the real tools wrote, and lines and bytes that none did.

TRL 1.16.0 wrote ``*/trainer_state.json``: GRPOTrainer, 12 steps of a Llama of two layers, loss_type grpo and dapo,
seeds 1 and 2. wandb 0.31.0 (``WANDB_MODE=offline``, run.log), torch's SummaryWriter (add_scalar) and MLflow
(log_metrics into a directory) wrote what TRL logged for grpo-1. verl 0.9.1 wrote ``verl.jsonl`` and ``verl.console``,
its console, in ``tests/engines/test_verl_training.py`` with ``trainer.logger=["console","file"]``.
"""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from evals.core.errors import UserError
from rlvr.cli import main
from rlvr.curves.compare import Fit, methods_of
from rlvr.curves.read import SHOWN, read_run
from rlvr.curves.records import fields

RECORDED = Path(__file__).with_name("recorded")
GRPO = [f"grpo={RECORDED}/grpo-{seed}" for seed in (1, 2)]
DAPO = [f"dapo={RECORDED}/dapo-{seed}" for seed in (1, 2)]


def test_a_state_of_trl_is_read_by_its_names() -> None:
    run, history = read_run(GRPO[0]), json.loads((RECORDED / "grpo-1/trainer_state.json").read_text())["log_history"]
    assert run.method == "grpo" and list(run.metrics["steps"]) == list(range(1, 13))
    assert list(run.metrics["reward"]) == [entry["reward"] for entry in history if "reward" in entry]
    assert list(run.metrics["tokens"]) == [entry["num_tokens"] for entry in history if "reward" in entry]
    assert run.names["clip_fraction"] == "clip_ratio/region_mean" and "learning_rate" in run.unmapped
    assert run.metrics["seconds"].is_monotonic_increasing


@pytest.mark.parametrize("name", ["run-tiny.wandb", "events.out.tfevents.host", "metrics"])
def test_trackers_of_the_same_run_say_the_same(name: str) -> None:
    trl, run = read_run(GRPO[0]).metrics, read_run(str(RECORDED / name)).metrics
    for column in ("steps", "reward", "length", "tokens"):
        np.testing.assert_allclose(run[column], trl[column], rtol=1e-6)
    assert run["seconds"].is_monotonic_increasing


def test_files_are_found_in_a_directory_and_the_last_checkpoint_is_taken(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        entry = {"step": 1, "reward": step}
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}/trainer_state.json").write_text(json.dumps({"log_history": [entry]}))
    assert list(read_run(str(tmp_path)).metrics["reward"]) == [100]


def test_the_command_writes_page_figure_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curves", *GRPO, *DAPO, "--axis", "tokens", "--reference", "grpo", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Versus grpo" in printed and "grad_norm" in printed
    page = (tmp_path / "index.html").read_text()
    assert "Ceiling and efficiency" in page and "data:image/svg+xml" in page
    assert {"curves.png", "comparison.csv", "index.manifest.json"} <= {path.name for path in tmp_path.iterdir()}


def lines(tmp_path: Path, name: str, rewards: list[float]) -> str:
    rows = [{"step": i + 1, "data": {"reward": float(x), "tokens_generated": 100}} for i, x in enumerate(rewards)]
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"{name.partition('-')[0]}={path}"


def test_a_ceiling_is_found_where_rewards_bend_and_seeds_give_its_interval(tmp_path: Path) -> None:
    steps = np.arange(40)
    with np.errstate(divide="ignore"):
        course = 0.2 + 0.5 / (1 + (8.0 / steps) ** 1.5)
    words = [lines(tmp_path, f"a-{seed}", (course + shift).tolist()) for seed, shift in enumerate((-0.01, 0.0, 0.01))]
    fit = methods_of([read_run(word) for word in words], "tokens").fit("a")
    assert isinstance(fit, Fit) and fit.is_identified
    value, interval = fit.parameter("ceiling")
    assert value == pytest.approx(0.7, abs=0.01) and interval is not None and interval[0] < 0.7 < interval[1]
    assert fit.parameter("log_midpoint")[0] == pytest.approx(800, rel=0.05)
    short = methods_of([read_run(word) for word in GRPO], "tokens").fit("grpo")
    assert isinstance(short, Fit) and (interval := short.parameter("ceiling")[1]) is not None
    assert interval[1] == 1.0  # not beyond the most that a reward can be


def test_what_does_not_bend_or_is_short_or_no_share_has_no_ceiling(tmp_path: Path) -> None:
    rising = methods_of([read_run(lines(tmp_path, "b", np.linspace(0.1, 0.5, 30).tolist()))], "steps").fit("b")
    assert isinstance(rising, Fit) and not rising.is_identified
    for rewards, why in (([0.1] * 5, "fewer than"), ([-1.0] * 20, "outside")):
        fit = methods_of([read_run(lines(tmp_path, "c", rewards))], "steps").fit("c")
        assert isinstance(fit, str) and why in fit


def test_differences_are_judged_over_seeds_at_equal_cost(tmp_path: Path) -> None:
    words = [lines(tmp_path, f"a-{i}", [0.5 + i / 1000] * 20) for i in range(3)]
    words += [lines(tmp_path, f"b-{i}", [0.7 + i / 1000] * 30) for i in range(3)] + [lines(tmp_path, "c", [0.9] * 20)]
    methods = methods_of([read_run(word) for word in words], "tokens")
    assert methods.end == 2000 and methods.difference("b", "a").estimate == pytest.approx(0.2)
    p_values = methods.p_values("a")
    assert p_values["b"] is not None and p_values["b"] < 0.001 and p_values["c"] is None


def test_verls_file_logger_and_console_say_the_same() -> None:
    by_file, by_console = (read_run(str(RECORDED / name)).metrics for name in ("verl.jsonl", "verl.console"))
    assert list(by_file["tokens"]) == [1041, 2057] and by_file["reward"][0] == 0.140625
    assert by_console.to_dict("records") == by_file[:1].to_dict("records")


def test_verls_console_is_read_among_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(
        "INFO started\n(TaskRunner pid=7) step:0 - val-core/acc:0.1\n"
        "(TaskRunner pid=7) step:1 - critic/score/mean:0.25 - actor/entropy:np.float64(1.5) - "
        "perf/total_num_tokens:80\n"
        "step:2 - critic/score/mean:nan - actor/entropy:1e-05\n"
        "step:3 - critic/score/mean:0.5 - perf/total_num_tokens:90\n"
    )
    run = read_run(str(path))
    assert list(run.metrics["steps"]) == [1, 3] and list(run.metrics["tokens"]) == [80, 170]
    assert run.metrics["entropy"][0] == 1.5 and run.names["reward"] == "critic/score/mean"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("trainer_state.json", b"{}", "log_history: is missing"),
        ("trainer_state.json", b'{"log_history": [{"step": -1, "reward": 1}]}', "log_history[0]: step: is -1"),
        ("trainer_state.json", b'{"log_history": [{"step": 1, "loss": 1}]}', "has no metric of the reward"),
        ("trainer_state.json", b"[" * 100_000, "nested too deeply"),
        ("a.jsonl", b'{"step": 1, "data": 3}\n', "line 1: data: is no object"),
        ("a.jsonl", b'{"step": 1, "data": {"reward": 1e300}}\n', "line 1: reward: is 1e+300"),
        ("a.jsonl", b'{"step": 1, "data": {"reward": 1' + b"0" * 400 + b"}}\n", "line 1: reward: is 1000"),
        ("a.jsonl", b'{"step": true, "data": {"reward": 1}}\n', "line 1: step: is True"),
        ("a.log", b"nothing here\n", "has no step with a number"),
        ("a.wandb", b"PK", "is no offline run of wandb"),
        ("a.wandb", b":W&B\0\0\0" + struct.pack("<IHB", 0, 1, 9) + b"x", "cannot be read"),
        ("a.tfevents.1", struct.pack("<Q", 2) + bytes(4) + b"\xff\xff" + bytes(4), "is no event file"),
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
    plain = tmp_path / "a.jsonl"
    plain.write_text('{"step": 1, "reward": 1}\n')
    for words, expected in (
        ([str(tmp_path / "x")], "no such file"),
        ([str(tmp_path), "--axis", "tokens"], "accepted: --axis steps"),
        ([str(plain), "--reference", "b"], "accepted: a"),
    ):
        assert main(["curves", *words, "--out", str(tmp_path / "out")]) == 2
        assert expected in capsys.readouterr().err


def test_cut_off_logs_are_read_as_far_as_they_go_and_random_bytes_raise_no_other_error(tmp_path: Path) -> None:
    for name in ("run-tiny.wandb", "events.out.tfevents.host"):
        content = (RECORDED / name).read_bytes()
        path = tmp_path / name
        path.write_bytes(content[: len(content) * 2 // 3])
        assert 4 <= len(read_run(str(path)).metrics) < 12
        chance = np.random.default_rng(1)
        for _ in range(60):
            broken = bytearray(content)
            for at in chance.integers(0, len(broken), 8):
                broken[at] = chance.integers(256)
            path.write_bytes(broken)
            try:
                read_run(str(path))
            except UserError:
                continue
    with pytest.raises(ValueError, match="beyond"):
        list(fields(b"\x0a\x7f"))


def test_metrics_have_names_and_titles() -> None:
    from rlvr.curves.page import _TITLES

    assert set(_TITLES) == set(SHOWN)
