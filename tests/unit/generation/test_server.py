"""A server as the backend: what it is asked, what is asked again, and what its samples do not promise."""

import bz2
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.manifest import read_manifest
from evals.core.run_spec import Service
from evals.generation import server_backend
from evals.generation.checkpoint import Checkpoint
from evals.generation.served import write_service
from evals.grading import UNJUDGED
from tests import stages
from tests.stages import sample_benchmark
from tests.unit.generation import conftest
from tests.unit.generation.stand_in_server import StandIn, Trouble, response_to

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def server() -> Iterator[StandIn]:
    started = StandIn()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_backend, "_FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(server_backend, "_LONGEST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(server_backend, "PATIENCE_SECONDS", 30.0)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    return conftest.write_problems(tmp_path / "problems", [f"{n}+3" for n in range(6)])


settings_of = partial(
    conftest.settings_of,
    **{"samples_per_problem": 4, "prompt": "Q{problem}", "max_new_tokens": 24, "temperature": 0.5, "top_p": 0.9},
    **{"backend": "server", "prompt_form": "chat"},
)


def sample(server: StandIn, problems: Path, out: Path, service: Mapping[str, Any] = {}, **given: Any) -> list[Any]:
    model = out.with_name(f"{out.name}-model")
    write_service(Service.parse({"base_url": server.base_url, "model": "small", **service}, ""), model)
    sample_benchmark([Checkpoint.of(model)], problems, settings_of(**given), out)
    return read_jsonl(out / "samples.jsonl.bz2")


def test_what_a_server_is_asked_and_what_is_written(
    server: StandIn, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    service = {"extra_body": {"top_k": -1, "n": None}, "api_key_variable": "MY_API_KEY"}
    asked = {"system_prompt": "S", "chat_template_kwargs": {"enable_thinking": False}, "stop": ["X"], "min_p": 0.1}
    rows = sample(server, problems, tmp_path / "out", service, **asked)
    assert len(rows) == len(server.bodies) == 24 and server.most_at_a_time <= 5
    (body,) = (each for each in server.bodies if f"seed {each['seed']} " in rows[0]["text"])
    assert body.pop("seed") and body == {  # type: ignore[attr-defined]
        "path": "/v1/chat/completions",
        "model": "small",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q0+3"}],
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": 24,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["X"],
        "top_k": -1,
        "min_p": 0.1,
    }
    assert len({each["seed"] for each in server.bodies if "seed" in each}) == 23
    assert {row["finish_reason"] for row in rows} == {"stop", "length"}
    manifest = read_manifest(tmp_path / "out/manifest.json", "samples")
    assert manifest.details["tokens"] == sum(row["tokens"] for row in rows)
    assert manifest.details["prompt_tokens"] == 24 * 7
    assert any("seed" in sentence for sentence in manifest.details["not_promised"])
    assert manifest.parameters["served_model"] == "small"
    assert "presence_penalty" not in manifest.parameters, "it was not sent"
    assert set(server.keys) == {"Bearer secret"}
    files = (path for path in tmp_path.rglob("*") if path.is_file())
    written = b"".join((bz2.decompress if path.suffix == ".bz2" else bytes)(path.read_bytes()) for path in files)
    assert b"secret" not in written


def test_plain_text_goes_to_completions(server: StandIn, problems: Path, tmp_path: Path) -> None:
    sample(server, problems, tmp_path / "out", prompt_form="base", few_shot=[{"problem": "1", "solution": "2"}])
    assert {body["path"] for body in server.bodies} == {"/v1/completions"}
    assert server.bodies[0]["prompt"] == "Q12\n\nQ0+3"


def test_failures_are_asked_again_and_change_nothing(server: StandIn, problems: Path, tmp_path: Path) -> None:
    expected = sample(server, problems, tmp_path / "calm")
    troubles = [
        Trouble(status=500),
        Trouble(status=429, headers={"Retry-After": "0.2"}),
        Trouble(disconnects=True),
        Trouble(status=503),
        Trouble(seconds=0.3, disconnects=True),
        Trouble(status=429, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        Trouble(content={"choices": []}),
        Trouble(content=["x"]),
    ]
    server.bodies.clear()
    server.plan = lambda number, body: troubles[number // 3] if number % 3 == 1 and number < 24 else None
    assert sample(server, problems, tmp_path / "troubled") == expected
    assert len(server.bodies) == 24 + len(troubles)


def test_a_busy_server_is_left_alone_for_as_long_as_it_says(server: StandIn, problems: Path, tmp_path: Path) -> None:
    times: list[float] = []

    def plan(number: int, body: Mapping[str, Any]) -> Trouble | None:
        times.append(time.monotonic())
        return Trouble(status=429, headers={"Retry-After": "0.6"}) if number == 7 else None

    server.plan = plan
    sample(server, problems, tmp_path / "out")
    pauses = [later - earlier for earlier, later in itertools.pairwise(times[7:])]
    assert max(pauses) >= 0.5  # what was under way came first, however slow the machine is


def test_a_server_may_restart(server: StandIn, problems: Path, tmp_path: Path) -> None:
    expected = sample(server, problems, tmp_path / "calm")
    stopped = threading.Event()

    def restart() -> None:
        stopped.wait()
        server.stop()
        time.sleep(0.5)
        server.start()

    def plan(number: int, body: Mapping[str, Any]) -> Trouble | None:
        if number == 9:
            stopped.set()
        return Trouble(seconds=0.2, disconnects=True) if stopped.is_set() and number < 14 else None

    server.bodies.clear()
    server.plan = plan
    helper = threading.Thread(target=restart)
    helper.start()
    assert sample(server, problems, tmp_path / "restarted") == expected
    helper.join()


def test_a_kill_costs_only_what_was_under_way(server: StandIn, problems: Path, tmp_path: Path) -> None:
    """A process that samples is killed while the server hangs; another one goes on."""
    expected = sample(server, problems, tmp_path / "whole")
    hang = threading.Event()
    server.bodies.clear()

    def plan(number: int, body: Mapping[str, Any]) -> Trouble | None:
        if number >= 15:
            hang.wait(20)
        return None

    server.plan = plan
    out = tmp_path / "results/samples/killed" / problems.name
    write_service(Service(base_url=server.base_url, model="small"), tmp_path / "model")
    sampling = {"seed": 1, "max_new_tokens": 24, "temperature": 0.5, "top_p": 0.9, "sampling_batch_size": 5}
    shared = json.dumps({**sampling, "backend": "server", "prompt_form": "chat"})
    own = json.dumps({str(problems): {"prompt": "Q{problem}", "samples_per_problem": 4}})
    words = ["sample", str(out.parent), str(tmp_path / "model"), shared, own]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, "-m", "rlvr", *words], cwd=tmp_path, env=environment)
    try:
        while len(server.bodies) < 20:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    hang.set()
    server.plan = lambda number, body: None
    server.bodies.clear()
    assert sample(server, problems, out) == expected
    assert len(server.bodies) == 24 - 15


def test_another_address_is_the_same_model(server: StandIn, problems: Path, tmp_path: Path) -> None:
    rows = sample(server, problems, tmp_path / "out")
    other = StandIn()
    assert sample(other, problems, tmp_path / "out") == rows and not other.bodies
    other.stop()


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (Trouble(status=400, content={"error": {"message": "too long\nby far"}}), "status 400 (too long)"),
        (Trouble(status=401), "accepted: a key in the environment variable OPENAI_API_KEY"),
    ],
)
def test_a_final_refusal_is_said(server: StandIn, problems: Path, tmp_path: Path, trouble: Trouble, said: str) -> None:
    server.plan = lambda number, body: trouble if number == 12 else None
    with pytest.raises(UserError) as caught:
        sample(server, problems, tmp_path / "out")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    server.plan = lambda number, body: None
    server.bodies.clear()
    sample(server, problems, tmp_path / "out")
    assert len(server.bodies) <= 24 - 8


