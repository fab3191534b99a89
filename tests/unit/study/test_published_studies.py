"""The papers' studies beside their papers: what a study says of itself, and which verdicts its table can give."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.tables.published import compare_with_papers, read_reference
from rlvr.study.evidence import own_settings
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.unit.synthetic_results import full_size_results

PUBLISHED, SETTINGS = read_reference(REPOSITORY / "config/reference")
SOME = {"inside", "outside", "no interval"}
AS_FAR = {f"{verdict}, as far as published" for verdict in SOME}


def study_of(name: str, **changes: Any) -> Study:
    path = REPOSITORY / "config/papers" / name
    return Study.resolve(read_study_file(path) | changes, path.name)


def compared(name: str, arxiv: str) -> tuple[dict[str, Any], Sequence[Mapping[str, Any]]]:
    """A study's made-up results of full size beside its paper's numbers."""
    study = study_of(name)
    own = own_settings(study)
    sizes = {benchmark: loaded.entry.count for benchmark, loaded in study.benchmarks.items()}
    methods = {model: list(study.methods) for model in study.config.models}
    results = full_size_results(methods, sizes, study.config.evaluation.samples_per_problem)
    return own, [one for one in compare_with_papers(results, PUBLISHED, SETTINGS, own) if one["arxiv"] == arxiv]


@pytest.mark.parametrize(
    ("name", "arxiv", "number", "verdicts"),
    [
        ("delta.yaml", "2605.21467", 105, SOME),
        ("delta_ablations.yaml", "2605.21467", 103, SOME),
        ("delta_olmo3.yaml", "2605.21467", 16, SOME),
        ("delta_generalisation.yaml", "2605.21467", 13, SOME),
        ("dapo.yaml", "2503.14476", 2, AS_FAR),
        ("fipo.yaml", "2603.19835", 18, AS_FAR),
        ("cancellation.yaml", "2605.08666", 15, AS_FAR),
        ("cancellation_conditions.yaml", "2604.13088", 3, AS_FAR),
        ("directions.yaml", "2603.22117", 10, AS_FAR),
        ("directions_7b.yaml", "2603.22117", 27, AS_FAR),
    ],
)
def test_the_numbers_that_a_study_compares_with(name: str, arxiv: str, number: int, verdicts: set[str]) -> None:
    """On made-up results of full size, of the study's models, methods, benchmarks and samples."""
    own, found = compared(name, arxiv)
    comparing = [one for one in found if not one["differing"]]
    assert len(comparing) == number
    for one in comparing:
        verdict, _, rest = one["verdict"].partition(" by ")
        assert verdict + rest.lstrip("0123456789.") in verdicts
        assert own["models"][one["model"]] == one["published_model"]
    assert {one["verdict"] for one in found if one["differing"]} <= {"not comparable"}


def test_numbers_on_problems_that_nobody_has_stand_beside_ours_and_do_not_compare() -> None:
    _, found = compared("delta_generalisation.yaml", "2605.21467")
    beyond = [one for one in found if one["table"] == "appendix, OOD"]
    said = {one["benchmark"]: one["differing"] for one in beyond if "model" not in one["differing"]}
    assert said == {
        "gpqa_diamond": "",
        "MMLU-Pro(600)": "benchmark (MMLU-Pro(600), mmlu_pro_600)",
        "Avg(problem-weighted)": "benchmark (Avg(problem-weighted), gpqa_diamond, mmlu_pro_600)",
    }


def test_a_directory_does_not_name_a_model() -> None:
    models = read_study_file(REPOSITORY / "config/papers/dapo.yaml")["models"]
    assert own_settings(study_of("dapo.yaml"))["models"] == {"qwen2_5_32b": "Qwen2.5-32B"}
    entry = {key: value for key, value in models["qwen2_5_32b"].items() if key != "published_as"}
    study = study_of("dapo.yaml", models={"qwen2_5_32b": entry})
    assert own_settings(study)["models"] == {"qwen2_5_32b": None}
    assert study.model_title("qwen2_5_32b") == "Qwen2.5-32B" == Path(entry["path"]).name
    del entry["path"]
    fetched = study_of("dapo.yaml", models={"qwen2_5_32b": {**entry, "id": "Qwen/Qwen2.5-32B", "revision": "main"}})
    assert own_settings(fetched)["models"] == {"qwen2_5_32b": "Qwen2.5-32B"}


def test_a_model_s_changes_of_a_method_are_the_catalogue_s_entry_for_that_size() -> None:
    assert own_settings(study_of("fipo.yaml")).get("methods") == {"qwen2_5_math_7b": {"fipo": "fipo_symmetric_range"}}
    assert own_settings(study_of("directions_7b.yaml")).get("methods") == {}
