"""`rlvr-bench eval`: the study that a command line is."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from evals.core.errors import InvalidInput, UserError
from evals.core.files import write_json
from evals.core.manifest import Manifest
from evals.core.run_spec import Cluster, VerlRun
from rlvr.cli import main
from rlvr.engines.verl.checks import check
from rlvr.study import evaluation
from rlvr.study.catalogue import load_catalogue
from rlvr.study.evaluation import Distribution, Evaluated, Machine, Prompting, configuration
from rlvr.study.rehearsal import rehearsal, report
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.commands import rlvr_bench
from tests.unit.study.planned import jobs_of

REAL = ["aime_2025,hmmt_feb_2025", "gpqa_diamond"]


def content_of(evaluated: Evaluated, prompting: Prompting | None = None, **machine: Any) -> dict[str, Any]:
    return configuration(
        evaluated, prompting or Prompting(), Distribution(max_new_tokens=32768), Machine(device="cpu", **machine)
    )


def test_a_command_line_is_a_study(tmp_path: Path) -> None:
    examples = tmp_path / "examples.jsonl"
    examples.write_text('{"problem": "1+1", "solution": "2"}\n')
    prompting = Prompting(enable_thinking="false", system_prompt="Think.", few_shot=examples, stop=["Problem:"])
    evaluated = Evaluated("Qwen/Qwen3-8B", REAL, ["32", "gpqa_diamond=8"], revision="v1.0")
    jobs = jobs_of(content_of(evaluated, prompting, backend="vllm"))
    imported = jobs["import_model qwen3_8b"].params
    assert (imported["model"], imported["revision"]) == ("Qwen/Qwen3-8B", "v1.0")
    settings = jobs["sample qwen3_8b-base"].settings
    counts = {text for text in settings if ".samples_per_problem" in text}
    expected = {"aime_2025": 32, "hmmt_feb_2025": 32, "gpqa_diamond": 8}
    assert counts == {f"of.{name}.samples_per_problem: {count}" for name, count in expected.items()}
    assert {
        'few_shot: [{"problem": "1+1", "solution": "2"}]',
        'stop: ["Problem:"]',
        'system_prompt: "Think."',
        "chat_template_kwargs.enable_thinking: false",
    } <= settings


def test_directories_and_copies_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "My-Model.7B").mkdir()
    (tmp_path / "aime.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    evaluated = Evaluated("My-Model.7B", ["aime_2025"], ["1"], sources=["aime_2025=aime.jsonl"])
    content = content_of(evaluated)
    assert content["models"]["my_model_7b"]["path"] == str(tmp_path / "My-Model.7B")
    assert content["benchmark_sources"]["aime_2025"]["path"] == str(tmp_path / "aime.jsonl")
    assert content["evaluation"]["backend"] == "transformers"
    assert [run.run for run in Study.resolve(content).runs] == ["my_model_7b-base"]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--model", "no/such/model", "--model: is 'no/such/model'; accepted: a directory in Hugging Face format"),
        ("--benchmarks", "aime_1875", "'aime_1875' is no benchmark"),
        ("--benchmarks", ",", "--benchmarks: is empty"),
        ("--k", "0", "--k: is '0'; accepted: a number"),
        ("--k", "4,mmlu_pro", "--k: is 'mmlu_pro'; accepted: NAME=VALUE"),
        ("--k", "4,mmlu_pro=1", "evaluation.samples_of.mmlu_pro: is no benchmark of the study"),
        ("--top-p", "2", "--top-p: is 2"),
        ("--min-p", "-1", "--min-p: is -1"),
        ("--few-shot", "none.jsonl", "none.jsonl: no such file"),
        ("--system-prompt", "x", "is given with prompt_form base"),
    ],
)
def test_bad_options_end_in_one_line_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, said: str
) -> None:
    options = {"--model": "a/b", "--benchmarks": "chain_3", "--k": "2", "--prompt": "base", "--backend": "transformers"}
    options |= {"--out": str(tmp_path / "out"), option: value}
    assert rlvr_bench("eval")([f"{name}={given}" for name, given in options.items()]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_model_behind_an_address(tmp_path: Path) -> None:
    address = "http://127.0.0.1:8000/v1"
    evaluated = Evaluated("Org/Model-7B", ["chain_3"], ["2"], server=address, extra_body='{"top_k": -1}')
    content = configuration(evaluated, Prompting(), Distribution(max_new_tokens=32768), Machine())
    service = {"base_url": address, "model": "Org/Model-7B", "extra_body": {"top_k": -1}}
    jobs = jobs_of(content)
    assert jobs["reach_server model_7b"].params["service"].identity() == service
    sampled = jobs["sample model_7b-base"]
    assert 'backend: "server"' in sampled.settings and sampled.resources["gpu"] == 0
    assert "results/base/model_7b/manifest.json" in sampled.inputs
    evaluated = Evaluated("m", ["chain_3"], ["2"], server="127.0.0.1:8000")
    with pytest.raises(UserError, match=r"base_url: is '127\.0\.0\.1:8000'; accepted: an address"):
        Study.resolve(configuration(evaluated, Prompting(), Distribution(max_new_tokens=32768), Machine()), "eval")


def test_the_longest_response_is_that_of_the_benchmarks_files(tmp_path: Path) -> None:
    for names, longest in ((["chain_3"], 4096), (["chain_3", "aime_2025"], 32768)):
        given = Evaluated("a/b", names, ["2"]), Prompting(), Distribution.parse({}, ""), Machine(device="cpu")
        content = configuration(*given)
        assert content["evaluation"]["max_new_tokens"] == longest


@pytest.mark.parametrize("lacks", ["clone", "snakemake"])
def test_an_installed_wheel_runs_no_study(lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacks == "clone":
        monkeypatch.setattr(evaluation, "REPOSITORY", tmp_path)
    else:
        monkeypatch.setattr(evaluation, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="needs a clone and its environment"):
        evaluation.run_study({}, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


def test_a_revision_is_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--revision"):
        content_of(Evaluated(str(tmp_path), ["chain_3"], ["2"], revision="main"))


# The study that a rehearsal is: the rehearsed one's model, cluster and method, and little work.

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
    score = {"run": "qwen3_8b_base-delta-s1", "average_at_k": 0.1}
    write_json(tmp_path / "results/scores/aime_2024.json", {"scores": [score]})
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


# ``rlvr-bench methods``: everything of the catalogue is listed and explained, without torch.

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
