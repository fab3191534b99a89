"""The small random checkpoint of the generation tests, and a cache of datasets for one test alone."""

from pathlib import Path

import pytest

from tests.unit.generation.conftest import checkpoint

__all__ = ["checkpoint"]


@pytest.fixture
def datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory in which datasets keeps what it has read; a test without datasets is skipped."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
