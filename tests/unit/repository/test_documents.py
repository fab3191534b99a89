"""Documents: versions, licence, links, files, commands and methods that they name."""

import hashlib
import itertools
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import typer
import yaml
from pydantic import TypeAdapter
from snakemake.cli import parse_config

from evals.core.config.base_models import FineTuned, HuggingFace, Model
from evals.core.yaml_file import read_yaml
from rlvr.cli import main
from rlvr.cli.application import commands
from rlvr.study.studies import Studies, asked_names
from rlvr.study.study_file import read_study

ROOT = Path(__file__).resolve().parents[3]


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("packages/*/**/*.md")])


def test_the_version_is_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version, citation = project["version"], yaml.safe_load((ROOT / "CITATION.cff").read_text())
    urls = project["urls"]
    assert [citation[key] for key in ("version", "url", "repository-code")] == [
        version, urls["Homepage"], urls["Repository"],
    ]  # fmt: skip
    releases = re.findall(r"^## \[(.*?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[:2] == [("Unreleased", ""), (version, citation["date-released"])]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlvr-bench {version}\n"


def test_the_licence_is_apache_2_in_full() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == "Apache-2.0"
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == "Apache-2.0"


def test_files_that_pages_name_exist() -> None:
    missing = []
    for page in PAGES:
        text = page.read_text()
        folders = "workflow|rlvr|evals|config|docs|benchmarks|packages|tests"
        files = re.findall(rf"(?<![\w./-])(?:{folders})/[\w./-]*\w", text)
        real = [name for name in files if not re.search(r"NAME|foo|riddles", name)]
        places = (ROOT, page.parent) if page.is_relative_to(ROOT / "packages") else (ROOT,)
        missing += [f"{page.name}: {name}" for name in real if not any((place / name).exists() for place in places)]
    assert missing == []


def test_links_of_pages_lead_to_files_and_headings_that_exist() -> None:
    broken = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([\w-]*)\)", page.read_text()):
            file = page.parent / target if target else page
            if "://" not in target and (not file.exists() or (anchor and anchor not in anchors(file))):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_published_board_is_what_the_command_wrote() -> None:
    """A page that was edited by hand is no finding; `rlvr-bench site` writes it."""
    board = ROOT / "docs/board"
    files = {path.relative_to(board).as_posix(): path.read_bytes() for path in board.rglob("*") if path.is_file()}
    written = hashlib.sha256(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()
    others = {"index.html", "skipped_steps/index.html", "skipped_steps/study.json"}
    assert {name for name in files if not name.startswith("skipped_steps/responses/")} == others
    assert len([name for name in files if name.endswith(".js")]) > 5 * 10, "each method's responses to each benchmark"
    assert written == "64a833f2613c786927f3e0fdebd4001bdbaafef92e50df408833a23257ef714e"


def test_the_list_of_commands_says_of_each_what_it_does_in_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert len(re.findall(r"^  \w", listed, re.MULTILINE)) > 20 and "..." not in listed and "…" not in listed


def test_commands_that_pages_name_exist() -> None:
    known = {" ".join(path) for path in command_paths(commands())}
    groups = {name.rpartition(" ")[0] for name in known}
    unknown = []
    for page in PAGES:
        for words in re.findall(r"(?<![\w/.-])rlvr-bench ((?:[a-z][a-z-]*(?:\|[a-z-]+)* ?)+)", page.read_text()):
            first, _, rest = words.strip().partition(" ")
            inner = rest.partition(" ")[0].split("|") if first in groups else [""]
            names = [f"{name} {second}".strip() for name in first.split("|") for second in inner]
            unknown += [f"{page.name}: {name}" for name in names if name not in known | groups]
    assert unknown == []


def test_commands_that_pages_show_have_all_that_they_need() -> None:
    refused = []
    shown = {(page.name, line) for page in PAGES for line in command_lines(page.read_text())}
    for page, line in shown:
        command: Any = commands()
        words = shlex.split(line, comments=True)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if "--help" not in words:
            try:
                command.make_context(command.name, list(itertools.takewhile(lambda word: word not in "|<>", words)))
            except typer.TyperException as error:
                refused.append(f"{page}: rlvr-bench {line}: {error}")
    assert len(shown) > 40 and refused == []


def command_lines(page: str) -> list[str]:
    """The words after ``rlvr-bench`` of the commands that stand on lines of their own."""
    return re.findall(r"^    rlvr-bench (.*)$", re.sub(r"\\\n\s*", " ", page), re.MULTILINE)


def test_the_model_entries_of_the_page_on_real_models_are_accepted() -> None:
    page = (ROOT / "docs/real_model.md").read_text()
    blocks = re.findall(r"^    models:\n(?:     .*\n)+", page, re.MULTILINE)
    entries = [entry for block in blocks for entry in yaml.safe_load(textwrap.dedent(block))["models"].values()]
    read = [TypeAdapter[Model](Model).validate_python(entry) for entry in entries]
    assert [type(each) for each in read] == [HuggingFace, HuggingFace, FineTuned]
    assert isinstance(read[1], HuggingFace) and read[1].id and re.fullmatch("[0-9a-f]{40}", read[1].hub_revision)


def test_changes_of_the_command_line_that_pages_show_are_accepted() -> None:
    shown = [change for page in PAGES for change in re.findall(r"--config '([^']+)'", page.read_text())]
    assert shown
    for change in shown:
        content = read_study([ROOT / "config/config.yaml"], parse_config([change]))
        assert content != read_yaml(ROOT / "config/config.yaml")
        Studies(content, change)


@pytest.mark.parametrize("caption", sorted((ROOT / "workflow/report").glob("*.rst")), ids=lambda path: path.stem)
def test_captions_of_snakemakes_report_are_sentences(caption: Path) -> None:
    template = jinja2.Template(caption.read_text(), undefined=jinja2.StrictUndefined)
    for name in re.findall(r'^"(\w+)":', caption.read_text(), re.MULTILINE) or ["main"]:
        text = template.render(snakemake={"output": [f"results/tables/{name}.md"], "config": {}})
        assert text.strip().endswith(".")


def command_paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command with the groups that it is in."""
    if not hasattr(command, "commands"):
        yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_paths(inner, (*path, name))


def test_targets_of_snakemake_that_pages_name_exist() -> None:
    workflows = [ROOT / "Snakefile", ROOT / "workflow/rules/studies.smk", *ROOT.glob("packages/*/*/workflow/Snakefile")]
    rules = "".join(path.read_text() for path in workflows)
    known = {*re.findall(r"^rule (\w+):", rules, re.MULTILINE), *asked_names()}
    named = {
        word
        for page in PAGES
        for words in re.findall(r"`snakemake ([a-z_ ]+)`", page.read_text())
        for word in words.split()
    }
    assert named - known == set()


def test_every_method_is_explained_on_a_page() -> None:
    pages = {page.name: page.read_text() for page in (ROOT / "docs/methods").glob("*.md")}
    del pages["README.md"]
    entries = list(yaml.safe_load((ROOT / "config/methods.yaml").read_text()))
    assert [entry for entry in entries if not any(f"`{entry}`" in text for text in pages.values())] == []
