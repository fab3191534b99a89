"""The verifier of problems whose answer is their tests, in the form of Eurus-2-RL-Data: 1 if all of them are passed.

The answer is JSON, ``{"inputs": [...], "outputs": [...]}``: what a script reads and has to print, or with ``fn_name``
the arguments of a function and its value. The program is the last closed Markdown block of Python. It runs in processes
of its own, a fork for each test, so that the outputs are never in its memory; the first test that fails ends them.
"""

import json
import re
import signal
import subprocess
import sys
from decimal import Decimal, ExtendedContext, localcontext
from itertools import zip_longest

SECONDS = 30
"""Wall-clock time of all tests of a response; each test has the processor time that the sandbox gives a process."""

_BLOCK = re.compile(r"^```(?:python3?|py)?[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\n|[^\s]+")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
_PREAMBLE = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from collections import *
from typing import *
sys.setrecursionlimit(50000)
"""
_CALL = """
import json as _json
_f = getattr(Solution(), {name!r}) if "Solution" in globals() else {name}
_value = _f(*_json.loads(input()))
print()
print(_json.dumps(_value))
"""
# Reads the program, then an input a line; writes an output a line, null where the program failed.
_RUNNER = r"""
import json, os, select, signal, sys
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, typing

def run(code, given):
    (stdin, feed), (result, stdout) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(stdin, 0), os.dup2(stdout, 1)
            os.closerange(3, 64)
            sys.stdin, sys.stdout = open(0), open(1, "w")
            try:
                exec(code, {"__name__": "__main__", "exit": sys.exit, "quit": sys.exit})
                status = 0
            except SystemExit as end:
                status = 0 if end.code in (None, 0) else 1
            sys.stdout.flush()
        finally:
            os._exit(status)
    os.close(stdin), os.close(stdout)
    output = b""
    while len(output) < 1 << 24:
        readable, writable, _ = select.select([result], [feed] if feed else [], [])
        if writable:
            try:
                given = given[os.write(feed, given[:select.PIPE_BUF]):]
            except BrokenPipeError:
                given = b""
            if not given:
                os.close(feed)
                feed = None
        if readable:
            part = os.read(result, 1 << 16)
            if not part:
                break
            output += part
    else:
        os.kill(child, signal.SIGKILL)
    for end in (feed, result):
        if end:
            os.close(end)
    return output if os.waitpid(child, 0)[1] == 0 else None

program = compile(json.loads(sys.stdin.readline()), "program", "exec")
for line in sys.stdin:
    output = run(program, json.loads(line).encode())
    os.write(1, json.dumps(output and output.decode("utf-8", "replace")).encode() + b"\n")
"""


def verify(problem, response):
    """1 if the response's program passes all tests of the problem; 0 if it fails one, or there is no program."""
    tests = json.loads(problem["answer"])
    name, pairs = tests.get("fn_name"), list(zip(tests["inputs"], tests["outputs"], strict=True))
    blocks = _BLOCK.findall(response)
    if not blocks:
        return 0
    source = _PREAMBLE + blocks[-1] + (_CALL.format(name=name) if name else "")
    command = [sys.executable, "-I", "-S", "-c", _RUNNER]
    runner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    signal.signal(signal.SIGALRM, _end)
    signal.alarm(SECONDS)
    try:
        _write(runner, source)
        return int(all(_passes(runner, name, *pair) for pair in pairs))
    except (TimeoutError, OSError):  # or the program ended its runner
        return 0
    finally:
        signal.alarm(0)
        runner.kill()


def _end(*_):
    raise TimeoutError


def _write(runner, value):
    runner.stdin.write(json.dumps(value).encode() + b"\n")
    runner.stdin.flush()


def _passes(runner, name, given, wanted):
    _write(runner, json.dumps(given) if name else _text(given))
    try:
        found = json.loads(runner.stdout.readline())
    except ValueError:  # the runner ended: the program cannot be compiled
        return False
    if found is None:
        return False
    if not name:
        return _same(found, _text(wanted))
    try:
        value = json.loads(found.splitlines()[-1])
    except (ValueError, IndexError, RecursionError):  # the program ended before the call, and printed something else
        return False
    return value == wanted or [value] == wanted  # values stand in the data as they are, or in a list of one


def _text(value):
    """Standard input or output: text, or a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _same(found, wanted):
    """Equal line by line, but for white space; words that are equal numbers are equal."""
    words, others = (_WORD.finditer(text.strip()) for text in (found, wanted))
    return all(word and other and _same_word(word[0], other[0]) for word, other in zip_longest(words, others))


def _same_word(word, other):
    is_number = len(word) < 100 and _NUMBER.fullmatch(word) and _NUMBER.fullmatch(other)
    if word == other or not is_number:
        return word == other
    with localcontext(ExtendedContext):  # in which 1e99..9 of nineteen nines is no number, and raises nothing
        return Decimal(word) == Decimal(other)
