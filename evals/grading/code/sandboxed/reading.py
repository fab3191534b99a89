"""Reading from a process that may write for ever, or nothing: inside a sandbox and outside."""

import os
import select
import time


def read(descriptor: int, seconds: float, limit: int, end: bytes | None = None) -> bytes | None:
    """Read until the output ends in ``end``, is closed or longer than ``limit``; None when time runs out."""
    deadline, output = time.monotonic() + seconds, bytearray()
    while len(output) <= limit and not (end and output.endswith(end)):
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([descriptor], [], [], remaining)[0]:
            return None
        part = os.read(descriptor, 1 << 16)
        if not part:
            break
        output += part
    return bytes(output)
