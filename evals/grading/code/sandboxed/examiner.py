"""Runs a problem's tests against a candidate in another sandbox; prints the verdict.

``python examiner.py LIMITS READY TO FROM``: TO and FROM are descriptors of pipes to the candidate and back. No code of
the candidate runs here, and what comes back is plain data, so that nothing but right values can lead to "match".
"""

import json
import os
import sys
from typing import Any

import limits  # type: ignore[import-not-found]
import values  # type: ignore[import-not-found]

MAX_LINE = 64 * 1024**2


class CandidateFailed(Exception):
    """The candidate raised, returned what is no plain data, or has ended."""


class Candidate:
    """Calls the function in the other sandbox."""

    def __init__(self, to_candidate: int, from_candidate: int) -> None:
        self._calls, self._answers = os.fdopen(to_candidate, "w", 1), os.fdopen(from_candidate, "r")
        self.made = 0
        self.raised: str | None = None

    def __call__(self, *arguments: Any) -> Any:
        self.made += 1
        self.raised = "ended"
        try:
            self._calls.write(values.dump(list(arguments)) + "\n")
            answer = json.loads(self._answers.readline(MAX_LINE))
            self.raised = str(answer.get("raised"))[:100] if "raised" in answer else None
            value = values.load(answer["value"]) if self.raised is None else None
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            raise CandidateFailed(self.raised) from None
        if self.raised is not None:
            raise CandidateFailed(self.raised)
        return value


def main() -> None:
    """Print one line: ``{"reason": "match" | "mismatch" | "invalid_gold", "raised": name or null}``."""
    limits.apply()
    _, verdict = limits.conversation()  # what tests print is no verdict
    with open("/test.json", encoding="utf-8") as file:
        tests = json.load(file)
    candidate = Candidate(int(sys.argv[1]), int(sys.argv[2]))
    passed = True
    try:
        if tests["kind"] == "calls":
            passed = all(_plain(candidate(*case["arguments"])) == case["expected"] for case in tests["cases"])
        else:  # the benchmark's own test defines ``check``, or calls the function by its name
            namespace: dict[str, Any] = {"__name__": "test", tests["entry_point"]: candidate}
            exec(compile(tests["test"], "/test.py", "exec"), namespace)
            if "check" in namespace:
                namespace["check"](candidate)
    except BaseException:
        passed = False
    reason = "invalid_gold" if not candidate.made else "match" if passed else "mismatch"
    verdict.write(json.dumps({"reason": reason, "raised": candidate.raised}) + "\n")
    os._exit(0)


def _plain(value: Any) -> Any:
    """Tuples as lists and all keys as text, for expected values come from JSON, which has no others."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        plain = {key if isinstance(key, str) else json.dumps(_plain(key)): _plain(item) for key, item in value.items()}
        return plain if len(plain) == len(value) else None
    return value


if __name__ == "__main__":
    main()
