"""Numbers that pages state about the present software, each beside the file or the code that decides it.

Numbers that were measured are not here; pages name the command that made them.
"""

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from evals.core.yaml_file import read_yaml
from rlvr.base_model.corpus import FlawedArithmetic, draw_corpus
from rlvr.base_model.train import build_word_tokenizer
from rlvr.study.studies import named_study_files
from rlvr.study.study import Study

ROOT = Path(__file__).resolve().parents[3]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TABLE = read_yaml(Path(__file__).with_name("documented_numbers.yaml"))


@cache
def study(name: str) -> Study:
    return Study.read(ROOT / "config" / name)


def named(reference: str) -> Any:
    """What ``evals.core.manifest:SCHEMA``, or ``smoke.yaml:config.seeds`` of a study, names."""
    place, _, way = reference.partition(":")
    value: Any = {"pyproject.toml": PROJECT}.get(place)
    value = value or (study(place) if place.endswith(".yaml") else import_module(place))
    for step in way.split("."):
        value = value[step] if isinstance(value, Mapping) and step in value else getattr(value, step)
    return value


def seeds_of_named_studies() -> set[int]:
    return {len(read_yaml(path)["seeds"]) for path in named_study_files().values()}


def of_the_study(name: str) -> dict[str, Any]:
    config, benchmarks = study(name).config, study(name).benchmarks
    (model,) = config.models.values()
    training = study(name).run_spec(study(name).trained_runs[0].run).training
    (problems,) = {each.entry.count for each in benchmarks.values()}
    corpus = model.corpus
    wording = {}
    if corpus.wording is not None:
        care, _, haste = corpus.wording.manner_factors
        wording = {"care": care, "haste": haste, "usual": round(10 * corpus.wording.usual_share)}
    long = read_yaml(ROOT / "config/studies/learning_tax.yaml")
    (long_steps,) = {method["training"]["steps"] for method in long["methods"].values()}
    return {
        "long_steps": long_steps,
        "first": round(long["score_at"][0] * long_steps),
        "second": round(long["score_at"][1] * long_steps),
        "methods": len(config.methods),
        "seeds": len(config.training_seeds),
        "more_seeds": len(study("thorough.yaml").config.seeds),
        "looks": " and ".join(", ".join(map(str, config.seeds.looks)).rsplit(", ", 1)),
        "margin": f"{config.seeds.margin:g}",
        "benchmarks": len(benchmarks),
        "problems": problems,
        "all_problems": problems * len(benchmarks),
        "k": config.evaluation.samples_per_problem,
        "steps": training.steps,
        "updates": training.updates_per_step,
        "in_mini_batch": training.rollouts_per_step // training.updates_per_step,
        "rollouts": training.rollouts_per_step,
        "rate": f"{training.learning_rate:g}",
        "kept": config.execution.rollouts_kept_every,
        "bases": model.bases,
        **wording,
        "shortest": min(kind.operands for kind in corpus.kinds),
        "longest": max(kind.operands for kind in corpus.kinds),
        "named_seeds": min(seeds_of_named_studies()),
        "more_named_seeds": max(seeds_of_named_studies()),
    }


PAGES = [(name, page, said) for name, pages in TABLE["studies"].items() for page, said in pages.items()]


@pytest.mark.parametrize(("name", "page", "said"), PAGES, ids=[f"{name} {page}" for name, page, _ in PAGES])
def test_a_study_is_described_as_it_is(name: str, page: str, said: list[str]) -> None:
    facts = of_the_study(name)
    names = {statement: re.findall(r"\{(\w+)\}", statement) for statement in said}
    require(page, [(statement, [facts[fact] for fact in names[statement]]) for statement in names])


@pytest.mark.parametrize("page", TABLE["limits"])
def test_limits_and_defaults_are_those_of_the_code(page: str) -> None:
    statements = []
    for statement, expression in TABLE["limits"][page].items():
        words = re.sub(r"[\w./]+:[\w.-]+", lambda found: f"named({found[0]!r})", expression)
        value = eval(words, {"named": named, "MIB": 1024**2, "GIB": 1024**3})
        statements.append((statement, value if isinstance(value, tuple) else (value,)))
    require(page, statements)


def test_the_default_studys_model_has_the_size_that_pages_say() -> None:
    words = {}
    for name in ("config.yaml", "sharpening.yaml"):
        (config,) = study(name).config.models.values()
        corpus = config.corpus
        flaws = FlawedArithmetic((0.0,), (1.0,), 0.0, 1)
        rows = draw_corpus(corpus.kinds, 2000, 1, flaws, corpus.wording, corpus.skipping)
        words[name] = len(build_word_tokenizer(text for row in rows for text in row.values()))
    (config,) = study("config.yaml").config.models.values()
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(vocab_size=words["config.yaml"], **config.architecture.to_json()))
    parameters = sum(weights.numel() for weights in model.parameters())
    require("README.md", [("a Qwen3 of {} million parameters", [f"{parameters / 1e6:.2f}"])])
    require("docs/results/task_design.md", [("the vocabulary has about {}", [round(words["sharpening.yaml"], -1)])])


def require(page: str, statements: Iterable[tuple[str, Sequence[Any]]]) -> None:
    """Each statement has to stand on the page with its values in place of the braces, in digits or as words."""
    text = " ".join((ROOT / page).read_text().split())
    missing = []
    for statement, values in statements:
        blanks = re.sub(r"\{\w+\}", "{}", statement)
        possible = [blanks.format(*spelt) for spelt in itertools.product(*map(spellings, values))]
        missing += [] if any(each in text for each in possible) else possible[:1]
    assert missing == []


def spellings(value: Any) -> list[str]:
    """``1,000`` and ``1000``; ``eight`` and ``Eight`` for 8."""
    if isinstance(value, str) or value != int(value):
        return [str(value)]
    value = int(value)
    word = WORDS[value] if 0 <= value < len(WORDS) else f"{value:,}"
    return [f"{value:,}", str(value), word, word.capitalize()]
