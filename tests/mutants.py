"""Counts what became of mutmut's mutants, after ``make mutants``; fails if less than 95 % of them were killed.

The tool's verdicts lie beside its copies of the files, in ``mutants``; reasons in ``mutants.yaml`` beside this module,
by file and by the line as the mutant has it.
"""

import difflib
import json
import re
import sys
from pathlib import Path

import yaml

COPIES, REASONS = Path("mutants"), Path(__file__).with_suffix(".yaml")
KILLED = (1, 3, 24, -24, 36, 152, 255)  # exit codes: a test failed, or could not be run at all, or never ended
LEAST = 0.95


def body(source: str, function: str) -> list[str]:
    """The lines of a function or method that the tool generated, without those of its head's name."""
    found = re.search(rf"^( *)def {function}\(.*\n((?:\1[ )].*\n|\n)*)", source, re.MULTILINE)
    assert found is not None, function
    return [" ".join(line.split()) for line in found[2].splitlines()]


def changed(source: str, mutant: str) -> str:
    """The lines that a mutant has in place of the original's; where it only lacks some, these with a minus."""
    original = body(source, mutant.rpartition("__mutmut_")[0] + "__mutmut_orig")
    lines = [line for line in difflib.ndiff(original, body(source, mutant)) if line[:2] in ("+ ", "- ")]
    return " ".join(line[2:] for line in lines if line[0] == "+") or " ".join(lines)


def main() -> int:
    """Print a line for each file and each survivor without a reason; return the exit status."""
    reasons: dict[str, dict[str, str]] = yaml.safe_load(REASONS.read_text())
    made = dead = 0
    unexplained: list[str] = []
    for verdicts in sorted(COPIES.rglob("*.meta")):
        codes: dict[str, int | None] = json.loads(verdicts.read_text())["exit_code_by_key"]
        copy = verdicts.with_suffix("")
        file = str(copy.relative_to(COPIES))
        survivors = [name.rpartition(".")[2] for name, code in codes.items() if code not in KILLED]
        source = copy.read_text()
        lines = {name: changed(source, name) for name in survivors}
        open_ones = [f"{file}: {name}: {line}" for name, line in lines.items() if line not in reasons.get(file, {})]
        made, dead = made + len(codes), dead + len(codes) - len(survivors)
        unexplained += open_ones
        if codes:
            counts = f"{len(codes)} mutants, {len(codes) - len(survivors)} killed, {len(survivors)} survived"
            print(f"{file}: {counts}, {len(survivors) - len(open_ones)} of them with a reason")
    print(*unexplained, sep="\n")
    print(f"{dead} of {made} mutants killed, {dead / made:.1%}; {len(unexplained)} survivors without a reason")
    return int(dead < LEAST * made)


if __name__ == "__main__":
    sys.exit(main())
