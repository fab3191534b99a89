"""Backends against each other, prompts with one BOS, and samples that survive a kill."""

import bz2
import dataclasses
import itertools
import json
import os
import shutil
import tracemalloc
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from benchmarks.sampling_memory import MadeUp, make_plan
from evals.core.errors import InvalidInput, UserError
from evals.core.files import canonical_json, read_json, read_jsonl, sha256_file
from evals.core.manifest import read_manifest, verify_outputs
from evals.core.progress import Progress
from evals.core.random import stream_seed
from evals.core.records import Sample
from evals.core.sampling import SamplingParameters
from evals.generation import evaluate, transformers_backend
from evals.generation.backend import Backend, BackendSettings, Request, Response, in_order, load_backend
from evals.generation.checkpoint import Checkpoint, import_model
from evals.generation.evaluate import FinishedSamples, sample_benchmarks, sample_plan
from evals.generation.plan import SamplePlan, encode_prompts
from tests.stages import sample_benchmark
from tests.unit.generation.conftest import settings_of, write_problems

TEXTS = ["Compute 3+4 from left to right, modulo 10.", "7", "Let a=3;b=a+7. Compute b modulo 10.", "8" * 126, "9" * 200]


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 1.0), (0.7, 0.8)])
def test_transformers_draws_the_samples_of_the_local_backend(
    checkpoint: Path, temperature: float, top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same streams, same models: the same tokens, also where lengths differ and where limits do."""
    model = Checkpoint(checkpoint)
    requests = [
        Request(tuple(model.tokenizer.encode(text).ids), f"{text}/{number}", 20 + number)
        for text in TEXTS[:3]
        for number in range(6)
    ]
    settings = BackendSettings(
        "float32",
        "cpu",
        128,
        model.end_tokens,
        SamplingParameters(max_new_tokens=32, temperature=temperature, top_p=top_p),
    )
    answers = [load_backend(name, [model], settings).generate(requests) for name in ("local", "transformers")]
    assert answers[0] == answers[1]
    monkeypatch.setattr(transformers_backend, "TOKENS_BETWEEN_SIGNS", 8)  # signs of life change nothing
    stream = list(load_backend("transformers", [model], settings).stream(requests))
    assert in_order(stream) == answers[0] and (stream.count({}) == max(len(each.tokens) for each in answers[0]) // 8)
    assert {response.finished for response in answers[0]} == {True, False} or temperature == 0


def test_every_sample_of_vllm_has_a_seed_of_its_own() -> None:
    seeds = {stream_seed(f"evaluation/1/p{problem}/{number}") for problem in range(50) for number in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)


def make_tokenizer(directory: Path, adds_bos: bool, template: str | None) -> Checkpoint:
    vocabulary = {"<s>": 0, "</s>": 1, "?": 2, "a": 3, "b": 4, "<": 5, "s": 6, ">": 7}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return Checkpoint(directory)


WRITES_BOS = "{{ bos_token }}{{ messages[0]['content'] }}b"
WRITES_NONE = "{{ messages[0]['content'] }}b"


@pytest.mark.parametrize(
    ("adds_bos", "template", "form", "expected"),
    [
        (True, None, "base", (0, 3)),
        (False, None, "base", (3,)),
        (True, WRITES_BOS, "chat", (0, 3, 4)),
        (False, WRITES_BOS, "chat", (0, 3, 4)),
        (True, WRITES_NONE, "chat", (0, 3, 4)),
        (False, WRITES_NONE, "chat", (3, 4)),
    ],
)
def test_a_prompt_has_one_bos(
    tmp_path: Path, adds_bos: bool, template: str | None, form: str, expected: tuple[int, ...]
) -> None:
    assert encode_prompts(make_tokenizer(tmp_path, adds_bos, template), ["a"], form) == [expected]


def test_bos_twice_and_chat_without_template_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        encode_prompts(make_tokenizer(tmp_path, True, "{{ bos_token }}" + WRITES_BOS), ["a"], "chat")
    assert "prompt 1" in caught.value.source and "2 BOS" in caught.value.found and "one" in caught.value.accepted
    checkpoint = make_tokenizer(tmp_path, True, None)
    with pytest.raises(InvalidInput) as caught:
        encode_prompts(checkpoint, ["a"], "chat")
    assert "template" in caught.value.found and "base" in caught.value.accepted
    assert encode_prompts(checkpoint, ["<s>a"], "base") == [(0, 5, 6, 7, 3)]


@pytest.fixture
def artifacts(checkpoint: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A base model taken in from a path, and problems: three that fit, one with little room, one with none."""
    source, problems = tmp_path / "base" / "tiny", tmp_path / "problems"
    import_model(str(checkpoint), source)
    return source, write_problems(problems, TEXTS)


def run(artifacts: tuple[Path, Path], out: Path, count: int) -> Path:
    sample_benchmark([Checkpoint.of(artifacts[0])], artifacts[1], settings_of(samples_per_problem=count), out)
    return out / "samples.jsonl.bz2"


def test_prompts_without_room_are_kept_counted_and_cut(artifacts: tuple[Path, Path], tmp_path: Path) -> None:
    path = run(artifacts, tmp_path / "out", 2)
    rows = read_jsonl(path)
    assert [(row["problem_id"], row["sample"]) for row in rows] == [(f"p{n}", k) for n in range(5) for k in range(2)]
    assert all(row["tokens"] <= 2 for row in rows[6:8])
    assert all((row["tokens"], row["text"], row["finish_reason"]) == (0, "", "length") for row in rows[8:])
    details = read_manifest(tmp_path / "out/manifest.json", "samples").details
    assert (details["prompts_too_long"], details["prompts_with_less_room"]) == (1, 1)


def test_a_kill_at_any_byte_changes_nothing(artifacts: tuple[Path, Path], tmp_path: Path) -> None:
    whole = run(artifacts, tmp_path / "whole", 4).read_bytes()
    (state,) = (tmp_path / "whole/state").iterdir()
    lines = (state / "samples.jsonl").read_bytes()

    def kept(lines: bytes) -> list[str]:
        """The hash of the samples of each line, which also says how long they took."""
        return [json.loads(line)["sha256"] for line in lines.splitlines()]

    for cut in (0, 1, lines.index(b"\n"), lines.index(b"\n") + 1, len(lines) // 2, len(lines) - 1):
        out = tmp_path / f"cut-{cut}"
        shutil.copytree(state, out / "state" / state.name)
        os.truncate(out / "state" / state.name / "samples.jsonl", cut)
        assert run(artifacts, out, 4).read_bytes() == whole
        assert kept((out / "state" / state.name / "samples.jsonl").read_bytes()) == kept(lines)


def test_more_samples_keep_the_earlier_ones(artifacts: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(artifacts, out, 2)
    (state,) = (out / "state").iterdir()
    earlier = (state / "samples.jsonl").read_bytes()
    (out / "samples.jsonl").touch()  # as an earlier version wrote them, not compressed
    run(artifacts, out, 4)
    assert not (out / "samples.jsonl").exists()
    assert (state / "samples.jsonl").read_bytes().startswith(earlier)
    assert read_manifest(out / "manifest.json", "samples").details["rows_kept_from_earlier"] == 8
    assert sha256_file(out / "samples.jsonl.bz2") == sha256_file(run(artifacts, tmp_path / "at_once", 4))


def test_long_responses_are_said(artifacts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_backend, "TOKENS_BETWEEN_SIGNS", 4)
    monkeypatch.setattr("evals.generation.evaluate.TOKENS_BETWEEN_SIGNS", 4)
    said: list[tuple[int, str, int]] = []
    monkeypatch.setattr(Progress, "report", lambda _, step, words="", running=0: said.append((step, words, running)))
    settings = settings_of(backend="transformers", sampling_batch_size=64)
    sample_benchmark([Checkpoint.of(artifacts[0])], artifacts[1], settings, tmp_path / "out")
    signs = [(words, running) for _, words, running in said if words]
    assert [words.partition(", ")[2] for words, _ in signs] == [f"{n} of at most 12 tokens" for n in (4, 8, 12)]
    assert all(words.startswith(f"{running} running, ") and running > 0 for words, running in signs)
    assert said[-1] == (8, "", 0)  # of ten samples, two have no room


def test_a_model_is_loaded_once(artifacts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are those of each benchmark alone; where all are made, nothing is loaded."""
    source, first = artifacts
    loads: list[Path] = []
    load = SamplePlan.load_backend
    monkeypatch.setattr(SamplePlan, "load_backend", lambda plan: loads.append(first) or load(plan))  # type: ignore[func-returns-value]
    benchmarks = {
        shutil.copytree(first, tmp_path / name): settings_of(prompt=f"{name}: {{problem}}") for name in ("one", "other")
    }
    for problems, settings in benchmarks.items():
        sample_benchmark([Checkpoint.of(source)], problems, settings, tmp_path / "alone" / problems.name)
    loads.clear()
    sample_benchmarks([Checkpoint.of(source)], benchmarks, tmp_path / "policy")
    assert len(loads) == 1
    for name in ("one", "other"):
        made, alone = (tmp_path / place / name / "samples.jsonl.bz2" for place in ("policy", "alone"))
        assert made.read_bytes() == alone.read_bytes()
    stands_for = verify_outputs(tmp_path / "policy/manifest.json", "policy_samples").inputs
    manifests = [tmp_path / "policy" / name / "manifest.json" for name in ("one", "other")]
    assert stands_for == {str(path): sha256_file(path) for path in manifests}
    shown = read_json(tmp_path / "policy/progress.json")
    assert (shown["unit"], shown["step"], shown["parts_left"]) == ("sample of other", shown["steps"], 0)
    sample_benchmarks([Checkpoint.of(source)], benchmarks, tmp_path / "policy")
    assert len(loads) == 1


def test_a_changed_line_is_found(tmp_path: Path) -> None:
    finished = FinishedSamples(tmp_path)
    finished.append([Sample(problem_id="p", sample=0, text="1", tokens=1, finish_reason="stop")], 1.5)
    path = tmp_path / "samples.jsonl"
    line = json.loads(path.read_bytes())
    text = bz2.decompress(b64decode(line["packed"]))
    other = b64encode(bz2.compress(text.replace(b'"text":"1"', b'"text":"2"'))).decode()
    for packed in (other, line["packed"][8:], "no base64", None):
        path.write_text(json.dumps({**line, "packed": packed}) + "\n")
        with pytest.raises(UserError, match="line 1 is damaged"):
            FinishedSamples(tmp_path)


def test_a_model_is_taken_in_from_safetensors_alone(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(checkpoint / name, tmp_path / name)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UserError, match=r"holds no \.safetensors file"):
        import_model(str(tmp_path), tmp_path / "out")
    with pytest.raises(UserError, match="no such directory"):
        import_model(str(tmp_path / "none"), tmp_path / "out")


def test_a_name_is_recorded_as_its_commit(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's cache has a directory for each commit."""
    commit = "0123456789abcdef" * 2 + "01234567"
    snapshot = shutil.copytree(checkpoint, tmp_path / "snapshots" / commit)
    asked: list[str] = []

    def download(identifier: str, revision: str, **_: Any) -> str:
        asked.append(revision)
        if revision == "gone":
            raise OSError("no such revision")
        if revision == "offline":
            raise httpx.ConnectError("refused")
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    manifests = {}
    for revision in ("main", commit):
        import_model("owner/name", tmp_path / revision, revision)
        manifests[revision] = read_manifest(tmp_path / revision / "manifest.json", "base_model")
    assert asked == ["main", commit]
    assert manifests["main"].parameters == {
        "source": "hugging_face", "model": "owner/name", "revision": "main", "commit": commit
    }  # fmt: skip
    assert "commit" not in manifests[commit].parameters
    for revision, why in (("gone", "OSError"), ("offline", "ConnectError")):
        with pytest.raises(UserError, match=f"model owner/name at {revision}: cannot be fetched .*{why}"):
            import_model("owner/name", tmp_path / revision, revision)


def test_what_a_backend_does_not_take_is_refused(checkpoint: Path) -> None:
    model = Checkpoint(checkpoint)
    settings = BackendSettings("float32", "cpu", 128, model.end_tokens, SamplingParameters(max_new_tokens=4))
    for name, loaded, changes, key in [
        ("none", [model], {}, "backend"),
        ("vllm", [model, model], {}, "backend"),
        ("local", [model], {"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ("local", [model], {"dtype": "float64"}, "dtype"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            load_backend(name, loaded, dataclasses.replace(settings, **changes))
        assert caught.value.key == key and caught.value.accepted


# Samples as they finish: what a kill leaves, what is made again, and how much of it is in memory.


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


class Engine(Backend):
    """Schedules what it is given as vLLM does: later requests finish first; ends after ``most`` responses."""

    def __init__(self, most: int | None = None) -> None:
        self.most, self.given = most, 0

    def stream(self, requests: Iterable[Request], draws: Any = None) -> Iterator[Mapping[int, Response]]:
        wanted = list(enumerate(requests))
        self.given = len(wanted)
        for made, (place, request) in enumerate(reversed(wanted)):
            if made == self.most:
                raise Killed
            yield {place: Response([sum(request.identity.encode())] * 3, finished=True)}


def plan_of(problems: int = 5, samples: int = 4, tokens: int = 3) -> SamplePlan:
    return make_plan(problems, samples, tokens)


def test_a_kill_costs_no_finished_sample(tmp_path: Path) -> None:
    """The whole benchmark is one batch of the settings, and one call of the backend."""
    sample_plan(plan_of(), Engine, tmp_path / "whole")
    engines = [Engine(most=7), Engine(most=1), Engine()]
    for engine in engines[:2]:
        with pytest.raises(Killed):
            sample_plan(plan_of(), lambda engine=engine: engine, tmp_path / "killed")  # type: ignore[misc]
    sample_plan(plan_of(), lambda: engines[2], tmp_path / "killed")
    assert [engine.given for engine in engines] == [20, 13, 12]
    whole, killed = (tmp_path / name / "samples.jsonl.bz2" for name in ("whole", "killed"))
    assert killed.read_bytes() == whole.read_bytes()


def test_prompts_of_similar_length_are_decoded_together(tmp_path: Path) -> None:
    """Each batch is read at the length of its longest prompt."""
    plan = plan_of(problems=4, samples=2)
    lengths = [7, 2, 9, 2]
    plan = replace(
        plan,
        prompts=[(1,) * length for length in lengths],
        settings=plan.settings.model_copy(update={"sampling_batch_size": 4}),
    )
    assert [[index for index, _ in batch] for batch in plan.batches()] == [[1, 1, 3, 3], [0, 0, 2, 2]]
    sample_plan(plan, Engine, tmp_path / "samples")
    written = read_jsonl(tmp_path / "samples" / "samples.jsonl.bz2")
    assert [row["problem_id"] for row in written] == [each for each in plan.ids for _ in range(2)]


def test_what_samples_took_is_summed_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every response takes a second here; of a smaller k it is the share that counts."""
    monkeypatch.setattr(evaluate, "time", SimpleNamespace(monotonic=map(float, itertools.count()).__next__))
    with pytest.raises(Killed):
        sample_plan(plan_of(), lambda: Engine(most=7), tmp_path)
    sample_plan(plan_of(), Engine, tmp_path)
    details = read_manifest(tmp_path / "manifest.json", "samples").details
    assert details["sampling_seconds"] == 20.0 and details["seconds"] < 15.0
    (file,) = tmp_path.glob("state/*/samples.jsonl")
    peaks = [json.loads(line)["peak_memory_bytes"] for line in file.read_text().splitlines()]
    assert details["peak_memory_bytes"] == max(peaks) > 2**20
    file.write_text(file.read_text().replace('"peak_memory_bytes":', '"peak_memory_bytes":9'))  # of an earlier process
    sample_plan(plan_of(samples=2), Engine, tmp_path)
    details = read_manifest(tmp_path / "manifest.json", "samples").details
    assert details["sampling_seconds"] == 10.0
    assert details["peak_memory_bytes"] == max(int(f"9{peak}") for peak in peaks)


def test_samples_of_no_plan_are_refused(tmp_path: Path) -> None:
    """As an earlier version wrote them: nothing says whose they are."""
    sample_plan(plan_of(), Engine, tmp_path)
    (file,) = tmp_path.glob("state/*/samples.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kept = ("packed", "sha256")
    file.write_text("".join(canonical_json({key: line[key] for key in kept}) + "\n" for line in lines))
    with pytest.raises(UserError, match="has samples of another plan; delete the file"):
        sample_plan(plan_of(), Engine, tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_lines_of_earlier_versions_are_compressed_otherwise_or_not(tmp_path: Path, packed: bool) -> None:
    sample_plan(plan_of(), Engine, tmp_path)
    (file,) = tmp_path.glob("state/*/samples.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        text = bz2.decompress(b64decode(line.pop("packed")))
        line |= {"packed": b64encode(zlib.compress(text)).decode()} if packed else {"rows": json.loads(text)}
    file.write_text("".join(canonical_json(line) + "\n" for line in lines))
    samples = (tmp_path / "samples.jsonl.bz2").read_bytes()
    sample_plan(plan_of(), lambda: pytest.fail("samples again"), tmp_path)
    assert (tmp_path / "samples.jsonl.bz2").read_bytes() == samples


def test_samples_of_another_plan_are_refused(tmp_path: Path) -> None:
    """Of another model's, or of other problems', in the place of one's own, as where a study was copied in parts."""
    others = replace(plan_of(), inputs={"problems.jsonl": "other"}), plan_of().with_parameters(model="other")
    for number, plan in enumerate((plan_of(), *others)):
        sample_plan(plan, Engine, tmp_path / str(number))
    (own,) = tmp_path.glob("0/state/*/samples.jsonl")
    for number in (1, 2):
        (other,) = tmp_path.glob(f"{number}/state/*/samples.jsonl")
        for content in (other.read_bytes(), own.read_bytes() + other.read_bytes()):
            (tmp_path / "3/state" / own.parent.name).mkdir(parents=True, exist_ok=True)
            copied = tmp_path / "3/state" / own.parent.name / own.name
            copied.write_bytes(content)
            with pytest.raises(UserError, match="has samples of another plan; delete the file"):
                sample_plan(plan_of(), Engine, tmp_path / "3")
    assert not (tmp_path / "3/samples.jsonl.bz2").exists()


def test_progress_is_told_in_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Killed):
        sample_plan(plan_of(), lambda: Engine(most=7), tmp_path / "run" / "benchmark")
    account = json.loads((tmp_path / "run/benchmark/progress.json").read_text())
    assert (account["step"], account["steps"], account["unit"]) == (7, 20, "sample")
    sample_plan(plan_of(), Engine, tmp_path / "run" / "benchmark")
    assert json.loads((tmp_path / "run/benchmark/progress.json").read_text())["step"] == 20
    assert "run benchmark: sample 20 of 20" in capsys.readouterr().out


def test_texts_do_not_gather_in_memory(tmp_path: Path) -> None:
    """10 MB of texts and token ids, sampled, read again and written, with less than 5 MB at any time, and bzip2's 8."""
    plan = plan_of(20, 12, 5_000)
    tracemalloc.start()
    try:
        for _ in range(2):  # the second one reads what the first has kept
            sample_plan(plan, MadeUp, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    texts = bz2.decompress((tmp_path / "samples.jsonl.bz2").read_bytes())
    assert len(texts) + (tmp_path / "token_ids.jsonl").stat().st_size > 10e6
    assert peak < 13e6
