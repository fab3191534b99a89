"""The rules' commands: each is one, because the shell of a job becomes its process (Snakefile)."""

import re
from pathlib import Path

import pytest

RULES = Path(__file__).resolve().parents[3] / "workflow" / "rules"
TEXTS = [path.read_text() for path in sorted(RULES.glob("*.smk"))]
COMMANDS = [
    command.strip() for text in TEXTS for command in re.findall(r"^ +shell:\n(?: +#.*\n)*((?: +f?\".*\n)+)", text, re.M)
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[:60])
def test_a_job_is_one_command(command: str) -> None:
    """Of several, only the first would be run."""
    words = command.replace("{{", "{").replace("}}", "}")
    assert words.startswith(('"python -m rlvr ', 'f"{SAMPLE} ', 'f"{TRAINER} '))
    assert not re.search(r"[;&|(]", re.sub(r"\{[^{}]*\}|\$\(dirname [^)]*\)|2>&1", "", words))


def test_every_command_is_seen() -> None:
    assert len(COMMANDS) == sum(len(re.findall("^ +shell:", text, re.M)) for text in TEXTS)