def test_a_server_that_never_answers_is_given_up(
    server: StandIn, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plan = lambda number, body: Trouble(seconds=1.0)
    with pytest.raises(UserError, match=r"more than 0\.1 s, 3 times; accepted: more"):
        sample(server, problems, tmp_path / "slow", {"timeout": 0.1})
    monkeypatch.setattr(server_backend, "PATIENCE_SECONDS", 0.3)
    for trouble in (Trouble(status=503), Trouble(status=429, headers={"Retry-After": "inf"})):
        server.plan = lambda number, body, trouble=trouble: trouble
        with pytest.raises(UserError, match="no answer for 0 s"):
            sample(server, problems, tmp_path / "dead")
    assert "status 503 (no); asking again" in capsys.readouterr().out
    for trouble in (Trouble(status=500), Trouble(disconnects=True), Trouble(content=["x"])):
        server.plan = lambda number, body, trouble=trouble: trouble
        monkeypatch.setattr(server_backend, "PATIENCE_SECONDS", 600.0)
        with pytest.raises(UserError, match="a request failed 6 times, at last"):
            sample(server, problems, tmp_path / "dead")


def test_a_model_that_the_server_lacks_is_named(server: StandIn, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no model 'large'; accepted: small"):
        write_service(Service(base_url=server.base_url, model="large"), tmp_path / "model")
    server.stop()
    with pytest.raises(UserError, match="cannot be asked for its models"):
        write_service(Service(base_url=server.base_url, model="small"), tmp_path / "model")
    server.start()


def test_thinking_that_a_server_took_out_is_put_back(server: StandIn, problems: Path, tmp_path: Path) -> None:
    def plan(number: int, body: Mapping[str, Any]) -> Trouble | None:
        content = response_to(body)
        answer = None if body["seed"] % 2 else "\ud800 so 7"
        content["choices"][0]["message"] = {"content": answer, "reasoning_content": "hm"}
        return Trouble(content=content)

    server.plan = plan
    texts = {row["text"] for row in sample(server, problems, tmp_path / "out")}
    assert texts == {"<think>hm", "<think>hm</think>? so 7"}


def said(choice: Mapping[str, Any] = {}, **changes: Any) -> Callable[[Mapping[str, Any]], Any]:
    """An answer with changes of its choice and of itself."""

    def answer(body: Mapping[str, Any]) -> Any:
        content = response_to(body)
        content["choices"][0] |= choice
        return content | changes

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        said({"finish_reason": "error", "message": {"content": ""}}),
        said({"finish_reason": "content_filter", "message": {"content": None}}),
        said({"finish_reason": "abort"}),
        said({"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": []}}),
        said({"finish_reason": None}),
        said({"finish_reason": "stop", "message": {"content": None, "refusal": "I cannot"}}),
        said({"finish_reason": "stop", "message": {"content": ""}}),
        said(model="smaller"),
        said(model="small-mini"),
        said(usage={"prompt_tokens": 7, "completion_tokens": 25}),
    ],
)
def test_what_is_no_finished_response_of_the_model_is_asked_again_and_then_unjudged(
    server: StandIn, problems: Path, tmp_path: Path, answer: Callable[[Mapping[str, Any]], Any]
) -> None:
    expected = sample(server, problems, tmp_path / "calm")
    (bad,) = (
        body["seed"] for body in server.bodies if "seed" in body and f"seed {body['seed']} " in expected[5]["text"]
    )
    server.bodies.clear()
    server.plan = lambda number, body: Trouble(content=answer(body)) if body["seed"] == bad else None
    rows = sample(server, problems, tmp_path / "out")
    assert [body["seed"] for body in server.bodies].count(bad) == 3
    assert [row for row in rows if row != expected[5] and row not in expected] == [rows[5]]
    assert (rows[5]["finish_reason"], rows[5]["text"], rows[5]["tokens"]) == ("unanswered", "", 0)
    assert read_manifest(tmp_path / "out/manifest.json", "samples").details["unanswered"] == 1
    stages.grade(tmp_path / "out/samples.jsonl.bz2", problems / "problems.jsonl", tmp_path / "grades")
    grades = read_jsonl(tmp_path / "grades/grades.jsonl.bz2")
    assert [grade["reason"] for grade in grades].count("unanswered") == 1 and grades[5]["reason"] in UNJUDGED
    server.plan, before = lambda number, body: None, len(server.bodies)
    assert sample(server, problems, tmp_path / "out") == expected, "it is asked for again, and nothing else"
    assert len(server.bodies) == before + 1


