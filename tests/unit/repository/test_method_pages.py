"""Every entry of the catalogue is explained on a page of docs/methods, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
METHODS = ROOT / "docs/methods"
ENTRIES = list(yaml.safe_load((ROOT / "config/methods.yaml").read_text()))
INDEX = (METHODS / "README.md").read_text()
ALL_PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("config/*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_of_the_catalogue_is_explained_on_a_page(entry: str) -> None:
    pages = [page.name for page in METHODS.glob("*.md") if f"`{entry}`" in page.read_text()]
    assert set(pages) - {"README.md"}, f"docs/methods: no page names `{entry}`"


def test_the_index_links_to_pages_that_exist() -> None:
    assert set(re.findall(r"\]\((\w+\.md)", INDEX)) <= {page.name for page in METHODS.glob("*.md")}


@pytest.mark.parametrize("page", sorted(METHODS.glob("*.md")), ids=lambda page: page.stem)
def test_code_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:\w+/)?\w+\.py)`", page.read_text())
    known = {path.relative_to(ROOT).as_posix() for root in ("rlvr", "tests") for path in (ROOT / root).rglob("*.py")}
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_headings_that_exist(page: Path) -> None:
    links = re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text())
    targets = [((page.parent / file) if file else page, anchor) for file, anchor in links]
    assert [(path.name, anchor) for path, anchor in targets if anchor not in anchors(path)] == []
