"""``rlvr-bench methods``: everything of the catalogue is listed and explained, without torch."""

import pytest

from rlvr.cli import main
from rlvr.study.catalogue import load_catalogue

CATALOGUE = load_catalogue()


def test_the_list_has_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_page_names_all_pieces_and_the_choices(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "show", name]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"{name}: {CATALOGUE[name]['title']} (arXiv {CATALOGUE[name]['paper']})")
    for label in ("Reward shaping", "Advantage", "Token weights", "Policy loss", "Mini-batches", "Batch selection"):
        assert f"\n{label}: " in page
    assert " ".join(CATALOGUE[name]["choices"].split())[:40] in " ".join(page.split())


def test_a_page_resolves_what_is_inherited(capsys: pytest.CaptureFixture[str]) -> None:
    main(["methods", "show", "delta_refinements_2"])
    page = " ".join(capsys.readouterr().out.split())
    assert "from delta, which extends dapo" in page
    assert "refinements = 2: refinement steps of the centroids" in page
    assert "epsilon_high = 0.28" in page
    assert "range_map = yes" in page


def test_an_unknown_name_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "show", "dfpo"]) == 2
    message = capsys.readouterr().err.strip()
    assert (
        message.startswith("error: 'dfpo' is no method of the catalogue; nearest: ") and "dfpo_min_replace" in message
    )
