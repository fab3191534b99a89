"""A server with OpenAI's interface as a backend: ``vllm serve``, SGLang, hosted models.

The server encodes prompts and decodes tokens. A server that cannot be reached, or says that it is busy, is waited for.
Whatever else may not last, connections that break, time-outs and status 500, is asked again a few times, and so is what
is no finished response of the model that was asked.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import httpx

from evals.core.errors import InvalidInput, UserError, first_line, printable
from evals.core.files import parse_json
from evals.core.numbers import Index
from evals.core.random import stream_seed
from evals.core.record import ExtensibleRecord
from evals.core.run_spec import Service
from evals.generation.backend import Backend, BackendSettings, Request, Response
from evals.generation.checkpoint import Checkpoint, ServedModel

if TYPE_CHECKING:
    from evals.generation.backend import Draws

PATIENCE_SECONDS = 1800.0
"""A server that answers no request for so long is given up: to start and to load a large model takes minutes."""
_BUSY, _FAILED = {408, 409, 425, 429, 502, 503, 504, *range(520, 525), 529, 530}, 500  # 520 to 530: Cloudflare's
_MOST_TIMEOUTS, _MOST_FAILURES, _MOST_UNANSWERED = 3, 6, 3  # of one sample, which would be asked for again and again
_FINISHED = {"stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete"}  # whatever else: unfinished
_CUT = {"length", "max_tokens", "max_output_tokens", "model_length"}
_CONNECT_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 30.0, 600.0
_SECONDS_BETWEEN_LINES = 60.0
_MOST_BYTES = 2**26
"""The largest answer that is read."""
_DATE = r"([-@]\d{4}(-?\d\d){0,2})?"  # which servers add to a model's name: gpt-4o-2024-08-06
_UNANSWERED = Response([], finished=False, text="", length=0, is_answered=False)


class _Usage(ExtensibleRecord):
    completion_tokens: Index
    prompt_tokens: Index


class ServerBackend(Backend):
    """Keeps ``sampling_batch_size`` requests under way; all pause while the server says that it is asked too much."""

    def __init__(self, checkpoints: Sequence[Checkpoint], settings: BackendSettings) -> None:
        (model,) = checkpoints
        assert isinstance(model, ServedModel), "a model behind an address"
        self._service, self._settings = model.service, settings
        self._last_answer = time.monotonic()
        self._paused_until, self._said_at = 0.0, -math.inf
        self.patience_seconds = PATIENCE_SECONDS

    def stream(self, requests: Iterable[Request], draws: Draws | None = None) -> Iterator[Mapping[int, Response]]:
        """Answer each request; the server draws by its own rule alone."""
        assert draws is None, "a backend of one model"
        loop, waiting = asyncio.new_event_loop(), enumerate(requests)
        client = make_client(self._service)
        places: dict[asyncio.Task[Response], int] = {}
        self._last_answer = time.monotonic()
        try:
            while True:
                for number, request in islice(waiting, self._settings.sampling.sampling_batch_size - len(places)):
                    places[loop.create_task(self._answer(client, request))] = number
                if not places:
                    return
                done, _ = loop.run_until_complete(asyncio.wait(places, return_when=asyncio.FIRST_COMPLETED))
                failed = [task for task in done if task.exception()]
                answered = {places.pop(task): task.result() for task in done if task not in failed}
                if answered:
                    yield answered
                for task in failed:
                    task.result()
        finally:
            loop.run_until_complete(_close(client, places))
            loop.close()

    async def _answer(self, client: httpx.AsyncClient, request: Request) -> Response:
        pause, timeouts, failures, unanswered = _FIRST_PAUSE_SECONDS, 0, 0, 0
        path = "chat/completions" if "messages" in request.body else "completions"
        while True:
            await asyncio.sleep(max(0.0, self._paused_until - time.monotonic()))
            asked_at = time.monotonic()
            try:
                answer = await ask(client, self._service, path, self._body(request))
                if answer.status_code not in _BUSY and answer.status_code < _FAILED:
                    self._last_answer = time.monotonic()
                    read = _read(answer, self._service, request.max_new_tokens)
                    unanswered += isinstance(read, str)
                    if not isinstance(read, str) or unanswered == _MOST_UNANSWERED:
                        return _UNANSWERED if isinstance(read, str) else read
                    trouble = f"the response {read}"
                else:
                    failures += answer.status_code not in _BUSY
                    trouble = f"status {answer.status_code} ({_message(answer, self._service)})"
                asked_to_wait = _seconds(answer.headers.get("Retry-After"))
                if asked_to_wait is not None or answer.status_code in (429, 503):
                    pause = max(pause, asked_to_wait or 0.0)
                    self._paused_until = max(self._paused_until, time.monotonic() + pause)
            except TimeoutError:
                timeouts += 1
                trouble = f"a response took more than {self._service.timeout:g} s"
                if timeouts == _MOST_TIMEOUTS:
                    message = f"{trouble}, {timeouts} times"
                    accepted = "more, or shorter responses"
                    raise InvalidInput(self._service.base_url, "timeout", message, accepted) from None
            except httpx.RequestError as error:
                failures += not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                trouble = f"{type(error).__name__} ({first_line(error)})"
            if failures == _MOST_FAILURES:
                raise UserError(f"{self._service.base_url}: a request failed {failures} times, at last: {trouble}")
            if asked_at - self._last_answer > self.patience_seconds:
                raise UserError(
                    f"{self._service.base_url}: no answer for {self.patience_seconds:.0f} s: {trouble}; finished "
                    "samples are kept, and the same command goes on from them"
                )
            if time.monotonic() - self._said_at > _SECONDS_BETWEEN_LINES:
                self._said_at = time.monotonic()
                print(printable(f"{self._service.base_url}: {trouble}; asking again"), flush=True)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # not all at the same moment
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _body(self, request: Request) -> dict[str, Any]:
        sampling, stop = self._settings.sampling, list(self._settings.stop)
        body: dict[str, Any] = {
            "model": self._service.model,
            **request.body,
            "max_tokens": request.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": stream_seed(request.identity),
            "n": 1,
            "stop": stop or None,
            "top_k": sampling.top_k or None,  # not part of OpenAI's interface, so only where it is asked for
            "min_p": sampling.min_p or None,
            **self._service.extra_body,
        }
        return {key: value for key, value in body.items() if value is not None}


async def _close(client: httpx.AsyncClient, unanswered: Iterable[asyncio.Task[Response]]) -> None:
    for task in unanswered:
        task.cancel()
    await asyncio.gather(*unanswered, return_exceptions=True)
    await client.aclose()
    await asyncio.get_running_loop().shutdown_asyncgens()  # of answers that could not be unpacked


def make_client(service: Service) -> httpx.AsyncClient:
    """A client of a server, with the key of the service's environment variable, if it is set."""
    key = os.environ.get(service.api_key_variable, "")
    if not re.fullmatch(r"[!-~]*", key):
        complaint = "has a character that no key has, such as a space or a line feed at its end"
        raise InvalidInput(service.api_key_variable, "", complaint, "printable ASCII")
    return httpx.AsyncClient(
        base_url=f"{service.base_url.rstrip('/')}/",
        # Not compressed: a small answer can stand for more than the memory.
        headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
        timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),  # of the whole answer: ask
        limits=httpx.Limits(max_connections=None),
        follow_redirects=False,  # a key goes to the address that was named, and nowhere else
    )


