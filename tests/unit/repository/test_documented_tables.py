"""Tables, versions and examples of pages, held to the files that they are about."""

import re
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.core.training_settings import VerlTraining
from evals.core.yaml_file import parse_yaml, read_yaml
from rlvr.methods.components import BATCHING_KINDS, KINDS
from rlvr.study.catalogue import load_catalogue, resolve_method
from rlvr.study.study import Study

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("config/*.md"),
        *ROOT.glob("packages/*/*.md"),
    ]
)
DRAWN = "generated"


def rows_below(text: str, heading: str) -> Iterator[list[str]]:
    """The rows of the first table below a heading, without its own."""
    lines = text.partition(f"\n{heading}\n")[2].splitlines()
    table = "\n".join(lines).partition("\n|")[2].partition("\n\n")[0].splitlines()[2:]
    yield from ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table)


def test_the_table_of_benchmarks_is_that_of_their_files() -> None:
    entries = {path.stem: read_yaml(path) for path in (ROOT / "config/benchmarks").glob("*.yaml")}
    read = {name: entry for name, entry in entries.items() if entry["source"] != DRAWN}
    shown = {}
    for names, problems, _, _, grader, k in rows_below(
        (ROOT / "docs/benchmarks.md").read_text(), "## Available benchmarks"
    ):
        count, scored = re.fullmatch(r"([\d,]+)(?: each)?(?:, scored ([\d,]+))?", problems).groups()
        for name in re.findall(r"`(\w+)`", names):
            shown[name] = (number(count), number(scored or count), grader, number(k))
    assert shown == {
        name: (
            entry["count"],
            entry["count"] - len(entry.get("exclude", ())),
            entry["grader"],
            entry["samples_per_problem"],
        )
        for name, entry in read.items()
    }


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_table_of_training_sets_is_that_of_their_files() -> None:
    entries = {path.stem: read_yaml(path) for path in (ROOT / "config/datasets").glob("*.yaml")}
    shown = {}
    for name, *counts, _ in rows_below((ROOT / "docs/benchmarks.md").read_text(), "## Training sets"):
        shown[name.split("`")[1]] = [None if count == "recorded" else number(count) for count in counts]
    assert shown == {name: list(entry["counts"].values()) for name, entry in entries.items()}


