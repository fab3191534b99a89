"""A small fabricated study, made once: tests that change files copy it first."""

import shutil
from pathlib import Path

import pytest

from tests.unit.synthetic_results import Study, write_small_study


@pytest.fixture(scope="session")
def synthetic_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Base model and three methods, two seeds, two benchmarks of 12 problems, 8 steps; read-only."""
    return write_small_study(tmp_path_factory.mktemp("study"), steps=8)


@pytest.fixture
def editable_study(synthetic_study: Study, tmp_path: Path) -> Study:
    """The same study to be changed by one test."""
    shutil.copytree(synthetic_study.root, tmp_path / "study")
    return Study(tmp_path / "study")
