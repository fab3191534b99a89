"""From configuration to resolved runs: what is accepted, what is refused and how, what identifies a run."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import InvalidInput, UserError
from rlvr.methods.method import compose
from rlvr.study.catalogue import load_catalogue, resolve_method
from rlvr.study.study import Study
from rlvr.study.study_file import fault_of_command, read_study, read_study_file
from tests.unit.study.planned import replaced, study_with

CONFIG = Path(__file__).resolve().parents[3] / "config"


@pytest.fixture
def config() -> dict[str, Any]:
    """The laptop study at a constant learning rate."""
    content: dict[str, Any] = read_study_file(CONFIG / "sharpening.yaml")
    del content["training"]["learning_rate_decay_from"]
    return content


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "smoke.yaml", "full.yaml", "thorough.yaml", "ladder.yaml", "real_benchmarks.yaml", "smollm2.yaml"],
)
def test_shipped_studies_are_accepted(name: str) -> None:
    study = Study.read(CONFIG / name)
    trainings = len(study.config.models) * len(study.methods) * len(study.config.training_seeds)
    assert len(study.trained_runs) == trainings
    assert len({run.run for run in study.runs}) == len(study.runs)
    for method in study.methods.values():
        compose(method, longest=64)


@pytest.mark.parametrize(
    ("name", "of", "looked_at", "count"), [("full", "config", 15, 15), ("thorough", "sharpening", 16, 54)]
)
def test_studies_of_all_seeds_only_add_seeds(name: str, of: str, looked_at: int, count: int) -> None:
    """So they continue where the study with looks stopped, and train nothing again."""
    shorter, longer = (read_study_file(CONFIG / f"{each}.yaml") for each in (of, name))
    design, seeds = shorter.pop("seeds"), longer.pop("seeds")
    assert seeds == list(range(1, count + 1)) and design["at_most"] == design["looks"][-1] == looked_at
    assert longer == shorter


@pytest.mark.parametrize(
    ("changes", "training", "words"),
    [
        (
            {"validation": {"seed": 9, "count": 20, "every": 3, "samples_per_problem": 4}},
            {"steps": 2},
            "validation.every: is 3; accepted: at most the steps that every training has, 2 of dapo on qwen",
        ),
        (
            {"checkpoint": {"best": {"benchmark": "chain_3", "k": 1, "every": 2}}},
            {"steps": 2},
            "checkpoint.best.every: is 2; accepted: less than the steps of every training, 2 of dapo on qwen",
        ),
        (
            {"score_at": [0.5]},
            {"steps": 2},
            "models.qwen.training.steps: is 2; accepted: none in a study with score_at",
        ),
        ({"doses": {"stale": [1]}}, {"sampler": {"stale": 1}}, "doses: are given beside models.qwen.training.sampler"),
    ],
)
def test_a_models_changes_are_checked(changes: dict[str, Any], training: dict[str, Any], words: str) -> None:
    existing = {"source": "hugging_face", "path": "models/qwen", "prompt_form": "base", "dtype": "float32"}
    models = {"qwen": {**existing, "training": training}}
    content = study_with("smoke.yaml", models=models, methods={"dapo": {}}, controls=None, **changes)
    with pytest.raises(UserError) as caught:
        Study.resolve(content, "smoke.yaml")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("training.updates_per_step", 64, "at most prompts_per_step, 16"),
        ("training.micro_batch_size", None, "micro_batch_size"),
        ("training.max_prompt_tokens", 5, "unknown key max_prompt_tokens"),
        ("validation.every", 20, "at most the steps that every training has, 12 of dapo_half_steps"),
        ("benchmarks", ["aime"], "aime_2024"),
        ("methods.ppo", {}, "grpo"),
        ("methods.delta", {"token_weights": {"lambda_max": 0.5}}, "token_weights.lambda_max: is 0.5"),
        ("methods.delta", {"loss": {"name": "clipt"}}, "cispo"),
        ("problems", {"source": "gsm8k", "prompt": "{problem}"}, "deepmath_103k"),
        ("benchmark_sources", {"chain_3": {"path": "x"}}, "a benchmark that is read from the Hub or a file"),
    ],
)
def test_what_does_not_fit_is_one_line_with_its_place(config: dict[str, Any], key: str, value: Any, words: str) -> None:
    content = replaced(config, key, value)
    if value is None:
        del content["training"]["micro_batch_size"]
        key = "training"
    if key == "problems":
        del content["validation"]  # which a published training set does not have
    with pytest.raises(UserError) as caught:
        Study.resolve(content, "study.yaml")
    assert str(caught.value).startswith(f"study.yaml: {key.removesuffix('.max_prompt_tokens')}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_reach_the_run_and_defaults_are_left_out(config: dict[str, Any]) -> None:
    before = Study.resolve(config).resolved_run("tiny-delta-s1")
    after = Study.resolve(replaced(config, "methods.delta", {"token_weights": {"lambda_max": 1.5}}))
    assert after.resolved_run("tiny-delta-s1")["method"]["token_weights"]["lambda_max"] == 1.5
    assert "lambda_max" not in before["method"]["token_weights"]  # what is left at its default is no part of a run
    assert after.resolved_run("tiny-dapo-s1") == Study.resolve(config).resolved_run("tiny-dapo-s1")
    assert compose(before["method"]) == compose(Study.resolve(config).methods["delta"])


def test_every_run_is_resolved_with_its_own_seed_method_and_version(config: dict[str, Any]) -> None:
    study = Study.resolve(config)
    for run in study.trained_runs:
        resolved = study.resolved_run(run.run)
        assert (resolved["run"], resolved["model"], resolved["seed"]) == (run.run, run.model, run.seed)
        assert run.run == f"{run.model}-{run.method}-s{run.seed}"
        assert resolved["method"]["version"] == study.methods[run.method]["version"]
        assert resolved["method"]["loss"]["name"] == study.methods[run.method]["loss"]["name"]
        assert resolved["training"] == config["training"] | config["methods"][run.method].get("training", {})


def test_extending_merges_by_piece_and_circles_are_refused() -> None:
    catalogue = load_catalogue()
    wide = resolve_method("wide", {"extends": "delta", "token_weights": {"lambda_min": 0.5}}, catalogue, "study.yaml")
    weights = wide["token_weights"]
    assert (wide["title"], weights["lambda_min"], weights["lambda_max"]) == ("wide", 0.5, 1.2)
    assert wide["loss"] == resolve_method("dapo", {}, catalogue, "study.yaml")["loss"]
    sapo_loss = resolve_method("delta", {"loss": {"name": "sapo"}}, catalogue, "study.yaml")["loss"]
    assert "dual_clip" not in sapo_loss
    circle = {"a": {"extends": "b"}, "b": {"extends": "a"}}
    with pytest.raises(UserError, match="a -> b -> a"):
        resolve_method("a", {}, circle, "study.yaml")


def test_planning_and_what_needs_no_model_import_no_torch() -> None:
    """Snakemake plans in a moment, and a job whose samples are made only writes them, if nothing there loads torch."""
    modules = [f"rlvr.study.{path.stem}" for path in (CONFIG.parent / "rlvr/study").glob("*.py")]
    modules += ["evals.grading", "evals.generation.evaluate", "rlvr.cli.training", "rlvr.runs.job"]
    program = f"import sys, {', '.join(modules)}; from rlvr.cli import main; main(['methods', 'show', 'delta'])"
    program += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_training_seeds_start_from_the_base_models_in_turn(config: dict[str, Any]) -> None:
    config["models"]["tiny"]["bases"] = 3
    config["seeds"] = [1, 2, 3, 4, 6]
    study = Study.resolve(config)
    of_dapo = [run for run in study.trained_runs if run.method == "dapo"]
    assert [run.base for run in of_dapo] == [1, 2, 3, 1, 3]
    assert str(study.run_spec("tiny-dapo-s6").base) == "results/base/tiny-3"
    bases = [run for run in study.runs if run.seed is None]
    assert [(run.run, study.checkpoint(run.run)) for run in bases] == [
        (f"tiny-base-{number}", f"results/base/tiny-{number}") for number in (1, 2, 3)
    ]
    first, _, third = study.scratch_bases.values()
    assert (third.corpus.seed, third.training.seed) == (first.corpus.seed + 2, first.training.seed + 2)
    assert study.scratch_bases.keys() == {"tiny-1", "tiny-2", "tiny-3"}


# Studies that extend another: what is taken over, what is replaced, and mistakes in one line.

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
    fault = fault_of_command(["--configfile", str(directory / "whole.yaml"), str(directory / name)])
    assert re.match(r"error: .*(no such file; --configfile takes every word|Is a directory)", fault)
