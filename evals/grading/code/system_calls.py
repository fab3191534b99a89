"""System calls that a sandboxed program is refused: a seccomp filter, which bubblewrap loads before it starts anything.

Namespaces hide what is outside; this closes what they leave open: new namespaces (in which a process is root again),
memory that no limit counts (shared memory, message queues), sockets of families without a namespace (such as the link
between a virtual machine and its host), tracing, keys, parts of the kernel that no program of a benchmark needs, and
what a process does to another beside a signal, for all processes of a sandbox have one user.
"""

import errno
import json
import platform
import struct
from pathlib import Path

from evals.core.errors import UserError

TABLES = json.loads(Path(__file__).with_name("system_calls.json").read_text(encoding="utf-8"))
"""Numbers by machine, from the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.

Of the calls "refused on others" the first argument is the process; 0 is the calling one, which alone is accepted.
"""

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def seccomp_filter(forks: bool) -> bytes:
    """The filter as an array of ``struct sock_filter``; without ``forks`` a process can start threads alone."""
    if (machine := platform.machine()) not in TABLES:
        raise UserError(
            f"a model's programs cannot be run safely on {machine} processors; accepted: {', '.join(TABLES)}"
        )
    calls = TABLES[machine]
    refusal = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    threads_alone = [] if forks else [(_ANY_BIT, 1, 0, _CLONE_THREAD), refusal]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, calls["architecture"]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        refusal,
        (_EQUAL, 0, 1, calls["clone3"]),  # its flags lie in memory, out of reach: libraries fall back to clone
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_EQUAL, 0, 4 + len(threads_alone), calls["clone"]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refusal,
        *threads_alone,
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, calls["socket"]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for number in calls["refused on others"].values():
        program += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 1, 0, 0), refusal]
        program.append((_RETURN, 0, 0, _ALLOW))
    for number in [*calls["refused"].values(), *(() if forks else calls["forks"].values())]:
        program += [(_EQUAL, 0, 1, number), refusal]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
