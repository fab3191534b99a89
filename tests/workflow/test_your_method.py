"""The page docs/your_method.md: its files are written and its commands run as it says, on a copy of the smoke study."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.workflow.conftest import COPIED, REPOSITORY, Project, commands_of

_COMMANDS = r"(?:snakemake|make|rlvr-bench|printf|\.)"
_BLOCK = re.compile(rf"^```\w+\n# (\S+)\n(.*?)^```$|^    ({_COMMANDS} [^\n]*)$", re.MULTILINE | re.DOTALL)
_NOT_RUN = ("make smoke", ". .venv/bin/activate", "snakemake --configfile mine_in_full.yaml --cores 4")
_JUDGED = "rlvr-bench judge "  # tests/workflow/test_judge.py
_TABLE = "results/tables/main.md"


def steps(page: str) -> Iterator[tuple[str, str]]:
    """A file and its text, or ``""`` and a command, in the page's order."""
    for file, text, command in _BLOCK.findall(page):
        yield (file, text) if file else ("", command)


def test_the_page_leads_to_a_table_with_the_readers_own_methods(smoke_study: Project, tmp_path: Path) -> None:
    root, study = tmp_path / "project", tmp_path / "project/results/smoke"
    root.mkdir()
    for name in COPIED:
        source = smoke_study.root / name
        shutil.copytree(source, root / name) if source.is_dir() else shutil.copy2(source, root / name)
    for name in ("results", ".snakemake"):
        shutil.copytree(smoke_study.root / name, study / name, copy_function=shutil.copyfile)
    before = {path.parent.name: path.stat().st_mtime_ns for path in study.glob("results/runs/*/metrics.parquet")}
    environment = commands_of(root)
    commands = 0
    for file, text in steps((REPOSITORY / "docs/your_method.md").read_text()):
        if file:
            (root / file).write_text(text)
        elif text not in _NOT_RUN and not text.startswith(_JUDGED):
            commands += 1
            words = text.split()
            if words[0] == "snakemake" and "-n" not in words:
                words[1:1] = [_TABLE]  # figures, report and MLflow have tests of their own
            done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    assert commands == 4
    after = {path.parent.name: path.stat().st_mtime_ns for path in study.glob("results/runs/*/metrics.parquet")}
    assert {name for name in after if after[name] != before.get(name)} == {
        f"tiny-{method}-s{seed}" for method in ("dapo_narrow", "tanh_ratio") for seed in (1, 2)
    }
    table = (study / _TABLE).read_text()
    assert "DAPO, narrow clip range" in table and "Tanh ratio" in table
