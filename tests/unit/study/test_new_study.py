"""``rlvr-bench init``: the study that it writes is accepted and planned, and mistakes are one line."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from evals.core.errors import UserError
from evals.core.files import write_json
from rlvr.study import new_study
from rlvr.study.new_study import write_new_study
from rlvr.study.study_file import read_study_file
from tests.commands import rlvr_bench

CONFIG = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip


COMMIT = "da87bfb608c14b7cf20ba1ce41287e8de496c0cd"


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A Hub that has no model until a test gives it one: model -> commit."""
    commits = dict[str, str]()
    monkeypatch.setattr(new_study, "newest_commit", commits.get)
    return commits


def test_the_hubs_commit_is_pinned(tmp_path: Path, hub: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    model, init = "Qwen/Qwen3-0.6B-Base", rlvr_bench("init")
    assert init([str(tmp_path / "a.yaml"), "--model", model]) == 0
    assert "no revision is pinned" in capsys.readouterr().out
    assert "revision" not in read_study_file(tmp_path / "a.yaml")["models"]["qwen3_0_6b_base"]
    hub[model] = COMMIT
    assert init([str(tmp_path / "b.yaml"), "--model", model]) == 0
    assert "no revision is pinned" not in capsys.readouterr().out
    assert read_study_file(tmp_path / "b.yaml")["models"]["qwen3_0_6b_base"]["revision"] == COMMIT


def test_a_hub_that_does_not_answer_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: 1 / 0)
    assert new_study.newest_commit("Qwen/Qwen3-0.6B") is None


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a chat model: its turns end with a token that ends its responses."""
    directory = tmp_path / "My Model-0.6B"
    write_tokenizer(directory, "<|im_end|>")
    return directory


def write_tokenizer(directory: Path, eos: str) -> None:
    """A checkpoint's files but for its weights, with turns that end with <|im_end|>."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)
    turn = "<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n"
    whole.chat_template = f"{{% for m in messages %}}{turn}{{% endfor %}}"
    whole.save_pretrained(directory)
    write_json(directory / "config.json", CONFIG | {"eos_token_id": whole.eos_token_id})


def test_a_base_model_with_a_template_is_given_plain_text(tmp_path: Path) -> None:
    """Its turns end with a token that ends no response: it would go on with turns that it makes up."""
    write_tokenizer(tmp_path / "base", "<|endoftext|>")
    for given, taken in ((None, "base"), ("chat", "chat")):
        study = write_new_study(tmp_path / f"{taken}.yaml", str(tmp_path / "base"), 1, 80, given)
        assert study.config.models["base"].prompt_form == taken


@pytest.mark.parametrize(
    ("gpus", "memory", "engine", "device", "tokens"),
    [(0, 80, "local", "cpu", 16384), (1, 80, "local", "cuda", 16384), (1, 24, "local", "cuda", 8192),
     (8, 80, "verl", "cuda", None)],
)  # fmt: skip
def test_a_new_study_is_that_of_the_machine(
    tmp_path: Path, gpus: int, memory: int, engine: str, device: str, tokens: int | None
) -> None:
    study = write_new_study(tmp_path / "mine.yaml", "Qwen/Qwen3-0.6B-Base", gpus, memory, None)
    assert (study.engine, study.config.execution.device) == (engine, device)
    assert study.config.training.get("micro_batch_tokens") == tokens
    assert study.config.models["qwen3_0_6b_base"].prompt_form == "base"
    assert len(study.trained_runs) == 6


def test_a_checkpoint_gives_prompt_form(tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rlvr_bench("init")([str(tmp_path / "mine.yaml"), "--model", str(checkpoint)]) == 0
    assert "6 runs; plan it with: snakemake -n" in capsys.readouterr().out
    content = read_study_file(tmp_path / "mine.yaml")
    assert content["models"]["my_model_0_6b"] == {
        "source": "hugging_face", "path": str(checkpoint), "prompt_form": "chat", "dtype": "bfloat16"
    }  # fmt: skip
    assert content["problems"]["prompt"].endswith("\\boxed{}.")


def test_a_new_study_overwrites_nothing_and_leaves_nothing_half_made(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    with pytest.raises(UserError, match=r"config\.json"):
        write_new_study(out, str(tmp_path), 1, 80, None)
    with pytest.raises(UserError):
        write_new_study(out, "no owner", 1, 80, None)
    assert not out.exists()
    out.write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        write_new_study(out, "Qwen/Qwen3-0.6B", 1, 80, None)
    assert out.read_text() == "mine"