def test_a_response_that_a_failure_came_before_is_taken(server: StandIn, problems: Path, tmp_path: Path) -> None:
    expected = sample(server, problems, tmp_path / "calm")
    error = {"error": {"message": "overloaded", "code": 502}}
    failures = [Trouble(content=error), Trouble(status=520), Trouble(status=524), Trouble(status=599)]
    failures.append(Trouble(content={"choices": [{"message": {"content": "1"}, "finish_reason": "abort"}]}))
    server.bodies.clear()
    server.plan = lambda number, body: failures[number // 3] if number % 3 == 1 and number < 15 else None
    assert sample(server, problems, tmp_path / "troubled") == expected
    assert len(server.bodies) == 24 + len(failures)
    server.plan = lambda number, body: Trouble(content=error)
    with pytest.raises(UserError, match=r"a request failed 6 times, at last: .*overloaded"):
        sample(server, problems, tmp_path / "dead")


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (said({"finish_reason": "MAX_TOKENS"}), "length"),
        (said({"finish_reason": "model_length"}), "length"),
        (said({"finish_reason": "STOP"}), "stop"),
        (said({"finish_reason": "eos"}, model="small-2026-01-31"), "stop"),
        (said({"finish_reason": "length", "message": {"content": ""}}), "length"),
        (said({"finish_reason": "stop", "text": ""}, usage={"prompt_tokens": 7, "completion_tokens": 1}), "stop"),
    ],
)  # fmt: skip
def test_the_words_of_other_servers_for_how_a_response_ended(
    server: StandIn, problems: Path, tmp_path: Path, answer: Callable[[Mapping[str, Any]], Any], ends: str
) -> None:
    """One token is the end token alone: the model had nothing to say, which is a response."""
    server.plan = lambda number, body: Trouble(content=answer(body))
    assert {row["finish_reason"] for row in sample(server, problems, tmp_path / "out")} == {ends}
