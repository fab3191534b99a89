"""The table of two checkpoints: what grades and the kind of problem add to it, and what does not belong together."""

import os
from pathlib import Path

import pandas as pd
import pytest
from transformers import GraniteConfig, GraniteForCausalLM

from evals.core.errors import UserError
from evals.core.files import read_json, read_jsonl, sha256_file, write_json, write_jsonl
from evals.core.manifest import Manifest, hash_files
from evals.generation.checkpoint import load_tokenizer
from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.engines.local.policy import TokenBatch
from rlvr.runs.state import save_checkpoint
from rlvr.tokens.table import COMPARISON_COLUMNS, read_comparison
from rlvr_claims.compare import ModelPair, compare_checkpoints
from tests.claims.checkpoint_pair import ARCHITECTURE, SAMPLES, Pair, make_pair
from tests.commands import rlvr_bench
from tests.unit.engine.test_memory import locks

__all__ = ["locks"]
main = rlvr_bench("claims")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path / "pair")


def test_grades_give_every_token_its_response_s_reward_and_cost_no_forward_pass(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = pair.compared(tmp_path / "out", graded=False)
    plain, identity = read_comparison(out), read_json(out / "manifest.json")["fingerprint"]
    assert set(plain) == {*COMPARISON_COLUMNS, "token_class"}
    monkeypatch.setattr(ModelPair, "compare", None)
    graded = read_comparison(pair.compared(out))
    pd.testing.assert_frame_equal(graded.drop(columns="reward"), plain)
    right = {(problem, sample): correct for problem, sample, *_, correct in SAMPLES}
    for row in graded.to_dict("records"):
        assert row["reward"] == float(right[row["problem"], row["sample"]])
    manifest = read_json(out / "manifest.json")
    assert str(pair.grades) in manifest["inputs"]
    assert manifest["fingerprint"] != identity
    # And without them they are gone again.
    assert "reward" not in read_comparison(pair.compared(out, graded=False))


def test_tokens_of_generated_problems_have_their_classes(pair: Pair, tmp_path: Path) -> None:
    frame = read_comparison(pair.compared(tmp_path / "out"))
    first = frame[(frame["problem"] == "one") & (frame["sample"] == 0)]
    assert first["text"].tolist() == ["3", "+", "4", "=", "7", "\n", "\\boxed{", "7", "}", "<|end|>"]
    expected = "operand operator operand format result format format answer format format"
    assert first["token_class"].tolist() == expected.split()
    # A response's first line is not the rest of the one before it, which was cut off at "2*4=".
    last = frame[(frame["problem"] == "two") & (frame["sample"] == 1)]
    assert last["token_class"].iloc[0] == "operand"
    rows = read_jsonl(pair.directory / "problems.jsonl")
    write_jsonl(pair.directory / "problems.jsonl", [{**rows[0], "family": "aime_2024"}, rows[1]])
    assert "token_class" not in read_comparison(pair.compared(tmp_path / "other"))


def test_grades_that_are_not_of_these_samples_are_refused(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = pair.arguments(tmp_path / "out", "--grades", str(pair.grades))
    rows = read_jsonl(pair.grades)

    def refusal(changed: list[dict[str, object]]) -> str:
        write_jsonl(pair.grades, changed)
        assert main(arguments) == 2
        return capsys.readouterr().err

    assert "has no grade of problem one, sample 0" in refusal(rows[:-1])
    assert "problem two, sample 1: has two grades" in refusal([*rows, rows[0]])
    assert "correct: is 1; accepted: true or false" in refusal([{**rows[0], "correct": 1}, *rows[1:]])
    write_jsonl(pair.grades, rows)
    samples = pair.directory / "samples.jsonl"
    manifest = pair.directory / "manifest.json"
    outputs = hash_files(pair.directory, pair.grades)
    Manifest("grades", {"elsewhere/samples.jsonl": "0" * 64}, outputs, {}, "").write(manifest)
    assert main(arguments) == 2
    assert f"{pair.grades}: are not the grades of {samples}" in capsys.readouterr().err
    Manifest("grades", {"elsewhere/samples.jsonl": sha256_file(samples)}, outputs, {}, "").write(manifest)
    assert main(arguments) == 0


def test_a_chat_model_s_prompt_and_end_are_its_own(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The template of a chat that only says who speaks; <|unknown|> ends a turn there, and has a later id."""
    arguments = pair.arguments(tmp_path / "out", "--prompt-form", "chat", "--batch-size", "4")
    assert main(arguments) == 2
    assert "has no chat template" in capsys.readouterr().err
    (pair.directory / "trained" / "chat_template.jinja").write_text("a{{ messages[0].content }}b")
    config = pair.directory / "trained" / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"eos_token": "<|end|>"', '"eos_token": "<|unknown|>"'))
    ends = [load_tokenizer(pair.directory / "trained").token_to_id(name) for name in ("<|end|>", "<|unknown|>")]
    write_json(pair.directory / "trained" / "generation_config.json", {"eos_token_id": ends})
    seen: list[TokenBatch] = []

    def note(self: ModelPair, tokens: TokenBatch, top: int | None = None) -> None:
        seen.append(tokens)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelPair, "compare", note)
        assert main(arguments) == 130
    batch = seen[0]
    tokenizer = load_tokenizer(pair.directory / "trained")
    assert tokenizer.decode(batch.prompts[0], skip_special_tokens=False).startswith("aCompute 3+4")
    assert tokenizer.decode(batch.prompts[0], skip_special_tokens=False).endswith("\nb")
    assert tokenizer.id_to_token(batch.responses[0][-1]) == "<|unknown|>"
    assert tokenizer.id_to_token(batch.responses[2][-1]) == "="


def test_a_model_whose_logits_are_not_its_head_s_is_refused(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Granite divides them; its hidden states and head alone would give other log-probabilities."""
    tokenizer = build_tokenizer()
    for scaling, answer in ((1.0, 0), (4.0, 2)):
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        sizes = {name: ARCHITECTURE[name] for name in names}
        config = GraniteConfig(**sizes, vocab_size=len(tokenizer), logits_scaling=scaling, eos_token_id=1)
        save_checkpoint(GraniteForCausalLM(config), tokenizer, pair.directory / "trained")
        assert main(pair.arguments(tmp_path / f"out {scaling}")) == answer
    assert "trained: its logits are not those of its language-model head alone" in capsys.readouterr().err


def test_options_and_pairs_that_do_not_fit_are_one_line(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def refusal(*options: str) -> str:
        assert main(pair.arguments(out, *options)) == 2
        # transformers may have shown that it loads weights.
        return next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))

    assert "--batch-size: is 0; accepted: 1 or more" in refusal("--batch-size", "0")
    assert "--temperature: is 0.0; accepted: above 0" in refusal("--temperature", "0")
    tokenizer, wide = build_tokenizer(), {**ARCHITECTURE, "tie_word_embeddings": False}
    model = initial_model(wide, tokenizer, 0)
    model.resize_token_embeddings(64)
    save_checkpoint(model, tokenizer, pair.directory / "trained")
    assert "have logits of 43 and of 64 tokens" in refusal()
    rows = read_jsonl(pair.directory / "samples.jsonl")
    write_jsonl(pair.directory / "samples.jsonl", [*rows, rows[0]])
    assert "has a sample of one problem and number twice" in refusal()
    (pair.directory / "trained" / "model.safetensors").unlink()
    write_jsonl(pair.directory / "samples.jsonl", rows)
    assert "holds no .safetensors file" in refusal()


def test_another_chat_template_is_another_comparison(pair: Pair, tmp_path: Path) -> None:
    template, out = pair.directory / "trained" / "chat_template.jinja", tmp_path / "out"
    found = []
    for text in ("{{ messages[0].content }}", "a{{ messages[0].content }}"):
        template.write_text(text)
        assert main(pair.arguments(out, "--prompt-form", "chat")) == 0
        found.append(read_comparison(out)["base_log_prob"])
    assert not found[0].equals(found[1])


def test_a_comparison_takes_a_gpu_that_is_free(locks: Path, tmp_path: Path) -> None:
    pair = make_pair(tmp_path / "pair")
    with pytest.raises(UserError, match="device: cuda was asked for, but torch sees no GPU; accepted here: cpu"):
        files = pair.directory / "problems.jsonl", pair.directory / "samples.jsonl"
        compare_checkpoints(
            pair.directory / "base",
            pair.directory / "trained",
            files[0],
            "{problem}",
            files[1],
            tmp_path / "out",
            device="cuda",
        )
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
