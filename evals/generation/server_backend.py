"""A server with OpenAI's interface as a backend: ``vllm serve``, SGLang, hosted models.

The server encodes prompts and decodes tokens. Requests that fail for a while are sent again: connections that break,
time-outs, statuses 408, 409, 429 and 5xx. A server that is restarted is waited for.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import httpx

from evals.core.errors import InvalidInput, UserError, first_line
from evals.core.random import stream_seed
from evals.core.run_spec import Service
from evals.generation.backend import Backend, BackendSettings, Request, Response
from evals.generation.checkpoint import Checkpoint, ServedModel

if TYPE_CHECKING:
    from evals.generation.sampler import Draws

PATIENCE_SECONDS = 1800.0
"""A server that answers no request for so long is given up: to start and to load a large model takes minutes."""
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_MOST_TIMEOUTS = 3  # of one sample: asked again and again it would never be answered
_CONNECT_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0


class ServerBackend(Backend):
    """Keeps ``sampling_batch_size`` requests under way; all pause while the server says that it is asked too much."""

    def __init__(self, checkpoints: Sequence[Checkpoint], settings: BackendSettings) -> None:
        (model,) = checkpoints
        assert isinstance(model, ServedModel), "a model behind an address"
        self._service, self._settings = model.service, settings
        self._last_answer = time.monotonic()
        self._paused_until = 0.0
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
                for place, request in islice(waiting, self._settings.sampling.sampling_batch_size - len(places)):
                    places[loop.create_task(self._answer(client, request))] = place
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
        pause, timeouts = _FIRST_PAUSE_SECONDS, 0
        while True:
            await asyncio.sleep(max(0.0, self._paused_until - time.monotonic()))
            asked_at = time.monotonic()
            try:
                answer = await client.post(endpoint(request.body), json=self._body(request))
                if answer.status_code not in _AGAIN:
                    self._last_answer = time.monotonic()
                    return _read(answer, self._service)
                trouble = f"status {answer.status_code} ({_message(answer)})"
                asked_to_wait = _seconds(answer.headers.get("Retry-After"))
                if asked_to_wait is not None or answer.status_code in (429, 503):
                    pause = max(pause, asked_to_wait or 0.0)
                    self._paused_until = max(self._paused_until, time.monotonic() + pause)
            except httpx.ReadTimeout:
                timeouts += 1
                trouble = f"a response took more than {self._service.timeout:g} s"
                if timeouts == _MOST_TIMEOUTS:
                    found = f"{trouble}, {timeouts} times"
                    raise InvalidInput(self._service.base_url, "timeout", found, "more, or shorter responses") from None
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__} ({first_line(error)})"
            if asked_at - self._last_answer > self.patience_seconds:
                raise UserError(
                    f"{self._service.base_url}: no answer for {self.patience_seconds:.0f} s: {trouble}; finished "
                    "samples are kept, and the same command goes on from them"
                )
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


def endpoint(body: Mapping[str, Any]) -> str:
    """The path below the address that a request's body belongs to."""
    return "chat/completions" if "messages" in body else "completions"


def make_client(service: Service) -> httpx.AsyncClient:
    """A client of a server, with the key of the service's environment variable, if it is set."""
    key = os.environ.get(service.api_key_variable)
    return httpx.AsyncClient(
        base_url=f"{service.base_url.rstrip('/')}/",
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(service.timeout, connect=_CONNECT_SECONDS, pool=None),
        limits=httpx.Limits(max_connections=None),
        follow_redirects=False,  # a key goes to the address that was named, and nowhere else
    )


def _read(answer: httpx.Response, service: Service) -> Response:
    """The response in an answer that will not change by asking again."""
    where = f"{service.base_url}: model {service.model}"
    if answer.status_code in (401, 403):
        accepted = f"a key in the environment variable {service.api_key_variable}"
        raise InvalidInput(where, "", f"status {answer.status_code} ({_message(answer)})", accepted)
    if answer.status_code != 200:
        raise UserError(f"{where}: refuses a request with status {answer.status_code} ({_message(answer)})")
    try:
        content = answer.json()
        (choice,), usage = content["choices"], content["usage"]
        text = choice.get("text")
        if text is None:
            message = choice["message"]
            # Servers with a parser of thinking take it out of the text; the grader has to know that it was there.
            thought = message.get("reasoning") or message.get("reasoning_content")
            end = "</think>" if message.get("content") else ""
            text = (f"<think>{thought}{end}" if thought else "") + (message.get("content") or "")
        return Response(
            [],
            finished=choice["finish_reason"] != "length",
            text=text.encode("utf-8", "replace").decode("utf-8"),
            length=int(usage["completion_tokens"]),
            prompt_length=int(usage["prompt_tokens"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"its answer has no text, finish_reason and usage ({type(error).__name__}: {first_line(error)})"
        raise InvalidInput(where, "", found, "OpenAI's interface, version 1") from None


def _message(answer: httpx.Response) -> str:
    """The first line of what a server says about an error."""
    try:
        content = answer.json()
        error = content.get("error", content)
        text = error.get("message", "") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = answer.text
    return (str(text).strip().splitlines() or ["no message"])[0][:200]


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else min(600.0, max(0.0, float(text)))
    except ValueError:  # a date, which some servers give
        return None
