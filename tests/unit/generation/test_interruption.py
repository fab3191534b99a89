"""Samples as they finish: what a kill leaves, what is made again, and how much of it is in memory."""

import itertools
import json
import tracemalloc
import zlib
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.sampling_memory import MadeUp, make_plan
from evals.core.errors import UserError
from evals.core.files import canonical_json, read_jsonl
from evals.core.manifest import read_manifest
from evals.generation import evaluate
from evals.generation.backend import Backend
from evals.generation.evaluate import sample_plan
from evals.generation.plan import SamplePlan
from evals.generation.request import Request, Response


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
    whole, killed = (tmp_path / name / "samples.jsonl" for name in ("whole", "killed"))
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
    written = read_jsonl(tmp_path / "samples" / "samples.jsonl")
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


def test_lines_of_an_earlier_version_are_not_compressed(tmp_path: Path) -> None:
    sample_plan(plan_of(), Engine, tmp_path)
    (file,) = tmp_path.glob("state/*/samples.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    unpacked = [{**line, "rows": json.loads(zlib.decompress(b64decode(line.pop("packed"))))} for line in lines]
    file.write_text("".join(canonical_json(line) + "\n" for line in unpacked))
    samples = (tmp_path / "samples.jsonl").read_bytes()
    sample_plan(plan_of(), lambda: pytest.fail("samples again"), tmp_path)
    assert (tmp_path / "samples.jsonl").read_bytes() == samples


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
    assert not (tmp_path / "3/samples.jsonl").exists()


def test_progress_is_told_in_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Killed):
        sample_plan(plan_of(), lambda: Engine(most=7), tmp_path / "run" / "benchmark")
    account = json.loads((tmp_path / "run/benchmark/progress.json").read_text())
    assert (account["step"], account["steps"], account["unit"]) == (7, 20, "sample")
    sample_plan(plan_of(), Engine, tmp_path / "run" / "benchmark")
    assert json.loads((tmp_path / "run/benchmark/progress.json").read_text())["step"] == 20
    assert "run benchmark: sample 20 of 20" in capsys.readouterr().out


def test_texts_do_not_gather_in_memory(tmp_path: Path) -> None:
    """10 MB of texts and token ids, sampled, read again and written, with less than 5 MB at any time."""
    plan = plan_of(20, 12, 5_000)
    tracemalloc.start()
    try:
        for _ in range(2):  # the second one reads what the first has kept
            sample_plan(plan, MadeUp, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum((tmp_path / name).stat().st_size for name in ("samples.jsonl", "token_ids.jsonl")) > 10e6
    assert peak < 5e6
