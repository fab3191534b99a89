"""Studies that extend another: what is taken over, what is replaced, and mistakes in one line."""

from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import InvalidInput, UserError
from rlvr.study.study import Study
from rlvr.study.study_file import check_config_files, read_study, read_study_file

CONFIG = Path(__file__).resolve().parents[3] / "config"

FILES = {
    "whole.yaml": "{seeds: [1], training: {steps: 4, top_p: 0.9}, methods: {dapo: {}}, validation: {every: 1}}",
    "below/child.yaml": "{extends: ../whole.yaml, seeds: [3], training: {steps: 8}, methods: {sapo: {}}}",
    "below/grandchild.yaml": "{extends: child.yaml, validation: null, training: {top_p: null}}",
    "null.yaml": "evaluation: {max_model_len: null, top_p: 1.0}",
    "below/of_null.yaml": "{extends: ../null.yaml, evaluation: {top_p: 0.5}}",
    "circle.yaml": "extends: below/../circle_too.yaml",
    "circle_too.yaml": "extends: circle.yaml",
    "lost.yaml": "extends: nowhere.yaml",
    "number.yaml": "extends: 3",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "below/child.yaml",
            {"seeds": [3], "training": {"steps": 8, "top_p": 0.9}, "methods": {"sapo": {}}, "validation": {"every": 1}},
        ),
        ("below/of_null.yaml", {"evaluation": {"max_model_len": None, "top_p": 0.5}}),
        ("below/grandchild.yaml", {"seeds": [3], "training": {"steps": 8}, "methods": {"sapo": {}}}),
    ],
)
def test_settings_are_merged_and_sections_replaced(directory: Path, name: str, expected: dict[str, Any]) -> None:
    assert read_study_file(directory / name) == expected


def test_the_command_line_changes_what_was_taken_over(directory: Path) -> None:
    content = read_study([directory / "below" / "child.yaml"], {"training": {"steps": "9"}})
    assert content["training"] == {"steps": 9, "top_p": 0.9}


@pytest.mark.parametrize(
    ("name", "words"),
    [("circle.yaml", "which extends this file"), ("lost.yaml", "no such file"), ("number.yaml", "is 3")],
)
def test_a_parent_that_cannot_be_is_one_line(directory: Path, name: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_study_file(directory / name)
    assert caught.value.key == "extends" and words in caught.value.found


def test_a_model_extends_one_of_the_study_that_its_file_extends(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("{extends: smoke.yaml, models: {wide: {extends: tiny, architecture: {hidden_size: 96}}}}")
    content, tiny = read_study_file(file), read_study_file(CONFIG / "smoke.yaml")["models"]["tiny"]
    assert content["models"] == {"wide": {**tiny, "architecture": {**tiny["architecture"], "hidden_size": 96}}}
    file.write_text("{extends: smoke.yaml, models: {wide: {extends: huge}}}")
    with pytest.raises(InvalidInput, match=r"models\.wide\.extends: is 'huge'; accepted: tiny"):
        read_study_file(file)
    file.write_text("{extends: parent.yaml, models: {wide: {extends: tiny}}}")
    for models in ("5", "", "{tiny: 5}"):
        (tmp_path / "parent.yaml").write_text(f"models: {models}")
        with pytest.raises(InvalidInput, match=r"models\.wide\.extends: is 'tiny'; accepted: a model of the study"):
            read_study_file(file)


def test_extends_stands_in_a_file_alone(tmp_path: Path) -> None:
    content = read_study([CONFIG / "smoke.yaml"], {"extends": "config.yaml"})
    with pytest.raises(InvalidInput) as caught:
        Study.resolve(content, "smoke.yaml")
    assert caught.value.key == "extends"


@pytest.mark.parametrize("name", ["scores", "."])
def test_what_is_no_file_for_snakemake_is_told_in_a_line(directory: Path, name: str) -> None:
    """``snakemake --configfile FILE scores``: Snakemake takes the target for a second file."""
    with pytest.raises(UserError, match=r"no such file; --configfile takes every word|Is a directory"):
        check_config_files([directory / "whole.yaml", directory / name])
