"""The verdicts on a stand-in for a trainer, with and without planted faults."""

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlvr_conform import chain, cli
from rlvr_conform.cases import CASES, batches
from rlvr_conform.report import page, read_report
from rlvr_conform.trainer import ADAPTERS, Process, UserError, adapter_of
from rlvr_conform.verdicts import ADVANTAGES, Finding, Trial, try_advantages
from rlvr_conform.worker import Answers, load, stand_ins_of

STAND_IN = Path(__file__).with_name("stand_in.py")
PACKAGE = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable]


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


def test_an_option_of_the_trainers_own_is_tried_before_it_is_said_to_differ(adapter: Any) -> None:
    finding = tried(adapter, "dapo", "switched on")
    assert finding.verdict == "convention" and "default of another option" in finding.convention
    assert finding.remedy == {**finding.options, "halved": "False"}
    finding = tried(adapter, "dapo", "local by default")
    assert finding.verdict == "convention" and "default of another option depends on the cut" in finding.convention
    assert finding.remedy == {**finding.options, "halved": "False"} and finding.by_cut > 0.01


def test_the_smallest_input_has_the_digits_that_differ(adapter: Any) -> None:
    finding = tried(adapter, "dapo", "a little more")
    computed, paper = re.findall(r"\[([-\d.e]+)\](?:,|$)", finding.smallest.partition("gradient")[2])
    assert (
        finding.verdict == "differs" and computed != paper and float(computed) == pytest.approx(float(paper), rel=1e-4)
    )


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
    (finding,) = chain.try_chain(STAND_IN, PYTHON, None, findings)
    assert (finding.objective, finding.verdict) == ("chain dapo", verdict) and words in finding.note
    assert (finding.difference < 1e-9) == (fault in ("", "logs twice"))


