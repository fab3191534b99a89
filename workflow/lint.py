"""Run ``snakemake --lint``, less the finding that each rule should name a conda environment or container of its own.

All rules of a laptop study share one environment, made from requirements.lock or environment.yml; a second one per rule
would be a second set of versions. Rules that need another stack (verl, vLLM) name it.
"""

import re
import subprocess
import sys

_ACCEPTED = "Specify a conda environment or container for each rule."
_PLACE = re.compile(r"^Lints for (?P<place>.+):$")
_FINDING = re.compile(r"^    \* (?P<title>.+):$")


def findings(report: str) -> list[str]:
    """One line for each finding of a ``snakemake --lint`` report, but the accepted one.

    (The report is read as text because ``--lint json`` prints text as well, as of Snakemake 9.27.)
    """
    found: list[str] = []
    place = ""
    for line in report.splitlines():
        if match := _PLACE.match(line):
            place = match["place"]
        elif (match := _FINDING.match(line)) and match["title"] != _ACCEPTED:
            found.append(f"{place}: {match['title']}")
    return found


def main() -> None:
    """Lint the workflow in the working directory; exits with 1 if there are findings or it cannot be read."""
    command = [sys.executable, "-m", "snakemake", "--lint", *sys.argv[1:]]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if answer.returncode != 0 and not any(_PLACE.match(line) for line in answer.stdout.splitlines()):
        sys.exit(answer.stdout)
    found = findings(answer.stdout)
    print("\n".join(found) or "snakemake --lint: no findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
