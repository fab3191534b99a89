"""A small fabricated study, made once, which tests that change files copy first; and a browser, started once."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.results import Results
from tests.browser import CHROMIUM, Page, browser
from tests.unit.synthetic_results import Study, write_small_study


@pytest.fixture(scope="session")
def synthetic_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Base model and three methods, two seeds, two benchmarks of 12 problems, 8 steps; read-only."""
    return write_small_study(tmp_path_factory.mktemp("study"), steps=8)


@pytest.fixture(scope="session")
def results(synthetic_study: Study) -> Results:
    return synthetic_study.read()


@pytest.fixture
def editable_study(synthetic_study: Study, tmp_path: Path) -> Study:
    """The same study to be changed by one test."""
    shutil.copytree(synthetic_study.root, tmp_path / "study")
    return Study(tmp_path / "study")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def page(chromium: Page) -> Page:
    """An empty page, without what those of other tests asked for and complained about."""
    chromium.call("Page.navigate", url="about:blank")
    chromium.wait("location.href === 'about:blank'")
    chromium.events.clear()
    return chromium
