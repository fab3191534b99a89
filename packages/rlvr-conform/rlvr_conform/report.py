"""The report on a trainer as JSON, and the page of all reports."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr_conform.cases import CASES
from rlvr_conform.chain import CHAINS, chain_of, try_chain
from rlvr_conform.trainer import Process, UserError, adapter_of, python_of
from rlvr_conform.verdicts import ADVANTAGES, GOOD, Finding, try_losses

MARKS = {"differs": "**differs**", "depends on the cut": "**cut**"}
TEXT = Path(__file__).with_name("page.txt")


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
        return " ".join([self.trainer, *versions[:1], *([self.commit] if self.commit else [])])


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
    tried = [finding for finding in findings if finding.verdict != "not offered"]
    if len(tried) > 1 and {(finding.verdict, finding.note) for finding in tried} == {("fails", tried[0].note)}:
        raise UserError(f"{trainer}: none of its losses can be computed: {tried[0].note}")
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
    return all(finding.verdict in GOOD for finding in report.findings)


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
    """Say in words what a verdict rests on, with the smallest input that shows a difference if there is one."""
    words = list(_reasons(finding))
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


def _reasons(finding: Finding) -> Iterator[str]:
    """Say what a trainer means by the same numbers, and which options make it the paper's."""
    if finding.convention:
        yield finding.convention
    changed = {key: value for key, value in finding.remedy.items() if finding.options.get(key) != value}
    if changed:
        yield f"{', '.join(f'`{name} {value}`' for name, value in changed.items())} makes it the paper's"


def page(reports: Sequence[Report]) -> str:
    """The page of all reports, below its text."""
    losses = [case.name for case in CASES]
    others = [*(f"advantages {name}" for name in ADVANTAGES), *(f"chain {name}" for name in losses)]
    lines = [*_tables(losses, reports), *_tables(others, reports), *_differences(reports)]
    return "\n".join([TEXT.read_text(encoding="utf-8"), *lines]) + "\n"


def _tables(objectives: Sequence[str], reports: Sequence[Report]) -> Iterator[str]:
    """Tables of verdicts, of the objectives and trainers that have any; a page is as wide as seven trainers."""
    shown = [report for report in reports if any(_mark(report, name) for name in objectives)]
    for part in (shown[at : at + 7] for at in range(0, len(shown), 7)):
        rows = {name: [_mark(report, name) for report in part] for name in objectives}
        rows |= {} if "chain grpo" in rows else {"NaN at padding reaches": [_reached(report) for report in part]}
        yield f"| | {' | '.join(report.name for report in part)} |"
        yield f"|---|{'---|' * len(part)}"
        yield from (f"| {name} | {' | '.join(marks)} |" for name, marks in rows.items() if any(marks))
        yield ""


def _reached(report: Report) -> str:
    """Say how many of the losses get a gradient from NaN at padded positions."""
    tried = [finding.padding for finding in report.findings if finding.padding]
    return f"{sum(padding != 'ignored' for padding in tried)} of {len(tried)}"


def _mark(report: Report, objective: str) -> str:
    verdicts = {finding.objective: finding.verdict for finding in report.findings if finding.verdict != "not offered"}
    return MARKS.get(verdicts.get(objective, ""), verdicts.get(objective, ""))


def _differences(reports: Sequence[Report]) -> Iterator[str]:
    """A table of what is not equal: a row for the objectives of a trainer of which the same is to be said."""
    yield from ("| trainer | objectives | verdict | why | largest difference |", "|---|---|---|---|---|")
    for report in reports:
        rows: dict[tuple[str, str], list[Finding]] = {}
        for finding in report.findings:
            if finding.verdict not in ("equal", "not offered"):
                words = [*_reasons(finding), *([f"changes with {finding.cut}"] if finding.cut else [])]
                words += [f"smallest input: {finding.smallest}"] if finding.verdict == "differs" else []
                words += [finding.note] if finding.verdict == "fails" else []
                words += [] if words else ["another gradient is accumulated, or another loss logged"]
                rows.setdefault((finding.verdict, "; ".join(words).replace("|", "\\|")), []).append(finding)
        for (verdict, why), findings in rows.items():
            names = ", ".join(finding.objective for finding in findings)
            largest = max(max(finding.difference, finding.by_cut) for finding in findings)
            yield f"| {report.name} | {names} | {MARKS.get(verdict, verdict)} | {why} | {largest:.1%} |"
