"""The configuration files: what is accepted, and where and how a mistake is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from evals.core.config.problem_sets import TrainingSet, parse_benchmark
from evals.core.config.reference import editor_schemas, reference_page
from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput
from evals.core.files import canonical_json
from evals.core.record import Settings
from evals.core.yaml_file import read_yaml
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.unit.study.planned import REMOVED, replaced

CONFIG = Path(__file__).resolve().parents[3] / "config"
PARSERS: dict[str, Callable[[Any, str], Settings]] = {
    "benchmarks": parse_benchmark, "datasets": TrainingSet.parse, "studies": StudyConfig.parse,
    "papers": StudyConfig.parse, "config": StudyConfig.parse,
}  # fmt: skip
FILES = sorted(
    path
    for path in CONFIG.rglob("*.yaml")
    if path.stem not in ("methods", "phenomena") and path.parent.stem != "reference"
)


def parse(path: Path, content: Any) -> Settings:
    return PARSERS[path.parent.stem](content, path.name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIG).as_posix())
def test_a_shipped_file_is_read_and_written_as_it_is(path: Path) -> None:
    """A run depends on these values byte for byte: 1 does not become 1.0, and no default is added."""
    content = read_study_file(path)
    written = parse(path, content).to_json()
    if "extends" in read_yaml(path):
        content, written = stated(content), stated(written)
    assert canonical_json(written) == canonical_json(content)


def stated(content: Any) -> Any:
    """The content without keys that are null: so a file takes back what the file that it extends has."""
    if isinstance(content, dict):
        return {key: stated(value) for key, value in content.items() if value is not None}
    return [stated(value) for value in content] if isinstance(content, list) else content


VALIDATION = {"seed": 1, "count": 9, "every": 2, "samples_per_problem": 4}


# File, changed key, value, key of the complaint, part of what is accepted or found.
REFUSED = [json.loads(line) for line in Path(__file__).with_name("mistakes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("key", "meant"),
    [("training.prompts_per_stp", "prompts_per_step"), ("methods.grop", "grpo"), ("methods.dabo", "dapo")],
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(key: str, meant: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Study.resolve(replaced(read_study_file(CONFIG / "config.yaml"), key, {}), "config.yaml")
    assert f"(did you mean {meant}?)" in str(caught.value)


@pytest.mark.parametrize(("file", "key", "value", "place", "words"), REFUSED)
def test_a_mistake_is_told_in_one_line_with_its_place(file: str, key: str, value: Any, place: str, words: str) -> None:
    path = CONFIG / f"{file}.yaml"
    with pytest.raises(InvalidInput) as caught:
        parse(path, replaced(read_study_file(path), key, REMOVED if value == "REMOVED" else value))
    assert caught.value.key == place
    assert words in f"{caught.value.found}; {caught.value.accepted}"
    assert str(caught.value).startswith(f"{path.name}: ") and "\n" not in str(caught.value)


def test_the_local_backend_samples_in_three_types() -> None:
    path = CONFIG / "evaluate_model.yaml"
    content = replaced(read_study_file(path), "evaluation.backend", "local")
    parse(path, replaced(content, "models.model.dtype", "float16"))
    with pytest.raises(InvalidInput, match="float32, bfloat16, float16, or backend transformers or vllm"):
        parse(path, replaced(content, "models.model.dtype", "auto"))


def test_a_validation_needs_problems_that_can_be_drawn() -> None:
    path = CONFIG / "config.yaml"
    published = {"source": "deepmath_103k", "prompt": "{problem}"}
    content = replaced(replaced(read_study_file(path), "problems", published), "validation", VALIDATION)
    with pytest.raises(InvalidInput, match="none with a published set"):
        parse(path, content)


def test_the_reference_of_all_keys_is_up_to_date() -> None:
    """Mend with: rlvr-bench reference > docs/configuration.md"""
    assert (CONFIG.parent / "docs" / "configuration.md").read_text() == reference_page()
    for file in reference_page().split("\n## ")[1:]:
        headings = [line for line in file.splitlines() if line.startswith("### ")]
        assert len(headings) == len(set(headings))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIG).as_posix())
def test_an_editor_accepts_a_shipped_file_and_no_unknown_key(path: Path) -> None:
    names = {"benchmarks": "benchmark", "datasets": "training_set", "studies": "study", "papers": "study"}
    name = names.get(path.parent.stem, "study")
    content = read_yaml(path)
    if "extends" in content:
        name = "extending_study"
    schema = Draft202012Validator(editor_schemas()[name])
    schema.validate(content)
    assert not schema.is_valid({**content, "unknown": 1})
