"""The first thing that happens inside a sandbox: give up what is not needed, for good."""

import json
import os
import resource
import sys
from typing import TextIO

sys.path.insert(1, "/packages")  # after this directory; numpy is there


def apply() -> None:
    """Bound this process and all that it starts; none of the bounds can be raised again.

    Two words are taken from the command line: the limits, as JSON, with ``user``, the id to become where root started
    the sandbox, and a descriptor, to which a byte is written when all is done.
    """
    limits: dict[str, int] = json.loads(sys.argv.pop(1))
    ready = int(sys.argv.pop(1))
    os.setsid()  # out of bubblewrap's own group, which it could signal otherwise
    for name, kind in (
        ("memory", resource.RLIMIT_AS),
        ("file_size", resource.RLIMIT_FSIZE),
        ("open_files", resource.RLIMIT_NOFILE),
        ("processes", resource.RLIMIT_NPROC),
    ):
        resource.setrlimit(kind, (limits[name], limits[name]))
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu"], limits["cpu"] + 1))  # a signal that says so, then the end
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))
    sys.set_int_max_str_digits(0)  # the limit on time holds for integers of any length too
    if "user" in limits:  # the kernel counts no processes of root, and root may do what nobody else may
        os.setgroups([])
        os.setgid(limits["user"])
        os.setuid(limits["user"])
    os.write(ready, b"1")
    os.close(ready)


def conversation() -> tuple[TextIO, TextIO]:
    """Standard input and output, line by line; from now on they are nobody's: no program reads or prints there."""
    questions, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w", 1)
    nothing = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    return questions, answers
