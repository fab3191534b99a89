"""What docs/results/reliability.md says is tried, and how often, is what the tests try."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import torture
from tests.security import test_hostile_checkpoints, test_hostile_servers, test_sandbox, test_verifier
from tests.unit.trace import test_tracing

ROOT = Path(__file__).resolve().parents[2]


def parameters(module: object, name: str) -> int:
    """The number of cases of a test."""
    (mark,) = (mark for mark in getattr(module, name).pytestmark if mark.name == "parametrize")
    return len(mark.args[1])


def test_the_page_counts_what_is_tried() -> None:
    fuzzed = sum(path.read_text().count("\n@given(") for path in (ROOT / "tests/security").glob("test_hostile_*.py"))
    counts = {
        "ways in which a study is ended at random moments": len(torture.KINDS),
        "files and manifests of a finished study, a byte of each changed": len(
            test_tracing.STAGES + test_tracing.MANIFESTS
        ),
        "programs that forge a verdict": len(test_sandbox.FORGERIES),
        "responses that reach for the verdicts of others": len(test_verifier.FORGERIES),
        "servers that misbehave": len(test_hostile_servers.BEHAVIOURS),
        "wrong values in a checkpoint's configuration": parameters(
            test_hostile_checkpoints, "test_a_wrong_value_is_named_before_the_weights_are_read"
        ),
        "chat templates that fail or never end": parameters(
            test_hostile_checkpoints, "test_a_template_that_never_ends_is_refused"
        ),
        "kinds of input that `make fuzz` makes up": fuzzed,
    }
    page = (ROOT / "docs/results/reliability.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (\d+) \|", page, re.MULTILINE)
    assert {what: int(count) for what, count in rows} == counts
