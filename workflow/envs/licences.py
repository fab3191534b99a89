"""Write docs/licences.md: every package of the lock files, and the licence that its own metadata names.

python workflow/envs/licences.py PACKAGES... > docs/licences.md    # `make licences`: the site-packages to look in
"""

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"requirements.lock": "a study, and its tests", "workflow/envs/engines.lock": "the tests with verl and vLLM"}
_HEADER = """\
# Licences of the packages that are installed

What the metadata of each locked package says; made by `make licences`, never by hand. The project itself is under
Apache-2.0 and contains none of them. A licence of several parts covers what the package includes.
"""
_LONGEST = 60  # characters of a licence's name; a longer field is the licence itself
NOT_STATED = "not stated"


def licence(package: Distribution) -> str:
    """The licence as the package names it: its expression, else classifiers, its field, or its file's first line."""
    facts = package.metadata.json
    if expression := facts.get("license_expression"):
        return str(expression)
    classifiers = [each.split(" :: ")[-1] for each in facts.get("classifier", ()) if each.startswith("License")]
    field = str(facts.get("license", "")).strip()
    stated = [each for each in classifiers if each != "OSI Approved"] or [field, *_first_lines(package)]
    return ", ".join(classifiers) if stated == classifiers else next(filter(_is_name, stated), NOT_STATED)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and "\n" not in text


def _first_lines(package: Distribution) -> Iterable[str]:
    """The titles of the licence files that came with a package."""
    for file in package.files or ():
        if re.search(r"dist-info/(licenses/)?(LICEN[CS]E|COPYING)[^/]*$", str(file)):
            text = file.read_text()
            is_mit = text.startswith("Copyright") and "Permission is hereby granted, free of charge" in text
            yield "MIT" if is_mit else text.strip().partition("\n")[0]


def page(packages: Sequence[str]) -> str:
    """The page; ``packages`` are the directories with installed packages. One that is in none of them is an error."""
    licences = {
        (_name(distribution.name), distribution.version.split("+")[0]): licence(distribution)
        for distribution in distributions(path=list(packages))
    }
    rows: dict[tuple[str, str], list[str]] = {}
    for lock in LOCKS:
        pins = re.findall(r"^([\w.-]+)==([^\s+]+)", (ROOT / lock).read_text(encoding="utf-8"), re.MULTILINE)
        for name, version in pins:
            rows.setdefault((_name(name), version), []).append(lock)
    missing = [f"{name}=={version}" for name, version in rows if (name, version) not in licences]
    if missing:
        sys.exit(f"error: {', '.join(missing)}: not installed below {', '.join(packages)}")
    lines = [f"- `{lock}`: {purpose}" for lock, purpose in LOCKS.items()]
    table = ["| package | version | licence | in |", "|---|---|---|---|"]
    for name, version in sorted(rows):
        locks = "both" if len(rows[name, version]) == len(LOCKS) else f"`{Path(rows[name, version][0]).name}`"
        table.append(f"| {name} | {version} | {licences[name, version]} | {locks} |")
    return "\n".join([_HEADER, *lines, "", *table, ""])


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    print(page(sys.argv[1:]), end="")
