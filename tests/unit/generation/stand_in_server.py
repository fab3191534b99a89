"""A server with OpenAI's interface on the loopback device that fails, delays, disconnects and restarts when told."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Trouble:
    """What happens to one request instead of its answer."""

    status: int = 0  # 0: none, or the connection breaks
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # before whatever happens
    disconnects: bool = False
    content: Any = None  # of the answer, in place of a response


Plan = Callable[[int, Mapping[str, Any]], Trouble | None]
"""What happens to a request, by its number from 0 and its body; None: it is answered."""


class StandIn:
    """The server; a sample's text is decided by its seed, as it should be."""

    def __init__(self, plan: Plan = lambda number, body: None) -> None:
        self.plan = plan
        self.bodies: list[Mapping[str, Any]] = []
        self.keys: list[str | None] = []
        self.most_at_a_time = 0
        self._lock, self._running = threading.Lock(), 0
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def start(self) -> None:
        """Start, or start again at the same address."""
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, {"data": [{"id": "small", "owned_by": "stand-in"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stand_in._lock:
                    number = len(stand_in.bodies)
                    stand_in.bodies.append({**body, "path": self.path})
                    stand_in.keys.append(self.headers.get("Authorization"))
                    stand_in._running += 1
                    stand_in.most_at_a_time = max(stand_in.most_at_a_time, stand_in._running)
                try:
                    self._answer(stand_in.plan(number, body), body)
                finally:
                    with stand_in._lock:
                        stand_in._running -= 1

            def _answer(self, trouble: Trouble | None, body: Mapping[str, Any]) -> None:
                trouble = trouble or Trouble()
                time.sleep(trouble.seconds)
                if trouble.disconnects:
                    self.connection.close()
                elif trouble.status:
                    self._send(trouble.status, trouble.content or {"error": {"message": "no"}}, trouble.headers)
                else:
                    self._send(200, trouble.content or response_to(body))

            def _send(self, status: int, content: Any, headers: Mapping[str, str] = {}) -> None:
                text = json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *words: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.handle_error = lambda *words: None  # type: ignore[method-assign]
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Stop: connections are refused."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


def response_to(body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a body: its seed decides text and length."""
    text, is_chat = f"seed {body['seed']} \\boxed{{{body['seed'] % 10}}}", "messages" in body
    choice: dict[str, Any] = {"message": {"content": text}} if is_chat else {"text": text}
    choice["finish_reason"] = "length" if body["seed"] % 3 == 0 else "stop"
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 5 + body["seed"] % 5}}
