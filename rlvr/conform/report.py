"""The report on a trainer as JSON, and the page of all reports."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.core.record import Record
from rlvr.conform.cases import CASES
from rlvr.conform.chain import CHAINS, chain_of, try_chain
from rlvr.conform.trainer import Process, adapter_of
from rlvr.conform.verdicts import ADVANTAGES, Finding, try_losses

MARKS = {
    "equal": "equal",
    "convention": "convention",
    "differs": "**differs**",
    "depends on the cut": "**cut**",
    "not offered": "",
    "fails": "fails",
}
NOT_TRIED = {
    "tinker-cookbook": "its losses are computed by a service",
    "ms-swift": "its loss function is a method of a trainer that needs its data, template and rollout parts",
}
TEXT = Path(__file__).with_name("page.md")


class Report(Record):
    """The findings about a trainer, and the versions that they are of."""

    trainer: str
    versions: dict[str, str]
    commit: str = ""
    stand_ins: tuple[str, ...] = ()
    findings: tuple[Finding, ...]

    @property
    def name(self) -> str:
        """The trainer with the version or the commit that was tried."""
        versions = [version for package, version in self.versions.items() if package not in ("torch", "transformers")]
        return " ".join([self.trainer, *versions[:1], *([f"at {self.commit}"] if self.commit else [])])


def try_trainer(
    trainer: str, python: Path, checkout: Path | None, losses: Sequence[str], with_chain: bool = False
) -> Report:
    """Try a trainer's losses, and its whole chain if asked; ``losses`` names some of them, none all."""
    adapter = adapter_of(trainer)
    if with_chain and not chain_of(adapter).is_file():
        names = ", ".join(sorted(path.stem for path in CHAINS.glob("[a-z]*.py")))
        raise UserError(f"--chain: {trainer} has none; accepted: {names}")
    with Process(adapter, python, checkout) as process:
        findings = tuple(try_losses(process, losses))
        about = process.answer({"ask": "versions"})
    if with_chain:
        findings += tuple(try_chain(adapter, python, checkout, findings))
    return Report(
        trainer=Path(trainer).stem,
        versions=about["versions"],
        commit=commit_of(checkout),
        stand_ins=tuple(about["stand_ins"]),
        findings=findings,
    )


def commit_of(checkout: Path | None) -> str:
    """Ask git for the commit of a checkout; empty where it is none."""
    if checkout is None:
        return ""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=9", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def is_the_papers(report: Report) -> bool:
    """Tell whether no loss is another one than the paper's, whatever its convention."""
    return all(finding.verdict in ("equal", "convention", "not offered") for finding in report.findings)


def printed(report: Report) -> Iterator[str]:
    """The report for people, a line for each objective that the trainer offers."""
    yield f"{report.name} ({', '.join(f'{name} {version}' for name, version in report.versions.items())})"
    for finding in report.findings:
        if finding.verdict != "not offered":
            yield f"{finding.objective:18} {finding.verdict:18} {described(finding)}".rstrip()
    missing = [finding.objective for finding in report.findings if finding.verdict == "not offered"]
    if missing:
        yield f"not offered, or not called by the adapter: {', '.join(missing)}"


def described(finding: Finding) -> str:
    """Say in words what a verdict rests on."""
    words = [finding.convention] if finding.convention else []
    if finding.remedy:
        changed = {key: value for key, value in finding.remedy.items() if finding.options.get(key) != value}
        words.append(f"{_options(changed)} makes it the paper's")
    if finding.verdict in ("convention", "differs") or (finding.difference >= 1e-5 and finding.smallest):
        stopped = f", {finding.stopped} of {finding.tokens} tokens stopped wrongly" if finding.stopped else ""
        freed = f", {finding.freed} not stopped" if finding.freed else ""
        angle = f", {finding.degrees:.1f} degrees, scale {finding.scale:.3g}" if finding.options else ""
        words.append(f"{finding.difference:.1%} of the largest gradient{angle}{stopped}{freed}")
    if finding.cut:
        words.append(f"it changes by {finding.by_cut:.1%} with {finding.cut}")
    if finding.smallest and finding.verdict in ("differs", "depends on the cut"):
        words.append(f"smallest input: {finding.smallest}")
    return "; ".join([*words, *([finding.note] if finding.note else [])])


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"`{name} {value}`" for name, value in options.items())


def page(reports: Sequence[Report]) -> str:
    """The page of all reports, below its text."""
    names = [*(case.name for case in CASES), *(f"advantages {name}" for name in ADVANTAGES)]
    lines = [f"| objective | {' | '.join(report.name for report in reports)} |", f"|---|{'---|' * len(reports)}"]
    names += [
        f"chain {case.name}" for case in CASES if any(_finding(report, f"chain {case.name}") for report in reports)
    ]
    for name in names:
        findings = [_finding(report, name) for report in reports]
        marks = [MARKS[finding.verdict] if finding else "" for finding in findings]
        lines.append(f"| {name} | {' | '.join(marks)} |")
    details = [line for report in reports for line in _section(report)]
    missing = [f"- {name}: {why}" for name, why in NOT_TRIED.items()]
    parts = [TEXT.read_text(encoding="utf-8").rstrip(), "", *lines, *details, "", "## Not tried", "", *missing]
    return "\n".join(parts) + "\n"


def _finding(report: Report, objective: str) -> Finding | None:
    return next((finding for finding in report.findings if finding.objective == objective), None)


def _section(report: Report) -> Iterator[str]:
    yield from ("", f"## {report.name}", "")
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    stand_ins = f" Stand-ins took the place of {', '.join(report.stand_ins)}." if report.stand_ins else ""
    padding = {
        word: [finding.objective for finding in report.findings if finding.padding == word]
        for word in ("spreads", "fails")
    }
    yield f"With {versions}.{stand_ins}"
    if names := [*padding["spreads"], *padding["fails"]]:
        tried = [finding for finding in report.findings if finding.padding]
        which = "every loss" if len(names) == len(tried) else ", ".join(names)
        yield f"NaN at padded positions reaches the gradient of {which}."
    yield from ("", "| objective | asked as | verdict | |", "|---|---|---|---|")
    for finding in report.findings:
        if finding.verdict != "not offered":
            words = described(finding).replace("|", "\\|")
            yield f"| {finding.objective} | {_options(finding.options)} | {finding.verdict} | {words} |"
