"""The verdicts on a stand-in for a trainer, with and without planted faults."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evals.core.errors import UserError
from rlvr.cli import main
from rlvr.conform import chain
from rlvr.conform.cases import CASES, batches
from rlvr.conform.report import Report, page
from rlvr.conform.trainer import Process, adapter_of
from rlvr.conform.verdicts import Finding, Trial, try_advantages
from rlvr.conform.worker import Answers, load, stand_ins_of

STAND_IN = Path(__file__).with_name("stand_in.py")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = load(str(STAND_IN))
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    stand_ins_of(module)
    yield module
    for name in [name for name in sys.modules if name.startswith("no_such_trainer")]:
        del sys.modules[name]


def tried(adapter: Any, loss: str, fault: str = "") -> Finding:
    adapter.FAULT = fault
    return Trial(Answers(adapter), next(case for case in CASES if case.name == loss)).finding()


@pytest.mark.parametrize("loss", ["dapo", "cispo", "grpo"])
def test_the_papers_losses_are_equal(adapter: Any, loss: str) -> None:
    finding = tried(adapter, loss)
    assert finding.verdict == "equal" and finding.difference < 1e-9 and finding.by_cut < 1e-9
    assert finding.padding == "ignored" and not finding.smallest and not finding.stopped


def test_a_loss_that_the_trainer_lacks_is_not_offered(adapter: Any) -> None:
    assert tried(adapter, "sapo").verdict == "not offered"


@pytest.mark.parametrize(
    ("fault", "loss", "words", "remedy"),
    [
        ("clamps below", "cispo", "clamps below too", {"epsilon_low": "1.0"}),
        ("absolute cap", "cispo", "absolute cap", {"epsilon_high": "1.28"}),
        ("by rows", "dapo", "aggregates by seq-mean-token-sum", {}),
        ("dual clip", "dapo", "dual clip", {"dual_clip": "1000000000.0"}),
    ],
)
def test_another_convention_is_named_with_what_makes_it_the_papers(
    adapter: Any, fault: str, loss: str, words: str, remedy: dict[str, str]
) -> None:
    finding = tried(adapter, loss, fault)
    assert finding.verdict == "convention" and words in finding.convention
    assert remedy.items() <= finding.remedy.items() and finding.difference > 0.01


def test_an_absolute_cap_scales_the_gradient_by_it(adapter: Any) -> None:
    finding = tried(adapter, "cispo", "absolute cap")
    assert 0.2 < finding.scale < 0.35 and finding.degrees > 1


def test_a_difference_without_a_convention_comes_with_its_smallest_input(adapter: Any) -> None:
    finding = tried(adapter, "dapo", "no clip")
    assert finding.verdict == "differs" and finding.freed and not finding.stopped
    assert finding.smallest.count("ratios") == 1 and "[0]" in finding.smallest


@pytest.mark.parametrize(
    ("fault", "cuts"),
    [
        ("mask by micro-batch", ["micro-batches", "ranks"]),
        ("local mean", ["micro-batches", "ranks"]),
        ("tokens of all rollouts", ["a rollout batch of two mini-batches"]),
    ],
)
def test_what_more_than_the_mini_batch_decides_depends_on_the_cut(adapter: Any, fault: str, cuts: list[str]) -> None:
    finding = tried(adapter, "dapo", fault)
    assert finding.verdict == "depends on the cut" and finding.by_cut > 0.01
    assert finding.cut in cuts


def test_padding_and_errors_are_noticed(adapter: Any) -> None:
    assert tried(adapter, "dapo", "padding counts").padding == "spreads"
    failed = tried(adapter, "dapo", "raises")
    assert failed.verdict == "fails" and failed.note == "ValueError: no luck"


def test_advantages_differ_by_their_denominator_not_by_epsilon(adapter: Any) -> None:
    assert try_advantages(Answers(adapter), "grpo").verdict == "equal"
    adapter.FAULT = "n"
    finding = try_advantages(Answers(adapter), "grpo")
    assert finding.verdict == "convention" and "denominator is n" in finding.convention
    assert try_advantages(Answers(adapter), "rloo").verdict == "not offered"


class InProcess:
    """An answer to each question, without a process."""

    def __init__(self, adapter: Path, *_: Any) -> None:
        self.answers = Answers(load(str(adapter)))

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *_: Any) -> None: ...

    def ask(self, question: dict[str, Any]) -> None:
        self.question = question

    def hear(self) -> dict[str, Any]:
        return self.answers.answer(self.question)


@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        ("", "equal", ""),
        ("rollout tokens", "depends on the cut", "two updates on one rollout batch the gradient differs by"),
        ("mean tokens", "convention", ""),
        ("logs twice", "differs", "it logs"),
    ],
)
def test_the_chain_compares_gradients_as_accumulated_and_losses_as_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, verdict: str, words: str
) -> None:
    file = (STAND_IN.parent / "chains/stand_in.py").read_text().replace('FAULT = ""', f'FAULT = "{fault}"')
    (tmp_path / "stand_in.py").write_text(file)
    monkeypatch.setattr(chain, "CHAINS", tmp_path)
    monkeypatch.setattr(chain, "Process", InProcess)
    options = {"epsilon_low": "0.2", "epsilon_high": "0.28"}
    alone = [cut for cut in chain.CUTS.items() if cut[1].ranks == 1 and cut[1].micro_batches == 2]
    monkeypatch.setattr(chain, "CUTS", dict(alone))
    findings = [
        Finding(objective="dapo", verdict="equal", options=options),
        Finding(objective="grpo_kl", verdict="equal"),
    ]
    (finding,) = chain.try_chain(STAND_IN, Path(sys.executable), None, findings)
    assert (finding.objective, finding.verdict) == ("chain dapo", verdict) and words in finding.note
    assert (finding.difference < 1e-9) == (fault in ("", "logs twice"))


def test_batches_reach_both_sides_of_every_bound() -> None:
    for case in CASES:
        ratios = [2.718281828459045 ** batch.delta(*token) for _, batch in batches(case) for token in batch.tokens]
        for bound in case.bounds:
            assert any(bound * 0.9999 < ratio < bound for ratio in ratios)
            assert any(bound < ratio < bound * 1.0001 for ratio in ratios)


def test_the_command_tries_a_trainer_in_a_process_and_keeps_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    words = ["conform", str(STAND_IN), "--python", sys.executable, "--losses", "dapo", "sapo", "--out", str(out)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "dapo" in printed and "equal" in printed and "not offered, or not called by the adapter: sapo" in printed
    report = json.loads(out.read_text())
    assert (
        report["trainer"] == "stand_in" and report["versions"]["torch"] and report["stand_ins"] == ["no_such_trainer"]
    )
    assert main(["conform-page", str(out)]) == 0
    assert "| dapo | equal |" in capsys.readouterr().out


def test_mistakes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        (["conform", "none"], "none: there is no such adapter"),
        (["conform", "slime", "--chain"], "--chain: slime has none; accepted: trl, verl"),
        (["conform", "trl", "--losses", "ppo"], "--losses: ppo is no objective"),
        (["conform", "trl", "--checkout", str(tmp_path / "x")], "is no directory"),
        (["conform", "trl", "--python", str(tmp_path / "x")], "cannot be run"),
    ):
        assert main(words) == 2
        assert expected in capsys.readouterr().err


def test_a_process_that_ends_says_its_last_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no such trainer here')")
    with Process(broken, Path(sys.executable)) as process, pytest.raises(UserError, match="no such trainer here"):
        process.answer({"ask": "versions"})


def test_adapters_are_short_and_have_what_the_page_says() -> None:
    for name in (path.stem for path in (ROOT / "rlvr/conform/adapters").glob("[a-z]*.py")):
        path = adapter_of(name)
        assert len(path.read_text().splitlines()) <= 60, name
        assert {"PACKAGE", "options", "loss"} <= set(vars(load(str(path))))


def test_the_page_is_that_of_its_reports() -> None:
    """Mend with: rlvr-bench conform-page docs/results/conformance/*.json > docs/conformance.md"""
    reports = [Report.read(path) for path in sorted((ROOT / "docs/results/conformance").glob("*.json"))]
    assert page(reports) == (ROOT / "docs/conformance.md").read_text()
