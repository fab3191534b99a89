"""The configuration files: what is accepted, and where and how a mistake is told."""

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
    assert canonical_json(parse(path, content).to_json()) == canonical_json(content)


VALIDATION = {"seed": 1, "count": 9, "every": 2, "samples_per_problem": 4}


SKIPPING = "models.skips.corpus.skipping"
HEADS = "models.tiny.architecture"
# File, changed key, value, key of the complaint, part of what is accepted or found.
REFUSED: list[tuple[str, str, Any, str, str]] = [
    ("config", "training.learning_rte", 1, "training", "steps, prompts_per_step"),
    ("config", "training.steps", 0, "training.steps", "at least 1"),
    ("config", "training.steps", "many", "training.steps", "a whole number"),
    ("config", "training.steps", 1.5, "training.steps", "a whole number"),
    ("config", "training.steps", True, "training.steps", "a whole number"),
    ("config", "training.steps", None, "training.steps", "a whole number"),
    ("config", "training.steps", REMOVED, "training", "lacks steps"),
    ("config", "training.learning_rate", 0, "training.learning_rate", "above 0"),
    ("config", "training.temperature", float("nan"), "training.temperature", "a finite number"),
    ("config", "seeds", [], "seeds", "at least 1"),
    ("config", "seeds", [1, 1], "seeds", "each value once"),
    ("config", "seeds", REMOVED, "", "lacks seeds"),
    ("config", "seeds.looks", [4, 2], "seeds.looks", "ascending numbers of seeds up to 15"),
    ("config", "seeds.looks", [2, 17], "seeds.looks", "ascending numbers of seeds up to 15"),
    ("config", "seeds.looks", [], "seeds.looks", "at least 1"),
    ("config", "seeds.looks", [1, 2], "seeds.looks.0", "at least 2"),
    ("config", "seeds.margin", 0, "seeds.margin", "above 0"),
    ("config", "seeds.look", 3, "seeds", "at_most, looks, margin"),
    ("config", "doses", {"stale": [0]}, "doses.stale.0", "at least 1"),
    ("config", "doses", {"top_p": [1.0]}, "doses.top_p.0", "below 1"),
    ("config", "doses", {"weights": ["int7"]}, "doses.weights.0", "int8, int4, int3"),
    ("config", "reference_method", "ppo", "reference_method", "dapo, grpo"),
    ("smoke", "methods", {}, "reference_method", "in a study without methods"),
    ("smoke", "methods", ["dapo", "delta"], "methods", "a mapping, such as {dapo: {}, delta: {}}"),
    ("smoke", "methods.delta", None, "methods.delta", "a mapping, such as {}"),
    ("config", "training.max_new_tokens", 256, "training.max_new_tokens", "at most 255"),
    ("config", "evaluation.max_new_tokens", 5000, "evaluation.max_new_tokens", "at most 255"),
    ("smoke", "controls", {"positive": "grpo", "negative": "delta"}, "controls.positive", "delta, dapo_query"),
    ("smoke", "controls", {"positive": "delta", "negative": "dapo"}, "controls.negative", "delta, dapo_query"),
    ("smoke", "controls", {"positive": "delta", "negative": "delta"}, "controls.negative", "another method"),
    ("smoke", "controls", {"positive": "delta"}, "controls", "lacks negative"),
    ("config", "methods.base", {}, "methods.base", "another name"),
    ("config", "methods.Dapo", {}, "methods.Dapo", "a to z"),
    ("config", "methods.dapo.training.steps", 0, "methods.dapo.training.steps", "at least 1"),
    ("config", "problems.prompt", "solve", "problems.prompt", "{problem} in it once"),
    ("config", "problems.prompt", "{problem}{problem}", "problems.prompt", "{problem} in it once"),
    ("config", "problems.kinds", [{"family": "sum", "operands": 2}], "problems.kinds.0.family", "chain, reverse"),
    ("config", "problems.source", "dapo_math_17k", "problems", "source, path, exclude, prompt"),
    ("config", "models", {}, "models", "at least 1"),
    ("sharpening", "models.tiny.source", "made", "models.tiny.source", "from_scratch, hugging_face"),
    ("sharpening", "models.tiny.training.tokens", "characters", "models.tiny.training.tokens", "words"),
    ("sharpening", "models.tiny.corpus.skipping", {"shares": [0.5]}, "models.tiny.corpus.skipping", "one of both"),
    ("config", SKIPPING, REMOVED, SKIPPING, "shares"),
    ("config", "models.skips.corpus.kinds", [{"family": "chain", "operands": 3}], SKIPPING, "worded alone"),
    ("sharpening", "models.tiny.corpus.shares", [1.0], "models.tiny.corpus.shares", "one share for each"),
    ("sharpening", "models.tiny.corpus.shares", [float("inf")], "models.tiny.corpus.shares.0", "a finite number"),
    ("sharpening", "models.tiny.architecture.head_dim", 3, "models.tiny.architecture.head_dim", "multiple of 2"),
    ("sharpening", f"{HEADS}.num_key_value_heads", 2, f"{HEADS}.num_key_value_heads", "a divisor"),
    ("config", "study", "../x", "study", "a name of a to z, 0 to 9 and _"),
    ("config", "study", "smoke\n", "study", "at most 64"),
    ("config", "study", "a" * 65, "study", "at most 64"),
    ("config", "benchmarks", ["a" * 300], "benchmarks.0", "at most 64"),
    ("config", "methods.a\n", {"extends": "dapo"}, "methods.a\n", "at most 64"),
    ("config", "seeds", [1000.0], "seeds.0", "a whole number"),
    ("config", "seeds", [2**53], "seeds.0", "at most 9007199254740991"),
    ("config", "training.steps", 10**30, "training.steps", "at most 9007199254740991"),
    ("config", "statistics.resamples", 10**30, "statistics.resamples", "at most 9007199254740991"),
    ("config", "training.learning_rate", 1e308, "training.learning_rate", "at most 1000000000000000"),
    ("config", "training.learning_rate", "1e-3", "training.learning_rate", "a number"),
    ("studies/selection", "title", "<script>alert(1)</script>", "title", "without < and >"),
    ("studies/selection", "title", "=HYPERLINK(1)", "title", "does not begin with ="),
    ("studies/selection", "title", "two\nlines", "title", "a line"),
    ("ladder_same_accuracy", "validation", REMOVED, "models.w48.training.stop_at", "a study with methods and"),
    ("ladder_same_accuracy", "models.w48.training.stop_at.every", 10**5, "models.w48.training.stop_at.every", "most"),
    ("config", "execution.device", "gpu", "execution.device", "cpu, cuda"),
    ("config", "execution.cluster", {"nodes": 1}, "execution.cluster", "lacks gpus_per_node, tokens_per_device"),
    ("config", "execution.training_python", "python", "execution.training_python", "none with engine local"),
    ("config", "training.sampling_backend", "server", "training.sampling_backend", "local, vllm"),
    ("config", "evaluation.top_p", 1.5, "evaluation.top_p", "at most 1"),
    ("config", "evaluation.top_p", 0, "evaluation.top_p", "above 0"),
    ("config", "evaluation.temperature", -1, "evaluation.temperature", "at least 0"),
    ("config", "evaluation.samples_per_problem", 0, "evaluation.samples_per_problem", "at least 1"),
    ("config", "evaluation.max_model_len", 0, "evaluation.max_model_len", "at least 2"),
    ("config", "execution.sampling_threads", 0, "execution.sampling_threads", "at least 1"),
    ("config", "diagnostics", {"method": "dapo"}, "diagnostics", "packages/rlvr-claims/README.md"),
    ("smoke", "decoding", None, "decoding", "packages/rlvr-claims/README.md"),
    ("papers/delta", "validation", VALIDATION, "validation", "none with engine verl"),
    ("config", "validation", {**VALIDATION, "count": 1}, "validation.count", "at least 2"),
    ("papers/delta", "execution.cluster", REMOVED, "execution", "lacks cluster"),
    ("papers/delta", "engine", REMOVED, "models.qwen3_14b_base.cluster", "none with engine local"),
    ("papers/delta", "models.qwen3_8b_base.methods", {"gspo": {}}, "models.qwen3_8b_base.methods.gspo", "delta"),
    ("papers/delta", "models.qwen3_8b_base.id", "a/b", "models.qwen3_8b_base", "path, or id and revision"),
    ("papers/delta", "models.qwen3_8b_base.dtype", "float8", "models.qwen3_8b_base.dtype", "auto, float32, bfloat16"),
    ("smollm2_smoke", "models.smollm2.system_prompt", "Think.", "models.smollm2.system_prompt", "would lack it; none"),
    ("smollm2_smoke", "models.smollm2.dtype", "auto", "models.smollm2.dtype", "local; float32, bfloat16, float16"),
    ("papers/delta", "models.qwen3_8b_base.head_dtype", "float32", "models.qwen3_8b_base.head_dtype", "local"),
    ("evaluate_model", "models.model.head_dtype", "float32", "models.model.head_dtype", "none, or backend local"),
    ("smollm2_smoke", "models.smollm2.head_dtype", "float16", "models.smollm2.head_dtype", "float32"),
    ("benchmarks/chain_3", "operands", 1, "operands", "at least 2"),
    ("benchmarks/chain_3", "gated", True, "", "unknown key gated"),
    ("benchmarks/chain_3", "source", "web", "source", "generated, hub, path"),
    ("benchmarks/aime_2024", "path", "x", "", "unknown key path"),
    ("benchmarks/aime_2024", "revision", "main", "revision", "40 hexadecimal digits"),
    ("benchmarks/aime_2024", "prompt", {"base": "{problem}"}, "prompt", "lacks chat"),
    ("benchmarks/aime_2024", "gated", True, "grader", "choice"),
    ("benchmarks/gpqa_diamond", "option_seed", REMOVED, "", "lacks option_seed"),
    ("benchmarks/livecodebench", "files", ["test.json"], "files.0", ".jsonl"),
    ("benchmarks/livecodebench", "tests_format", REMOVED, "", "lacks tests_format"),
    ("datasets/dapo_math_17k", "revision", None, "", "repository, revision and split, or none"),
    ("datasets/dapo_math_17k", "conflicts", [["a"]], "conflicts.0", "at least 2"),
    ("studies/selection", "score_at", [1.0], "score_at.0", "below 1"),
    ("studies/selection", "paper", "DelTA", "paper", "arXiv"),
    ("studies/selection", "folder", "selection", "folder", "studies/NAME"),
    ("evaluate_model", "score_at", [0.5], "score_at", "none"),
]  # fmt: skip


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
        parse(path, replaced(read_study_file(path), key, value))
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
