"""Runs a candidate's program: as a script, or as functions that are called by lines on standard input.

``python candidate.py LIMITS READY script``, or ``serve NAME``. Nothing in this process is secret: a program can read
and change all of it, and can do no more than give other answers.
"""

import json
import sys
from typing import Any

import limits  # type: ignore[import-not-found]
import values  # type: ignore[import-not-found]

PROGRAM = "/program.py"


def main() -> None:
    """Run what the command line says."""
    limits.apply()
    with open(PROGRAM, encoding="utf-8") as file:
        source = file.read()
    if sys.argv[1] == "script":
        sys.argv = [PROGRAM]
        exec(compile(source, PROGRAM, "exec"), {"__name__": "__main__", "__file__": PROGRAM})
    else:
        _serve(source, sys.argv[2])


def _serve(source: str, name: str) -> None:
    """Answer each line, a list of arguments, with a line: what the function returned, or the exception's name."""
    calls, answers = limits.conversation()
    function, failure = _load(source, name)
    for line in calls:
        try:
            answer = {"value": values.dump(function(*values.load(line)))} if function else {"raised": failure}
        except BaseException as error:
            answer = {"raised": type(error).__name__}
        answers.write(json.dumps(answer) + "\n")


def _load(source: str, name: str) -> tuple[Any, str]:
    """The function ``name``, or ``Class.method`` of a new object; or the name of what loading it raised."""
    try:
        namespace: dict[str, Any] = {"__name__": "candidate"}
        exec(compile(source, PROGRAM, "exec"), namespace)
        first, *rest = name.split(".")
        found = namespace[first]
        for part in rest:
            found = getattr(found() if isinstance(found, type) else found, part)
    except BaseException as error:  # SystemExit too
        return None, type(error).__name__
    return found, ""


if __name__ == "__main__":
    main()
