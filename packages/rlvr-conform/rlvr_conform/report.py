"""The report on a trainer as JSON, and the page of all reports."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr_conform.cases import CASES
from rlvr_conform.chain import CHAINS, chain_of, try_chain
from rlvr_conform.trainer import Process, UserError, adapter_of, python_of
from rlvr_conform.verdicts import ADVANTAGES, Finding, try_losses

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


@dataclass(frozen=True)
class Report:
    """The findings about a trainer, and the versions that they are of."""

    trainer: str
    versions: dict[str, str]
    commit: str
    stand_ins: Sequence[str]
    findings: Sequence[Finding]

    @property
    def name(self) -> str:
        """The trainer with the version or the commit that was tried."""
        versions = [version for package, version in self.versions.items() if package not in ("torch", "transformers")]
        return " ".join([self.trainer, *versions[:1], *([f"at {self.commit}"] if self.commit else [])])


def read_report(path: Path) -> Report:
    """Read what ``conform --out`` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Report(**{**content, "findings": [Finding(**finding) for finding in content["findings"]]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: is no report that conform --out wrote ({error})") from None


def try_trainer(
    trainer: str, python: Path | None, checkout: Path | None, losses: Sequence[str], with_chain: bool = False
) -> Report:
    """Try a trainer's losses, and its whole chain if asked; ``losses`` names some of them, none all."""
    adapter = adapter_of(trainer)
    if with_chain and not chain_of(adapter).is_file():
        names = ", ".join(sorted(path.stem for path in CHAINS.glob("[a-z]*.py")))
        raise UserError(f"--chain: {trainer} has none; accepted: {names}")
    command = python_of(adapter, python, checkout)
    with Process(adapter, command, checkout) as process:
        findings = tuple(try_losses(process, losses))
        about = process.answer({"ask": "versions"})
    if with_chain:
        findings += tuple(try_chain(adapter, command, checkout, findings))
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


def described(finding: Finding, with_input: bool = True) -> str:
    """Say in words what a verdict rests on, with the smallest input that shows a difference if there is one."""
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
    if finding.smallest and with_input and finding.verdict in ("differs", "depends on the cut"):
        words.append(f"smallest input: {finding.smallest}")
    return "; ".join([*words, *([finding.note] if finding.note else [])])


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"`{name} {value}`" for name, value in options.items())


def page(reports: Sequence[Report]) -> str:
    """The page of all reports, below its text."""
    names = [*(case.name for case in CASES), *(f"advantages {name}" for name in ADVANTAGES)]
    names += [f"chain {case.name}" for case in CASES]
    of_names = {name: [_finding(report, name) for report in reports] for name in names}
    lines = [f"| objective | {' | '.join(report.name for report in reports)} |", f"|---|{'---|' * len(reports)}"]
    for name, findings in of_names.items():
        if not name.startswith("chain") or any(findings):
            lines.append(
                f"| {name} | {' | '.join(MARKS[finding.verdict] if finding else '' for finding in findings)} |"
            )
    lines.append(f"| NaN at padding reaches | {' | '.join(_reached(report) for report in reports)} |")
    details = [line for report in reports for line in _differences(report)]
    lines += ["", "| trainer | objectives | verdict | |", "|---|---|---|---|", *details, ""]
    missing = [f"- {name}: {why}" for name, why in NOT_TRIED.items()]
    return "\n".join([TEXT.read_text(encoding="utf-8").rstrip(), "", *lines, "Not tried:", "", *missing]) + "\n"


def _reached(report: Report) -> str:
    """Say how many of the losses get a gradient from NaN at padded positions."""
    tried = [finding.padding for finding in report.findings if finding.padding]
    reached = sum(padding != "ignored" for padding in tried)
    return f"{reached} of {len(tried)}" if tried else ""


def _finding(report: Report, objective: str) -> Finding | None:
    return next((finding for finding in report.findings if finding.objective == objective), None)


def _differences(report: Report) -> Iterator[str]:
    """List what is not equal; objectives of which the same is to be said have one row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for finding in report.findings:
        if finding.verdict not in ("equal", "not offered"):
            words = described(finding, with_input=finding.verdict == "differs").replace("|", "\\|")
            rows.setdefault((finding.verdict, words), []).append(finding.objective)
    for (verdict, words), objectives in rows.items():
        yield f"| {report.name} | {', '.join(objectives)} | {verdict} | {words} |"
