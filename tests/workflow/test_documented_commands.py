"""Commands of pages that work on files which are there run as printed, in the directory that the page is about."""

import re
import shlex

import pytest

from rlvr.cli import main
from tests.workflow.conftest import REPOSITORY, Project

COMMAND = re.compile(r"^ +rlvr-bench (.*)$", re.MULTILINE)
OF_OTHER_FILES = ("compare 'grpo-s*/200.jsonl'", "families ")  # a reader's own, and of two studies


def commands_of(page: str) -> list[str]:
    commands = COMMAND.findall((REPOSITORY / page).read_text())
    return [command for command in commands if not command.startswith(OF_OTHER_FILES)]


@pytest.mark.parametrize("command", commands_of("docs/other_tools.md"))
def test_commands_on_logs_of_other_tools_run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main(shlex.split(command, comments=True)) == 0


def test_commands_on_the_results_of_a_study_run(smoke_study: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(smoke_study.root)
    commands = commands_of("docs/evaluation.md")
    assert len(commands) > 7
    assert {command: main(shlex.split(command, comments=True)) for command in commands} == dict.fromkeys(commands, 0)