def documented_settings(page: Path) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Of every row of a page's tables of hyper-parameters: the entries that it may be of, and the values by name."""
    catalogue = load_catalogue()
    on_the_page = sorted(
        (name for name in catalogue if f"`{name}`" in page.read_text()), key=lambda name: name != page.stem
    )
    for table in re.findall(r"^\| hyper-parameter \|.*\n(?:\|.*\n)+", page.read_text(), re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
        for name_cell, *cells in rows:
            names = re.findall(r"`(\w+)`", name_cell)
            for column, cell in zip(header[1:], cells, strict=False):
                entries = on_the_page if column == "default" else [column.strip("`")]
                values = [parse_yaml(text.split(" of ")[0].strip("` "), "") for text in cell.split(", ")[: len(names)]]
                if len(values) == len(names) and entries[0] in catalogue and cell != "the same":
                    yield entries, dict(zip(names, values, strict=True))


def settings_of(entries: list[str], names: Collection[str]) -> dict[str, Any]:
    """The values of some hyper-parameters in the first component of the first entry that has them all."""
    for name in entries:
        entry = resolve_method(name, {}, load_catalogue(), name)
        for kind in KINDS:
            component = entry["batching"][kind] if kind in BATCHING_KINDS else entry[kind]
            if component is not None and component.keys() >= set(names):
                return {each: component[each] for each in names}
    return {}


def test_hyper_parameters_of_pages_are_those_of_the_catalogue() -> None:
    rows = [
        (page.name, entries, settings)
        for page in sorted((ROOT / "docs/methods").glob("*.md"))
        for entries, settings in documented_settings(page)
    ]
    assert [(page, said) for page, entries, said in rows if settings_of(entries, said) != said] == []
    assert len({page for page, _, _ in rows}) > 10


SOURCES, MORE_SOURCES = "## Sources of the published values", "### The Cancellation Hypothesis and DFPO"


@pytest.mark.parametrize(
    ("table", "column", "file", "model"),
    [
        (SOURCES, 0, "delta", "qwen3_8b_base"),
        (SOURCES, 0, "delta", "qwen3_14b_base"),
        (SOURCES, 1, "dapo", "qwen2_5_32b"),
        (SOURCES, 2, "fipo", "qwen2_5_32b"),
        (SOURCES, 3, "directions_7b", "qwen2_5_math_7b"),
        (SOURCES, 3, "directions", "qwen3_8b_base"),
        (MORE_SOURCES, 0, "cancellation", "qwen2_5_math_7b"),
        (MORE_SOURCES, 0, "cancellation", "qwen3_4b_base"),
    ],
)
def test_settings_on_the_page_are_those_of_the_study(table: str, column: int, file: str, model: str) -> None:
    """Cells of paper_settings.md: what the paper has, with "=" where the project has it too, or what is here."""
    study = Study.read(ROOT / f"config/papers/{file}.yaml")
    run = f"{model}-{study.config.reference_method}-s1"
    training, cluster, evaluation = study.run_spec(run).training, study.cluster(run), study.config.evaluation
    assert isinstance(training, VerlTraining)
    best, rate = study.config.best_checkpoint, f"{training.learning_rate:.0e}".replace("e-0", "e-")
    warmup = training.warmup_updates // training.updates_per_step
    expected: dict[str, list[Any]] = {
        "training problems": [study.training_problems],
        "prompts x responses": [f"{training.prompts_per_step} x {training.samples_per_prompt}"],
        "updates a step": [training.updates_per_step],
        "prompt, response": [f"{training.max_prompt_tokens:,}", f"{training.max_new_tokens:,}"],
        "learning rate, warm-up, decay of weights": [rate, f"{warmup} steps" if warmup else 0, training.weight_decay],
        "gradient clip": [training.gradient_clip],
        "steps": [training.steps],
        "evaluation: samples, tokens": [evaluation.samples_per_problem, f"{evaluation.max_new_tokens:,}"],
        "evaluation: temperature, top-p": [f"{evaluation.temperature:g}", evaluation.top_p],
        "checkpoint": [f"avg@{best.k} of every {best.every} steps"] if best else ["the last"],
    }
    if table == SOURCES:
        expected["share of a GPU for rollouts"] = [f"{cluster['gpu_memory_utilization']:g} ="]
    rows = {row[0].strip(): row[1:] for row in rows_below((ROOT / "docs/results/paper_settings.md").read_text(), table)}
    wrong = [
        f"{name}: {value} is not in {rows[name][column]}"
        for name, values in expected.items()
        for value in values
        if not re.search(rf"(?<![\w.,]){re.escape(str(value))}(?!\w|[.,]\d)", rows[name][column])
    ]
    assert wrong == []
    assert all(re.search(r"=|here|–", row[column]) for name, row in rows.items() if name in expected)


def test_versions_on_pages_are_pinned_ones() -> None:
    pinned: dict[str, set[str]] = {}
    for file in (ROOT / "workflow/envs").iterdir():
        if file.is_file():
            for name, version in re.findall(r"([A-Za-z][\w.-]*)(?:\[\w+\])?==?(\d[\w.]*)", file.read_text()):
                pinned.setdefault(name.lower(), set()).add(version)
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        pinned.setdefault(package["name"], set()).add(package["version"])
    pattern = rf"\b({'|'.join(map(re.escape, pinned))}) (\d+(?:\.\d+)+)\b"
    named = [
        (page.name, name, version)
        for page in PAGES
        if page.name not in ("gpu.md", "conformance.md")  # other machines and trainers have their own
        for name, version in re.findall(pattern, page.read_text(), re.IGNORECASE)
    ]
    unknown = [
        each for each in named if not any(f"{pin}.".startswith(f"{each[2]}.") for pin in pinned[each[1].lower()])
    ]
    assert unknown == [] and len({name for _, name, _ in named}) > 2


def test_the_example_of_planning_gives_what_the_page_says() -> None:
    block = re.search(
        r"(    from evals\.statistics\.power .*?)\n\n", (ROOT / "docs/evaluation.md").read_text(), re.DOTALL
    )
    imports, *lines = [line.strip() for line in block[1].splitlines()] if block else []
    names: dict[str, Any] = {}
    exec("\n".join([imports, *(line for line in lines if "#" not in line)]), names)
    said = [line.partition("#") for line in lines if "#" in line]
    assert len(said) == 3
    for call, _, answer in said:
        assert str(eval(call, names)) == answer.split(":")[0].strip()
