"""Two models' opinions of tokens: against whole distributions, autograd, and hand-made samples."""

import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

import rlvr_claims.compare
from evals.core.errors import UserError
from evals.core.files import fingerprint, read_json, read_jsonl, sha256_file, write_jsonl
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.run_spec import LocalRun
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from rlvr.tokens.table import MODEL_COLUMNS
from rlvr_claims.claims.update_direction import separation
from rlvr_claims.compare import ModelPair, _tokens, compare_checkpoints, over_likeliest, over_vocabulary
from rlvr_claims.policy import PolicySnapshot
from tests.commands import rlvr_bench

main = rlvr_bench("claims")


def logit_gradient_norm(probability: torch.Tensor, advantage: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    """Sum of the absolute derivatives of r A log pi with respect to the logits, 2 |r A| (1 - pi) (Lemma 3.1).

    Hence unlikely tokens move the policy most. Of an unclipped token at temperature 1.
    """
    return 2.0 * (ratio * advantage).abs() * (1.0 - probability)


@pytest.mark.parametrize(("advantage", "ratio"), [(1.5, 1.0), (-0.7, 1.2), (0.0, 3.0)])
def test_the_gradient_norm_lemma_by_autograd(advantage: float, ratio: float) -> None:
    """Of r A log pi with r held at its value, the logits' derivatives are r A (e_y - pi)."""
    logits = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    old = float(logits.detach().log_softmax(-1)[2]) - math.log(ratio)
    objective = advantage * torch.exp(logits.log_softmax(-1)[2] - old)
    found = torch.autograd.grad(objective, logits)[0].abs().sum()
    probability = logits.detach().softmax(-1)[2]
    expected = logit_gradient_norm(probability, torch.tensor(advantage).double(), torch.tensor(ratio).double())
    assert math.isclose(float(found), float(expected), rel_tol=1e-6, abs_tol=1e-12)


def of_transformers(snapshot: PolicySnapshot) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(snapshot.run.base / "checkpoint", dtype=torch.float32)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(dict(snapshot.model.named_parameters())[name])
    return model


@pytest.mark.parametrize("elements", [1, 1 << 24])
def test_a_pair_says_what_the_whole_distributions_say(
    snapshots: list[PolicySnapshot], monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    """However the tokens are cut into chunks."""
    monkeypatch.setattr(rlvr_claims.compare, "_CHUNK_ELEMENTS", elements)
    base, trained, temperature = snapshots[0].model, snapshots[1].model, 0.7
    tokens = snapshots[0].tokens.select(torch.arange(3))
    found = ModelPair(base, trained, temperature).compare(tokens)
    references = [of_transformers(snapshot) for snapshot in snapshots[:2]]
    place = 0
    for prompt, response in zip(tokens.prompts, tokens.responses, strict=True):
        logits = [model(torch.tensor([[*prompt, *response]])).logits[0].double() for model in references]
        q, p = ((each / temperature).log_softmax(-1).detach() for each in logits)
        for position, token in enumerate(response):
            row_q, row_p = q[len(prompt) + position - 1], p[len(prompt) + position - 1]
            expected = {
                "base_log_prob": row_q[token],
                "trained_log_prob": row_p[token],
                "base_entropy": -(row_q.exp() * row_q).sum(),
                "trained_entropy": -(row_p.exp() * row_p).sum(),
                "kl_trained_base": (row_p.exp() * (row_p - row_q)).sum(),
                "kl_base_trained": (row_q.exp() * (row_q - row_p)).sum(),
            }
            for name in MODEL_COLUMNS:
                assert math.isclose(float(found[name][place]), float(expected[name]), rel_tol=1e-3, abs_tol=1e-4), name
            place += 1


def test_two_likely_tokens_and_a_remainder_by_hand() -> None:
    """Halves, quarters and eighths: of four tokens the likeliest of either model are kept, the other two are one."""
    base, trained = [1 / 2, 1 / 4, 1 / 8, 1 / 8], [1 / 8, 5 / 8, 1 / 8, 1 / 8]
    logits = [torch.tensor([row]).log() + shift for row, shift in ((base, 3.0), (trained, -1.0))]
    found = over_likeliest(logits, torch.tensor([3]), 1)
    q, p = [1 / 2, 1 / 4, 1 / 4], [1 / 8, 5 / 8, 1 / 4]
    expected = {
        "base_log_prob": math.log(1 / 8),
        "trained_log_prob": math.log(1 / 8),
        "base_entropy": -sum(each * math.log(each) for each in q),
        "trained_entropy": -sum(each * math.log(each) for each in p),
        "kl_trained_base": sum(one * math.log(one / other) for one, other in zip(p, q, strict=True)),
        "kl_base_trained": sum(other * math.log(other / one) for one, other in zip(p, q, strict=True)),
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, abs=1e-6)


@given(
    st.lists(st.lists(st.floats(-8, 8, width=32), min_size=6, max_size=6), min_size=2, max_size=2), st.integers(0, 5)
)
def test_the_likeliest_tokens_say_no_more_than_all_and_more_of_them_say_more(
    rows: list[list[float]], chosen: int
) -> None:
    logits, token = [torch.tensor([row]).double() for row in rows], torch.tensor([chosen])
    exact = over_vocabulary(logits, token)
    before = {name: -1e-5 for name in MODEL_COLUMNS}
    for top in range(1, 7):
        found = over_likeliest(logits, token, top)
        for name in MODEL_COLUMNS:
            value, whole = float(found[name]), float(exact[name])
            if name.endswith("log_prob"):
                assert math.isclose(value, whole, abs_tol=1e-5)
            else:
                assert before[name] - 1e-5 <= value <= whole + 1e-5
                before[name] = value
    assert all(math.isclose(before[name], float(exact[name]), abs_tol=1e-5) for name in MODEL_COLUMNS[2:])


def test_separation_by_hand() -> None:
    """Of the pairs (1, 2), (1, 0), (3, 2), (3, 0) three have the first larger."""
    assert separation(np.array([1.0, 3.0]), np.array([2.0, 0.0])) == 0.25
    assert separation(np.array([2.0, 0.0]), np.array([1.0, 3.0])) == 0.25
    assert separation(np.ones(4), np.ones(3)) == 0.0
    assert separation(np.zeros(2), np.ones(3)) == 0.5
    assert math.isnan(separation(np.zeros(0), np.ones(3)))


@pytest.fixture
def sample_file(trained_run: Path, snapshots: list[PolicySnapshot], tmp_path: Path) -> Path:
    """The snapshot's rollouts as evaluation would have written them."""
    snapshot = snapshots[0]
    tokenizer = load_tokenizer(snapshot.run.base / "checkpoint")
    firsts = snapshot.rows.groupby(["group", "sample"], sort=False)["problem"].first().tolist()
    end = Checkpoint(snapshot.run.base / "checkpoint").end_token
    rows = [
        {
            "problem_id": problem,
            "sample": number,
            "text": tokenizer.decode(response, skip_special_tokens=True),
            "finish_reason": "stop" if response[-1] == end else "length",
        }
        for number, (problem, response) in enumerate(zip(firsts, snapshot.tokens.responses, strict=True))
    ]
    write_jsonl(tmp_path / "samples.jsonl", rows)
    return tmp_path / "samples.jsonl"


def test_checkpoints_are_compared_on_a_sample_file_and_a_killed_comparison_goes_on(
    trained_run: Path,
    snapshots: list[PolicySnapshot],
    sample_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, out = LocalRun.read(trained_run), tmp_path / "out"
    arguments = ["compare", "--base", str(run.base / "checkpoint"), "--trained", str(trained_run.parent / "checkpoint")]
    arguments += ["--problems", str(run.problems / "problems.jsonl"), "--samples", str(sample_file)]
    arguments += ["--prompt", run.prompt, "--batch-size", "5", "--out", str(out)]
    calls = 0
    original = ModelPair.compare

    def dying(self: ModelPair, tokens: object, top: int | None = None) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return original(self, tokens)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelPair, "compare", dying)
    assert main(arguments) == 130
    assert main(arguments) == 0
    batches = -(-len(snapshots[0].tokens.responses) // 5)
    assert calls == batches + 1
    frame = pd.read_parquet(out / "tokens.parquet")
    trained = Checkpoint(trained_run.parent / "checkpoint").model("cpu")
    base = Checkpoint(run.base / "checkpoint").model("cpu")
    expected = original(ModelPair(base, trained), snapshots[0].tokens)
    assert frame["token"].tolist() == snapshots[0].token_ids.tolist()
    for name in MODEL_COLUMNS:
        np.testing.assert_allclose(frame[name], expected[name].numpy(), atol=1e-4)
    # Asked for again, nothing is computed; with other samples, everything is.
    assert main(arguments) == 0
    assert calls == batches + 1
    write_jsonl(sample_file, read_jsonl(sample_file)[:5])
    assert main(arguments) == 0
    assert calls == batches + 2


def test_the_errorover_likeliest_tokens_is_reported_and_outlives_a_kill(
    trained_run: Path,
    sample_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = LocalRun.read(trained_run)
    arguments = ["compare", "--base", str(run.base / "checkpoint"), "--trained", str(trained_run.parent / "checkpoint")]
    arguments += ["--problems", str(run.problems / "problems.jsonl"), "--samples", str(sample_file)]
    arguments += ["--prompt", run.prompt, "--batch-size", "5"]
    assert main([*arguments, "--top", "0", "--out", str(tmp_path / "none")]) == 2
    assert "--top: is 0; accepted: 1 or more" in capsys.readouterr().err
    assert main([*arguments, "--out", str(tmp_path / "all")]) == 0
    assert main([*arguments, "--top", "999", "--out", str(tmp_path / "more")]) == 0
    kept, original = tmp_path / "kept", rlvr_claims.compare._frame

    def dying(*parts: object) -> pd.DataFrame:
        if (kept / "parts" / "00000000.parquet").is_file():
            raise KeyboardInterrupt
        return original(*parts)  # type: ignore[arg-type]

    monkeypatch.setattr(rlvr_claims.compare, "_frame", dying)
    assert main([*arguments, "--top", "2", "--out", str(kept)]) == 130
    monkeypatch.setattr(rlvr_claims.compare, "_frame", original)
    capsys.readouterr()
    assert main([*arguments, "--top", "2", "--out", str(kept)]) == 0
    exact, more, few = (pd.read_parquet(tmp_path / name / "tokens.parquet") for name in ("all", "more", "kept"))
    pd.testing.assert_frame_equal(exact, more)
    error = read_json(kept / "top_error.json")
    first = slice(0, error["tokens"])
    assert 0 < error["tokens"] < len(exact)
    for name in MODEL_COLUMNS:
        difference = np.abs(few[name][first].to_numpy(float) - exact[name][first].to_numpy(float))
        assert error["columns"][name]["mean_error"] == pytest.approx(difference.mean())
        assert error["columns"][name]["largest_error"] == pytest.approx(difference.max())
    assert error["columns"]["base_entropy"]["mean_error"] > 0
    assert f"--top 2: mean error in nats over {error['tokens']} tokens of the first batch" in capsys.readouterr().out
    assert "top_error.json" in verify_outputs(kept / "manifest.json", "token_comparison").outputs


def test_a_problem_that_is_not_there_is_refused(trained_run: Path, sample_file: Path, tmp_path: Path) -> None:
    run = LocalRun.read(trained_run)
    write_jsonl(sample_file, [{"problem_id": "x", "sample": 0, "text": "1", "finish_reason": "stop"}])
    base = run.base / "checkpoint"
    with pytest.raises(UserError, match="problem x is not in"):
        compare_checkpoints(
            base, base, run.problems / "problems.jsonl", "{problem}", sample_file, tmp_path / "o", 1.0, "cpu", 4
        )


def test_responses_are_compared_by_the_tokens_that_were_sampled(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first sample has other tokens than its text; the second one has those that its text gives."""
    run = LocalRun.read(trained_run)
    model, problems = run.base / "checkpoint", run.problems / "problems.jsonl"
    problem, end = read_jsonl(problems)[0]["id"], Checkpoint(model).end_token
    rows = [
        {"problem_id": problem, "sample": number, "text": text, "tokens": tokens, "finish_reason": "stop"}
        for number, (text, tokens) in enumerate([("1+2", 6), ("1+2", 4)])
    ]
    samples, sampled = tmp_path / "samples.jsonl", [5, 5, 5, 5, 5, end]
    write_jsonl(samples, rows)

    def tokens() -> list[list[int]]:
        found = _tokens(model, model, problems, "{problem}", "base", rows, samples)
        return [list(response) for response in found.responses]

    again = [*Checkpoint(model).tokenizer.encode("1+2", add_special_tokens=False).ids, end]
    assert tokens() == [again, again] and len(again) == 4
    assert "warning: " in (said := capsys.readouterr().out) and "1 of 2 responses (50.0%) become another number" in said
    beside = tmp_path / "token_ids.jsonl"
    write_jsonl(beside, [{"problem_id": problem, "sample": 0, "token_ids": sampled}])
    Manifest("samples", {}, hash_files(tmp_path, samples, beside), {}, "x").write(tmp_path / "manifest.json")
    assert tokens() == [sampled, again] and "warning" not in capsys.readouterr().out
    drawn_from = {"prompt_tokens_sha256": fingerprint("of another prompt, or of turns before it")}
    for inputs in ({str(problems): sha256_file(problems)}, {"more problems": "0" * 64}):
        Manifest("samples", inputs, hash_files(tmp_path, samples, beside), drawn_from, "x").write(
            tmp_path / "manifest.json"
        )
        with pytest.raises(UserError, match="give other prompts than") if str(problems) in inputs else nullcontext():
            assert tokens() == [sampled, again]
    beside.write_text("")
    with pytest.raises(UserError, match="bytes differ"):
        tokens()
    rows[0]["text_sha256"] = "a" * 64
    with pytest.raises(UserError, match="withholds the texts of a gated benchmark"):
        tokens()
