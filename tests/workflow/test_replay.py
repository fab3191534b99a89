"""Replays: runs of a submission are made again from nothing, and a forged checkpoint is found."""

import json
from itertools import count
from pathlib import Path

import pytest

from evals.core.files import fingerprint, sha256_file, write_json
from rlvr_board.submission import draw_cells
from tests.commands import run_command
from tests.workflow.conftest import Project

FORGED = "tiny-delta-s1"


def forge(results: Path, path: Path) -> None:
    """Change a byte of a file, and every manifest on the way, as somebody would who wants ``verify`` to pass."""
    content = bytearray(path.read_bytes())
    changed = {sha256_file(path): ""}
    content[-1] ^= 1
    path.write_bytes(content)
    changed = dict.fromkeys(changed, sha256_file(path))
    while changed:
        before, now = changed.popitem()
        for manifest in results.rglob("*manifest.json"):
            text = manifest.read_text()
            if before in text:
                was = sha256_file(manifest)
                rest = json.loads(text.replace(before, now))
                rest.pop("sha256")
                write_json(manifest, rest | {"sha256": fingerprint(rest)})
                changed[was] = sha256_file(manifest)


def test_a_replay_finds_a_forgery(finished_copy: Project, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = finished_copy.root / "results"
    forge(results, results / "runs" / FORGED / "checkpoint/model.safetensors")
    assert run_command("verify", finished_copy.root) == 0
    file = tmp_path / "study.json"
    assert run_command("submission", finished_copy.root, "--out", file) == 0
    cells = list(json.loads(file.read_text())["cells"])
    seed = next(str(n) for n in count() if draw_cells(cells, 2, str(n))[1] == FORGED)
    honest = draw_cells(cells, 2, seed)[0]
    capfd.readouterr()
    assert run_command("replay", file, "--cells", 2, "--seed", seed, "--cores", 1) == 2
    said = capfd.readouterr()
    assert f"{honest}: the same bytes in 9 files" in said.out and "made again: 2 of 6 cells; " in said.out
    error = said.err.splitlines()[-1]
    assert error.startswith(f"error: not what the study says: 1 of 2 cells: {FORGED}: ")
    assert f"runs/{FORGED}/checkpoint/model.safetensors has other bytes here" in error
