"""`rlvr-bench eval`: the study that a command line is."""

from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import UserError
from rlvr.study.evaluation import Distribution, Evaluated, Machine, Prompting, configuration
from rlvr.study.study import Study
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
        (
            "--model",
            "no/such/model",
            "--model: is 'no/such/model'; accepted: a directory in Hugging Face format",
        ),
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


def test_a_revision_is_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--revision"):
        content_of(Evaluated(str(tmp_path), ["chain_3"], ["2"], revision="main"))