def test_batches_reach_both_sides_of_every_bound() -> None:
    for case in CASES:
        ratios = [2.718281828459045 ** batch.delta(*token) for _, batch in batches(case) for token in batch.tokens]
        for bound in case.bounds:
            assert any(bound * 0.9999 < ratio < bound for ratio in ratios)
            assert any(bound < ratio < bound * 1.0001 for ratio in ratios)


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """The status of the command with these words, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["rlvr-conform", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0), *capsys.readouterr()


def test_the_command_tries_a_trainer_in_a_process_and_keeps_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    status, printed, _ = run(monkeypatch, capsys, STAND_IN, "--losses", "dapo", "sapo", "--out", out)
    assert status == 0 and "equal" in printed and "not offered, or not called by the adapter: sapo" in printed
    report = read_report(out)
    assert (report.trainer, report.stand_ins) == ("stand_in", ["no_such_trainer"]) and report.versions["torch"]
    cli.conform_page([out])
    assert "| dapo | equal |" in capsys.readouterr().out


def test_the_status_is_1_where_a_loss_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text(STAND_IN.read_text().replace('FAULT = ""', 'FAULT = "no clip"'))
    assert run(monkeypatch, capsys, faulty, "--losses", "dapo")[0] == 1


def test_a_trainer_that_fails_in_every_loss_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text(STAND_IN.read_text().replace('FAULT = ""', 'FAULT = "raises"'))
    status, printed, error = run(monkeypatch, capsys, faulty, "--losses", "dapo", "grpo", "sapo")
    assert (status, printed) == (2, "")
    assert error == f"error: {faulty}: none of its losses can be computed: ValueError: no luck\n"


def test_mistakes_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lacking.py").write_text('PACKAGE = "no-such-trainer"\n')
    for words, expected in (
        (["none"], "none: there is no such adapter"),
        (["x\x1b[2J.py"], "x\\x1b[2J.py: there is no such adapter"),
        (["slime", "--chain"], "--chain: slime has none; accepted: trl, verl"),
        (["trl", "--losses", "ppo"], "--losses: ppo is no objective"),
        (["trl", "--checkout", str(tmp_path / "x")], "is no directory"),
        (["trl", "--python", str(tmp_path / "x")], "cannot be run"),
        ([str(STAND_IN), "--losses", "dapo", "--out", str(tmp_path / "x/y")], "cannot be written"),
        (
            [str(tmp_path / "lacking.py")],
            f"lacking: {sys.executable} has no module no_such_trainer; accepted: --python",
        ),
        ([], "Missing argument"),
    ):
        status, _, error = run(monkeypatch, capsys, *words)
        assert status == 2 and expected in error and error.startswith("error: ") and error.count("\n") == 1, error


def test_a_trainer_that_this_python_lacks_gets_an_environment_by_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking, uv = tmp_path / "lacking.py", tmp_path / "uv"
    lacking.write_text('PACKAGE = "no-such-trainer"\nINSTALL = "no-such-trainer==1"\n')
    uv.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/words\nexit 3\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    status, _, error = run(monkeypatch, capsys, lacking)
    assert status == 2 and error.count("\n") == 2 and "error: lacking: uv made no environment" in error
    words = (tmp_path / "words").read_text().split()
    assert words[:2] == ["tool", "run"] and words[words.index("--with") + 1] == "no-such-trainer==1"
    assert "--python" in run(monkeypatch, capsys, lacking, "--python", sys.executable)[2]  # named: nothing is installed
    assert len((tmp_path / "words").read_text().splitlines()) == 1


def test_a_process_that_ends_says_its_last_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no such trainer here')")
    with Process(broken, PYTHON) as process, pytest.raises(UserError, match="no such trainer here"):
        process.answer({"ask": "versions"})


pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("fault", "outcomes"), [("", {"passed": 4, "skipped": 20}), ("no clip", {"passed": 2, "failed": 2, "skipped": 20})]
)
def test_pytest_has_a_test_for_each_objective(pytester: pytest.Pytester, fault: str, outcomes: dict[str, int]) -> None:
    pytester.makepyfile(test_own="def test_of_the_trainers_own(): ...")
    adapter = pytester.makepyfile(stand_in=STAND_IN.read_text().replace('FAULT = ""', f'FAULT = "{fault}"'))
    result = pytester.runpytest_subprocess("--conform", adapter, "-p", "no:xdist", "-p", "no:cacheprovider")
    result.assert_outcomes(**outcomes)
    if fault:
        result.stdout.fnmatch_lines(["dapo: differs*smallest input: ratios*"])
        result.stdout.no_fnmatch_line("*try_losses(*")


def test_pytest_runs_what_is_named_too_and_refuses_a_missing_trainer(pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile(test_own="def test_of_the_trainers_own(): ...")
    result = pytester.runpytest_subprocess(own, "--conform", STAND_IN, "-k", "own or dapo", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, deselected=23)
    result = pytester.runpytest_subprocess("--conform", "no-such-trainer", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["*--conform no-such-trainer: there is no such adapter; accepted: areal*"])


def test_adapters_are_short_and_have_what_the_page_says() -> None:
    for name in (path.stem for path in ADAPTERS.glob("[a-z]*.py")):
        path = adapter_of(name)
        assert len(path.read_text().splitlines()) <= 75, name
        assert {"PACKAGE", "options", "loss"} <= set(vars(load(str(path))))


def test_the_page_is_that_of_its_reports() -> None:
    """Mend with: rlvr-bench conform-page packages/rlvr-conform/results/*.json > packages/rlvr-conform/README.md"""
    reports = [read_report(path) for path in sorted((PACKAGE / "results").glob("*.json"))]
    assert page(reports) == (PACKAGE / "README.md").read_text()


@pytest.mark.skipif(find_spec("polgrad") is None, reason="polgrad is not installed: pip install polgrad==0.2.1")
def test_the_references_are_those_of_polgrad_where_both_have_one() -> None:
    polgrad = Answers(load(str(PACKAGE / "tests/adapters/polgrad.py")))
    findings = [Trial(polgrad, case).finding() for case in CASES]
    both = {finding.objective: finding.difference for finding in findings if finding.verdict != "not offered"}
    assert len(both) == 10 and max(both.values()) < 1e-14
    for name in ADVANTAGES:
        assert try_advantages(polgrad, name).verdict == "equal"
