"""System calls that a sandboxed program is refused: a seccomp filter, which bubblewrap loads before it starts anything.

Namespaces hide what is outside; this closes what they leave open: new namespaces (in which a process is root again),
memory that no limit counts (shared memory, message queues), sockets of families without a namespace (such as the link
between a virtual machine and its host), tracing, keys, parts of the kernel that no program of a benchmark needs, and
what a process does to another beside a signal, for all processes of a sandbox have one user.
"""

import errno
import platform
import struct
from collections.abc import Mapping

from evals.core.errors import UserError

# Numbers of the kernel's tables: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_REFUSED: Mapping[str, tuple[int, int]] = {  # name: (x86_64, aarch64)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
}
_REFUSED_ON_OTHERS: Mapping[str, tuple[int, int]] = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
"""Calls whose first argument is the process; 0 is the calling one, which alone is accepted."""
_FORKS: Mapping[str, tuple[int, ...]] = {"x86_64": (57, 58), "aarch64": ()}  # fork and vfork, which are clone elsewhere
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

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
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise UserError(
            f"a model's programs cannot be run safely on {machine} processors; accepted: {', '.join(_ARCHITECTURES)}"
        )
    column, architecture = _ARCHITECTURES[machine]
    refusal = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    threads_alone = [] if forks else [(_ANY_BIT, 1, 0, _CLONE_THREAD), refusal]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        refusal,
        (_EQUAL, 0, 1, _CLONE3[column]),  # its flags lie in memory, out of reach: libraries fall back to clone
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_EQUAL, 0, 4 + len(threads_alone), _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refusal,
        *threads_alone,
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, _SOCKET[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for numbers in _REFUSED_ON_OTHERS.values():
        program += [(_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 1, 0, 0), refusal]
        program.append((_RETURN, 0, 0, _ALLOW))
    for number in [*(numbers[column] for numbers in _REFUSED.values()), *(() if forks else _FORKS[machine])]:
        program += [(_EQUAL, 0, 1, number), refusal]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
