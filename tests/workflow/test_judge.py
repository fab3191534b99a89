"""``judge`` in docs/your_method.md: its file is written, its commands run in an empty directory, on the smoke study."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.workflow.conftest import REPOSITORY, Project

_FILE = re.compile(r"^```python\n# my_loss.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^    rlvr-bench (judge [^\n]*)$", re.MULTILINE)
_MILLISECONDS = re.compile(r"[\d.]+ ms")
_SHOWN = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(words: list[str], project: Project, directory: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(project.root), str(project.root / "workflow/progress")])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-m", "rlvr", *words]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_the_page_leads_from_an_empty_directory_to_a_verdict_and_a_page(finished_copy: Project, tmp_path: Path) -> None:
    page, directory = (REPOSITORY / "docs/your_method.md").read_text(), tmp_path / "empty"
    directory.mkdir()
    (written,) = _FILE.findall(page)
    (directory / "my_loss.py").write_text(written)
    checks, judge = _COMMAND.findall(page)
    checked = run(checks.split(), finished_copy, directory)
    shown = [_MILLISECONDS.sub("N ms", text) for text in (checked.stdout, _SHOWN.findall(page)[0])]
    assert checked.returncode == 0 and shown[0] == shown[1], checked.stdout + checked.stderr
    root = finished_copy.root
    trained = {path.parent.name: path.stat().st_mtime_ns for path in root.glob("results/runs/*/manifest.json")}
    small = [
        "--study",
        str(root / "config/smoke.yaml"),
        "--out",
        str(root),
        "--seeds",
        "2",
        "--margin",
        "90",
        "--minutes",
        "600",  # on a machine of whatever speed
        "--go-on",
    ]
    done = run([*judge.split(), *small], finished_copy, directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search("specific profile|positional", done.stderr)  # Snakemake's own lines
    *_, verdict, address = done.stdout.splitlines()
    assert verdict.startswith("tanh_ratio: equivalent in score to dapo, ") and "; 2 seeds; MDE " in verdict
    report = Path(address).read_text()
    assert "The decisions, look by look" in report
    body = report[report.index("<body>") :]
    assert body.index("<strong>Equivalent to DAPO in score, within the margin: ") < body.index("<nav")
    assert f"my_loss.py, {len(written.splitlines())} lines" in body and "class TanhRatio(PolicyLoss)" in body
    after = {path.parent.name: path.stat().st_mtime_ns for path in root.glob("results/runs/*/manifest.json")}
    assert {name: after[name] for name in trained} == trained  # the reference's trainings are those of the smoke study
    (copy,) = root.glob("results/components/*/component.py")
    assert copy.read_text() == written
    copy.write_text(written + "\n")
    refused = run(["verify", str(root)], finished_copy, directory)
    assert refused.returncode == 2 and "component.py: its bytes differ" in refused.stdout + refused.stderr


def test_a_loss_that_forgets_the_mask_ends_with_the_smallest_input(smoke_study: Project, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        """from rlvr.methods.losses.base import PolicyLoss, TokenLoss
from rlvr.methods.parameters import component

@component("no_mask")
class NoMask(PolicyLoss):
    def token_loss(self, tokens):
        return TokenLoss(-tokens.given_advantages * (tokens.given_log_probs - tokens.given_old_log_probs).exp(), {})
"""
    )
    done = run(["judge", "wrong.py"], smoke_study, tmp_path)
    assert done.returncode == 2 and "padding        fails" in done.stdout
    assert "smallest input: log_probs [[" in done.stdout and "--go-on" in done.stderr
