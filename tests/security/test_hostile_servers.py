"""Servers of models that do what no server does: their answer is read, or one line says what is wrong, in time."""

from __future__ import annotations

import gc
import gzip
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evals.core.errors import UserError
from evals.core.run_spec import Service
from evals.core.sampling import SamplingParameters
from evals.generation import server_backend
from evals.generation.backend import BackendSettings, Request, Response
from evals.generation.checkpoint import ServedModel
from evals.generation.served import write_service
from evals.generation.server_backend import ServerBackend
from tests.security.hostile import CASES, damaged, many, one_line, places, replaced, values

CHOICE = {"text": "\\boxed{1}", "finish_reason": "stop"}
ANSWER: dict[str, Any] = {"choices": [CHOICE], "usage": {"completion_tokens": 3, "prompt_tokens": 7}}
MODELS = {"data": [{"id": "small", "owned_by": "stand-in"}]}
KEY = "sk-0123456789"
Behaviour = Callable[[socket.socket], None]


class Hostile:
    """A server that answers each connection by what :attr:`behaviour` does with it."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = sending(b"")
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def service(self) -> Service:
        address = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        return Service(base_url=address, model="small", timeout=1.0)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            self.behaviour(connection)

    def close(self) -> None:
        self._socket.close()


def sending(content: bytes) -> Behaviour:
    return lambda connection: connection.sendall(content)


def without_end(part: bytes, seconds: float = 0.0, first: bytes = b"") -> Behaviour:
    def send(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(part)
            time.sleep(seconds)

    return send


def answer(content: Any, status: str = "200 OK", headers: str = "") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def with_tokens(count: str) -> bytes:
    return answer(json.dumps(ANSWER).replace(": 3", f": {count}").encode())


@pytest.fixture(scope="module")
def server() -> Iterator[Hostile]:
    started = Hostile()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_backend, "_FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(server_backend, "_LONGEST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(server_backend, "PATIENCE_SECONDS", 0.05)


def ask(server: Hostile, monkeypatch: pytest.MonkeyPatch) -> Response:
    model = ServedModel(None)  # type: ignore[arg-type]
    monkeypatch.setattr(ServedModel, "service", server.service)
    limits = BackendSettings("auto", "cpu", 128, [], SamplingParameters(max_new_tokens=8))
    (response,) = ServerBackend([model], limits).generate([Request((), "a", 8, {"prompt": "1+1"})])
    return response


DEEP, BOMB = b"[" * 200_000, gzip.compress(bytes(200 << 20))
BEHAVIOURS: dict[str, Behaviour] = {
    "body without an end": without_end(
        b"10000\r\n" + bytes(1 << 16) + b"\r\n", 0, answer(b"")[:15] + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
    "a byte now and then": without_end(b"{", 0.2, b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n"),
    "headers now and then": without_end(b"X-A: b\r\n", 0.2, b"HTTP/1.1 200 OK\r\n"),
    "headers without an end": without_end(b"X-A: b\r\n", 0, b"HTTP/1.1 200 OK\r\n"),
    "too short": sending(answer(ANSWER).replace(b"Length: ", b"Length: 9")),
    "a negative length": sending(answer(ANSWER).replace(b"Length: ", b"Length: -")),
    "a bomb": sending(answer(BOMB, headers="Content-Encoding: gzip\r\n")),
    "a bomb in a bomb": sending(answer(gzip.compress(BOMB), headers="Content-Encoding: gzip, gzip\r\n")),
    "a bomb in a bomb, by two headers": sending(
        answer(gzip.compress(BOMB), headers="Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n")
    ),
    "another compression": sending(answer(b"\x28\xb5\x2f\xfd", headers="Content-Encoding: zstd\r\n")),
    "no compression, though it says so": sending(answer(b"{}", headers="Content-Encoding: gzip\r\n")),
    "a bomb of deflate": sending(answer(BOMB, headers="Content-Encoding: deflate\r\n")),
    "deep": sending(answer(DEEP)),
    "a deep error": sending(answer(DEEP, "400 No")),
    "garbage": sending(b"\x16\x03\x01" * 100),
    "nothing": sending(b""),
    "never": lambda connection: time.sleep(20),
    "elsewhere": sending(answer(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n")),
    "always 500": sending(answer({"error": {"message": "\x1b]0;owned\x07"}}, "500 No")),
    "an escape sequence": sending(answer({"error": {"message": "\x1b]0;owned\x07 \u202e"}}, "400 No")),
    "busy for ever": sending(answer(b"", "429 No", "Retry-After: inf\r\n")),
    "busy for no number of seconds": sending(answer(b"", "503 No", "Retry-After: nan\r\n")),
    "no text": sending(answer({"choices": [{"message": {"content": [1]}}], "usage": ANSWER["usage"]})),
    **{f"{n:.9} tokens": sending(with_tokens(n)) for n in ("1e999", "NaN", "-1", "1" + "0" * 30, "1" * 5000)},
}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_hostile_server_ends_in_one_line_in_time(
    server: Hostile, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    server.behaviour = BEHAVIOURS[name]
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as refused:
        ask(server, monkeypatch)
    one_line(refused.value)
    gc.collect()
    assert "Task was destroyed" not in capfd.readouterr().err
    assert time.monotonic() - begun < 60  # three tries of a second each, on a machine that does much else
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024


@settings(many, max_examples=max(20, CASES // 10))
@given(st.data())
def test_a_damaged_answer_is_read_or_refused(server: Hostile, data: st.DataObject) -> None:
    changed = answer(replaced(ANSWER, data.draw(st.sampled_from(places(ANSWER))), data.draw(values)))
    server.behaviour = sending(data.draw(st.just(changed) | damaged(answer(ANSWER))))
    with pytest.MonkeyPatch.context() as patch:
        try:
            response = ask(server, patch)
        except UserError as error:
            one_line(error)
        else:
            assert isinstance(response.length, int) and response.length >= 0
            (response.text or "").encode()


@settings(many, max_examples=max(20, CASES // 10))
@given(st.sampled_from(places(MODELS)), values)
@example(("data", 0, "owned_by"), float("nan"))
@example(("data", 0, "owned_by"), "\ud800")
@example(("data", 0, "id"), "\x1b]0;owned\x07")
def test_a_list_of_models_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, server: Hostile, place: tuple[Any, ...], value: Any
) -> None:
    replies = answer(replaced(MODELS, place, value)), answer(DEEP), answer(b'{"data": [{"id": "small", "x": 1e999}]}')
    for content in replies:
        server.behaviour = sending(content)
        try:
            write_service(server.service, tmp_path_factory.mktemp("model"))
        except UserError as error:
            one_line(error)


@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY}", f"{KEY}\u00e9", f"{KEY}\r\nX-Other: 1"])
def test_a_key_that_no_header_holds_is_refused(server: Hostile, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UserError, match="OPENAI_API_KEY: has a character that no key has") as refused:
        ask(server, monkeypatch)
    assert KEY not in str(refused.value)


def test_a_key_that_the_server_quotes_is_not_shown(server: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for status in ("401 No", "400 No", "500 No"):
        server.behaviour = sending(answer({"error": {"message": f"Incorrect API key provided: {KEY}"}}, status))
        with pytest.raises(UserError, match=r"provided: \[the key\]") as refused:
            ask(server, monkeypatch)
        assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"api_key_variable": "AWS_SECRET_ACCESS_KEY"},
        {"api_key_variable": "HF_TOKEN"},
        {"api_key_variable": "_API_KEY_X"},
        {"base_url": f"http://user:{KEY}@127.0.0.1/v1"},
        {"base_url": f"user:{KEY}@127.0.0.1/v1"},
        {"base_url": f"http://127.0.0.1/v1?key={KEY}"},
        {"base_url": f"http://127.0.0.1/v1#{KEY}"},
        {"extra_body": {"provider": {"API_KEY": KEY}}},
        {"extra_body": {"x-api-key": KEY}},
        {"extra_body": {"access_token": KEY}},
    ],
)
def test_a_study_takes_no_other_secret_and_names_none(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError) as refused:
        Service.parse({"base_url": "http://127.0.0.1/v1", "model": "small", **changes}, "service")
    one_line(refused.value)
    assert KEY not in str(refused.value)
