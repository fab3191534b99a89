"""Few-shot and system prompts, stop strings, top-k and min-p: what they do, and that without them nothing changes."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.core.errors import InvalidInput
from evals.core.files import read_jsonl
from evals.core.manifest import read_manifest
from evals.core.sampling import SamplingParameters
from evals.generation import evaluate, sampler
from evals.generation.backend import BackendSettings, Request, load_backend
from evals.generation.chat import encoded_again
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import make_plan
from evals.generation.sampler import draw_tokens
from tests.stages import sample_benchmark
from tests.unit.generation import conftest

SHOWN = [{"problem": "1+1", "solution": "2"}, {"problem": "2+2", "solution": "4"}]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}0{% endif %}"
)


settings_of = partial(conftest.settings_of, prompt="Q{problem}=", max_new_tokens=24, max_model_len=128)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    return conftest.write_problems(tmp_path / "problems", [f"{n}+3" for n in range(8)])


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Checkpoint:
    directory = shutil.copytree(checkpoint, tmp_path / "model")
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return Checkpoint(directory)


def test_prompts_are_put_together(model: Checkpoint, problems: Path) -> None:
    """Of characters that the tokenizer lacks there is nothing to see: roles and Q are unknown tokens."""
    tokens = model.tokenizer

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokens.encode(text, add_special_tokens=False).ids)

    plans = {
        "Q0+3=": settings_of(),
        "Q1+1=2\n\nQ2+2=4\n\nQ0+3=": settings_of(few_shot=SHOWN),
        "s:7;u:Q1+1=;a:2;u:Q2+2=;a:4;u:Q0+3=;0": settings_of(
            few_shot=SHOWN, system_prompt="7", chat_template_kwargs={"enable_thinking": False}, prompt_form="chat"
        ),
        "u:Q0+3=;": settings_of(prompt_form="chat"),
    }
    for text, settings in plans.items():
        assert make_plan([model], problems, settings).prompts[0] == ids(text)


def test_a_model_without_a_longest_sequence_has_the_room_that_is_asked_for(model: Checkpoint, problems: Path) -> None:
    path = model.directory / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key != "max_position_embeddings"}
    path.write_text(json.dumps(config))
    plan = make_plan([Checkpoint(model.directory)], problems, settings_of(max_model_len=None))
    assert set(plan.room) == {24} and plan.context_length == max(map(len, plan.prompts)) + 24


def test_a_setting_that_is_left_out_leaves_the_samples_what_they_were(model: Checkpoint, problems: Path) -> None:
    plan = make_plan([model], problems, settings_of())
    assert not {"stop", "few_shot", "system_prompt", "chat_template_kwargs", "top_k", "min_p"} & set(plan.parameters)
    given = [{"stop": ["7"]}, {"few_shot": SHOWN}, {"top_k": 3}, {"min_p": 0.1}]
    identities = {make_plan([model], problems, settings_of(**each)).identity for each in given} | {plan.identity}
    assert len(identities) == 5


def test_what_a_plain_prompt_does_not_take_is_refused() -> None:
    for key, value in {"system_prompt": "7", "chat_template_kwargs": {"enable_thinking": True}}.items():
        with pytest.raises(InvalidInput) as caught:
            settings_of(**{key: value})
        assert caught.value.key == key and caught.value.accepted == "prompt_form chat"
    with pytest.raises(InvalidInput, match="stop"):
        settings_of(stop=[""])


@pytest.mark.parametrize("backend", ["local", "transformers"])
def test_a_stop_string_is_cut_off(checkpoint: Path, problems: Path, tmp_path: Path, backend: str) -> None:
    def sample(name: str, stop: list[str]) -> list[dict[str, Any]]:
        settings = settings_of(backend=backend, stop=stop, samples_per_problem=4)
        sample_benchmark([Checkpoint(checkpoint)], problems, settings, tmp_path / name)
        return read_jsonl(tmp_path / name / "samples.jsonl.bz2")

    whole, stopped = sample("whole", []), sample("stopped", ["3", "+1"])
    cut = 0
    for one, other in zip(whole, stopped, strict=True):
        ends = [place for stop in ("3", "+1") if (place := one["text"].find(stop)) >= 0]
        if not ends:
            assert other == one
            continue
        cut += 1
        assert other["text"] == one["text"][: min(ends)] and other["finish_reason"] == "stop"
        assert other["tokens"] <= one["tokens"] + 1
    assert cut > 5 and sum(row["tokens"] for row in stopped) < sum(row["tokens"] for row in whole)


@pytest.mark.parametrize("stop", [[], ["3", "+1"]])
def test_the_tokens_that_were_sampled_can_be_had_again(
    model: Checkpoint, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: list[str]
) -> None:
    """By the text where it gives them, by the file beside the samples elsewhere; of a random model that is often."""
    sampled: dict[tuple[Any, int], list[int]] = {}
    made_of = evaluate._sample

    def remembered(plan: Any, job: tuple[int, int], response: Any) -> Any:
        sampled[plan.key(job)] = list(response.tokens)
        return made_of(plan, job, response)

    monkeypatch.setattr(evaluate, "_sample", remembered)
    settings = settings_of(samples_per_problem=4, stop=stop)
    sample_benchmark([model], problems, settings, tmp_path / "out")
    rows = read_jsonl(tmp_path / "out" / "samples.jsonl.bz2")
    beside = [json.loads(line) for line in (tmp_path / "out" / "token_ids.jsonl").read_text().splitlines()]
    kept = {(row["problem_id"], row["sample"]): row["token_ids"] for row in beside}
    end = make_plan([model], problems, settings).end
    assert len(sampled) == len(rows) == 32 and 0 < len(kept) < 32 and not any("token_ids" in row for row in rows)
    for row in rows:
        again = encoded_again(model.tokenizer, row["text"], row["finish_reason"], end)
        key = row["problem_id"], row["sample"]
        assert kept.get(key, again) == sampled[key] and (key in kept) == (again != sampled[key])
    assert "token_ids.jsonl" in read_manifest(tmp_path / "out" / "manifest.json", "samples").outputs


def test_stop_strings_and_two_models_are_refused(checkpoint: Path) -> None:
    model = Checkpoint(checkpoint)
    settings = BackendSettings(
        "float32", "cpu", 128, model.end_tokens, SamplingParameters(max_new_tokens=4), stop=("7",)
    )
    with pytest.raises(InvalidInput, match="two models"):
        load_backend("local", [model, model], settings)
    assert load_backend("local", [model], settings).generate([Request((1, 2), "x", 4)])


def test_tokens_are_kept_by_min_p_then_top_k_then_top_p() -> None:
    """Against the definition, in float64, for the least and the largest uniform number."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 12, generator=generator)
    for top_k, min_p, top_p in [(3, 0.0, 1.0), (0, 0.2, 1.0), (5, 0.1, 0.7), (1, 0.0, 1.0), (12, 0.0, 1.0)]:
        parameters = SamplingParameters(max_new_tokens=1, temperature=0.8, top_p=top_p, top_k=top_k, min_p=min_p)
        expected, likely = [], []
        for row in torch.softmax(logits.double() / 0.8, dim=-1).tolist():
            order = sorted(range(12), key=lambda token, row=row: -row[token])  # type: ignore[misc]
            kept = [token for token in order if row[token] >= min_p * max(row)][: top_k or None]
            total, reached, nucleus = sum(row[token] for token in kept), 0.0, []
            for token in kept:
                if reached < top_p * total:
                    nucleus.append(token)
                reached += row[token]
            expected.append(set(nucleus))
            likely.append({token for token in nucleus if row[token] > 0.01 * sum(row[each] for each in nucleus)})
        uniforms = torch.linspace(0, 1 - 1e-6, 400)
        drawn = [set(draw_tokens(row.expand(400, -1), uniforms, parameters).tolist()) for row in logits]
        assert all(found <= wanted for found, wanted in zip(drawn, expected, strict=True))
        assert all(found >= wanted for found, wanted in zip(drawn, likely, strict=True))


@pytest.mark.parametrize("spread", [4.0, 1.0, 0.0])
def test_the_nucleus_is_that_of_the_whole_vocabulary(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with many equal logits, and rows whose nucleus is larger than the candidates, among them."""
    generator = torch.Generator().manual_seed(1)
    logits = (spread * torch.randn(200, 500, generator=generator)).round(decimals=1)
    uniforms = torch.rand(200, generator=generator)
    draws = {}
    for candidates in (32, 500):
        monkeypatch.setattr(sampler, "_CANDIDATES", candidates)
        draws[candidates] = [
            draw_tokens(part, some, SamplingParameters(max_new_tokens=1, temperature=1.0, top_p=0.9)).tolist()
            for part, some in zip(logits.split(4), uniforms.split(4), strict=True)
        ]
    assert draws[32] == draws[500]
