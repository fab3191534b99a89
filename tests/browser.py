"""A page in headless Chromium, driven as a person would: clicks at places, keys, widths, light and dark.

Chromium is spoken to through a pipe (its DevTools protocol), so that no port is opened and nothing is installed.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_NAVIGATED = "Inspected target navigated or closed"
PATIENCE_SECONDS = 600  # only a hanging page takes as long
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
    "--disable-background-networking", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """An open page; what it asks of the network or complains about is kept in ``events``."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its answer; no value where the page is left meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                received = self._read.read(1 << 16)
                assert received, "Chromium has ended"
                self._rest += received
            line, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") != self._number:
                self.events.append(answer)
                continue
            if answer.get("error", {}).get("message") == _NAVIGATED:
                return {"result": {}}
            assert "error" not in answer, answer
            result: dict[str, Any] = answer["result"]
            return result

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load an address in a window of this size."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.value(f"Boolean(document.body && ({condition}))"):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click in the middle of an element, after scrolling to it; something in front of it is an error."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{found}.scrollIntoView({{block: 'center', inline: 'center'}})")
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")  # drawn
        place = "const box = each.getClientRects()[0], x = box.x + box.width / 2, y = box.y + box.height / 2;"
        is_on_top = "each.contains(document.elementFromPoint(x, y))"
        x, y, hit = self.value(f"(() => {{ const each = {found}; {place} return [x, y, {is_on_top}]; }})()")
        assert hit, f"{selector} is covered"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key, such as ``n``, ``Enter`` or ``ArrowDown``."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(image))

    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        sent = [each["params"] for each in self.events if each.get("method") == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]

    def complaints(self) -> list[str]:
        """Errors of scripts, and of files that could not be loaded."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"].get("exception", {}).get("description")))
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found


def _high(descriptor: int) -> int:
    """The same file under a number that is not 3 or 4, where Chromium looks for its pipe."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


@contextmanager
def browser(directory: Path) -> Iterator[Page]:
    """An empty page in a Chromium of its own, whose files lie in ``directory``."""
    (theirs_in, ours_out), (ours_in, theirs_out) = (map(_high, os.pipe()) for _ in range(2))
    command = [str(CHROMIUM), *_OPTIONS, f"--user-data-dir={directory}", "about:blank"]
    joined = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command]
    process = subprocess.Popen(
        joined, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_in, ours_out)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)
