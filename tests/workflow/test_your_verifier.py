"""The page docs/your_verifier.md: its files are written and its commands run as it says."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.workflow.conftest import REPOSITORY, Project, commands_of
from tests.workflow.test_your_method import steps

_SHOWN = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_leads_to_rewards_and_to_a_plan(project_copy: Project, tmp_path: Path) -> None:
    root, page = project_copy.root, (REPOSITORY / "docs/your_verifier.md").read_text()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "rlvr-bench").write_text(f'#!/bin/sh\nexec {sys.executable} -m rlvr "$@"\n')
    (programs / "rlvr-bench").chmod(0o755)
    environment = commands_of(root, programs)
    said = []
    for file, text in steps(page):
        if file:
            (root / file).write_text(text)
            continue
        done = subprocess.run(text, shell=True, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout + done.stderr)
    assert len(said) == 3
    shown = _SHOWN.search(page)
    assert shown is not None
    rows, expected = ([json.loads(line) for line in text.splitlines()] for text in (said[1], shown[1]))
    assert [{**row, "seconds": 0} for row in rows] == [{**row, "seconds": 0} for row in expected]
    assert re.search(r"^try_verifier +1$", said[2], re.MULTILINE), said[2]

    target, study = "results/verifiers/train/manifest.json", root / "my_study.yaml"
    project_copy.run(target, config=study)
    with open(root / "my_verifier.py", "a") as verifier:
        verifier.write("# edited\n")
    assert "try_verifier train" in project_copy.planned(study, target)