async def ask(
    client: httpx.AsyncClient, service: Service, path: str, body: Mapping[str, Any] | None = None
) -> httpx.Response:
    """Ask a server, with the ``body`` that it is posted, if there is one; the answer is read whole.

    TimeoutError if that takes longer, from the connection to the last byte, than the service's limit; a UserError if
    the answer is too large.
    """
    async with asyncio.timeout(service.timeout), client.stream("POST" if body else "GET", path, json=body) as answer:
        content, encoding = bytearray(), answer.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "deflate"):  # gzip of gzip: each stands for a thousand times more
            raise UserError(f"{service.base_url}: an answer is encoded as {encoding!r:.80}; accepted: gzip, deflate")
        unpack = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)
        async for part in answer.aiter_raw():
            try:
                content += unpack.decompress(part, _MOST_BYTES + 1) if unpack else part
            except zlib.error as error:
                raise httpx.DecodingError(f"{encoding}: {error}") from None
            if len(content) > _MOST_BYTES:
                raise UserError(f"{service.base_url}: an answer has more than {_MOST_BYTES} bytes")
        again = {name: value for name, value in answer.headers.items() if name == "retry-after"}
        return httpx.Response(answer.status_code, headers=again, content=bytes(content), request=answer.request)


def _read(answer: httpx.Response, service: Service, most: int) -> Response | str:
    """The response in an answer, of ``most`` tokens at most, or what keeps it from being one of the model."""
    where = f"{service.base_url}: model {service.model}"
    if answer.status_code in (401, 403):
        accepted = f"a key in the environment variable {service.api_key_variable}"
        raise InvalidInput(where, "", f"status {answer.status_code} ({_message(answer, service)})", accepted)
    if answer.status_code != 200:
        raise UserError(f"{where}: refuses a request with status {answer.status_code} ({_message(answer, service)})")
    try:
        content = parse_json(answer.content, where)
        if content.get("error") and not content.get("choices"):
            raise httpx.RemoteProtocolError(f"status 200 with an error: {_message(answer, service)}")
        (choice,), said = content["choices"], content.get("model")
        ended = str(choice["finish_reason"]).lower()
        if said is not None and not re.fullmatch(re.escape(service.model) + _DATE, str(said)):
            return f"is of another model, {said!r:.80}"
        if ended not in _FINISHED | _CUT:
            return f"ended by {ended!r:.80}"
        usage, text = _Usage.parse(content["usage"], where, "usage"), choice.get("text")
        if usage.completion_tokens > most:
            return f"has {usage.completion_tokens} tokens of at most {most}"
        if text is None:
            message = choice["message"]
            if message.get("refusal"):
                return "is a refusal"
            # Servers with a parser of thinking take it out of the text; the grader has to know that it was there.
            thought = message.get("reasoning") or message.get("reasoning_content")
            end = "</think>" if message.get("content") else ""
            text = (f"<think>{thought}{end}" if thought else "") + (message.get("content") or "")
        if not text and ended in _FINISHED and usage.completion_tokens != 1:  # one is the end token: nothing to say
            return "is empty"
        return Response(
            [],
            finished=ended in _FINISHED,
            text=text.encode("utf-8", "replace").decode("utf-8"),
            length=usage.completion_tokens,
            prompt_length=usage.prompt_tokens,
        )
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:  # such as a page of a proxy
        message = f"its answer has no text, finish_reason and usage ({type(error).__name__}: {first_line(error)})"
        raise httpx.RemoteProtocolError(f"{message}; accepted: OpenAI's interface, version 1") from None


def _message(answer: httpx.Response, service: Service) -> str:
    """The first line of what a server says about an error, without the key, which it may quote."""
    try:
        content = parse_json(answer.content, "")
        error = content.get("error", content)
        text = error.get("message", "") if isinstance(error, dict) else error
    except (UserError, AttributeError):
        text = answer.text
    key = os.environ.get(service.api_key_variable)
    said = (str(text).strip().splitlines() or ["no message"])[0]
    return (said.replace(key, "[the key]") if key else said)[:200]


def _seconds(text: str | None) -> float | None:
    """The seconds of a header Retry-After; None where it says none, or a date, as some servers do."""
    try:
        seconds = float(text or "nan")
    except ValueError:
        return None
    return min(_LONGEST_WAIT_SECONDS, max(0.0, seconds)) if math.isfinite(seconds) else None
