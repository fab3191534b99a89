"""The study that a rehearsal is: the rehearsed one's model, cluster and method, and little work."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from evals.core.errors import InvalidInput
from evals.core.files import write_json
from evals.core.manifest import Manifest
from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.checks import check
from rlvr.study import evaluation
from rlvr.study.rehearsal import rehearsal, report
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file

CONFIG = REPOSITORY / "config"
PAPERS = sorted(path.stem for path in (CONFIG / "papers").glob("*.yaml"))


def rehearsed(name: str, model: str | None = None, method: str | None = None) -> tuple[Study, Study]:
    """A study and its rehearsal."""
    study = Study.read(CONFIG / f"{name}.yaml")
    return study, Study.resolve(rehearsal(study, name, model, method), "rehearsal")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_s_study_is_rehearsed_on_every_model_on_its_own_cluster(paper: str) -> None:
    for model in read_study_file(CONFIG / f"papers/{paper}.yaml")["models"]:
        study, short = rehearsed(f"papers/{paper}", model)
        (run,) = short.trained_runs
        real, cut = (each.run_spec(run.run) for each in (study, short))
        kept = ("model", "dtype", "prompt", "prompt_form", "method", "seed")
        assert all(getattr(cut, key) == getattr(real, key) for key in kept)
        assert study.cluster(run.run) | {"checkpoint_interval": 1} == short.cluster(run.run)
        assert isinstance(cut, VerlRun) and isinstance(real, VerlRun)
        cluster = Cluster.parse(short.cluster(run.run), "cluster")
        check(cut, cluster, None)  # batches divide over the ranks
        assert cut.training.steps == 2 and cut.training.max_new_tokens == real.training.max_new_tokens
        assert cut.overrides == {**(real.overrides or {}), "actor_rollout_ref.rollout.ignore_eos": True}
        longest = (cut.training.max_prompt_tokens + cut.training.max_new_tokens) / cluster.sequence_parallel
        of_rank = cut.training.rollouts_per_update // cluster.data_parallel * longest
        assert of_rank >= 2 * (cluster.tokens_per_device - longest)  # two micro-batches of so many whole sequences
        assert 64 <= cut.training.rollouts_per_step < real.training.rollouts_per_step
        assert cut.training.updates_per_step == real.training.updates_per_step
        assert short.config.evaluation.samples_per_problem == 1 and len(short.benchmarks) == 1
        assert short.config.execution.sampling_python == study.config.execution.sampling_python


def test_a_model_s_and_a_method_s_own_settings_are_those_of_the_rehearsal() -> None:
    study, short = rehearsed("papers/directions_7b", method="low_probability")
    (run,) = short.trained_runs
    assert run.method == "low_probability" and short.config.reference_method == "low_probability"
    assert short.run_spec(run.run).method == study.run_spec(run.run).method


def test_a_laptop_study_is_rehearsed_too() -> None:
    study, short = rehearsed("config")
    assert list(short.methods) == [study.config.reference_method] and len(short.trained_runs) == 1
    (base,), (of_short,) = study.models_from_scratch.values(), short.models_from_scratch.values()
    training = base.training.model_copy(update={"stop_at": None})  # which needs validation problems
    assert of_short == base.model_copy(update={"training": training})


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("config", {"method": "nonsense"}, "--method: is 'nonsense'; accepted: dapo"),
        ("config", {"model": "nonsense"}, "--model: is 'nonsense'; accepted: skips"),
        ("evaluate_model", {}, "evaluate_model: methods: are none"),
    ],
)
def test_what_is_not_there_is_not_rehearsed(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        rehearsed(name, **options)
    assert str(error.value).startswith(said)


def test_what_was_measured_is_told(tmp_path: Path) -> None:
    content = rehearsal(Study.read(CONFIG / "papers/delta.yaml"), "delta.yaml", None, "delta")
    place = tmp_path / "results/runs/qwen3_8b_base-delta-s1"
    place.mkdir(parents=True)
    rows = {"step": [1, 2], "seconds_step": [31.5, 20.25], "sampler_difference_mean": [0.001, 0.002]}
    pd.DataFrame(rows).to_parquet(place / "metrics.parquet")
    Manifest("run", {}, {}, {}, "f", {"tokens_generated": 4096}).write(place / "manifest.json")
    write_json(
        tmp_path / "results/scores/aime_2024.json",
        {"scores": [{"run": "qwen3_8b_base-delta-s1", "average_at_k": 0.1}]},
    )
    lines = report(content, tmp_path)
    assert lines[0].startswith("qwen3_8b_base-delta-s1: 2 steps by verl, states saved, 4096 tokens")
    assert any(line.split() == ["seconds_step", "31.5", "20.25"] for line in lines)
    assert any(line.split() == ["sampler_difference_mean", "0.001", "0.002"] for line in lines)
    assert lines[-1] == "qwen3_8b_base-delta-s1 on aime_2024, one sample a problem: 10.0 %"


def test_what_brings_verl_is_handed_to_snakemake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    evaluation.run_study({"study": "short"}, tmp_path, 2, ["scores"], "conda")
    evaluation.run_study({"study": "short"}, tmp_path, 2)
    assert commands[0][-4:] == ["--cores", "2", "--sdm", "conda"] and "--sdm" not in commands[1]
