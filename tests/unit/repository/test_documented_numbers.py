"""Numbers that pages state about the present software, each beside the file or the code that decides it.

Numbers that were measured are not here; pages name the command that made them.
"""

import itertools
import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from evals.core.comparisons import FALL
from evals.core.yaml_file import read_yaml
from evals.grading.code.run import CANDIDATE, CASE
from rlvr.base_model.corpus import FlawedArithmetic, draw_corpus
from rlvr.base_model.tokenizer import build_word_tokenizer
from rlvr.study.evaluation import Distribution
from rlvr.study.studies import named_study_files
from rlvr.study.study import Study

ROOT = Path(__file__).resolve().parents[3]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
MIB, GIB = 1024**2, 1024**3


@cache
def study(name: str) -> Study:
    return Study.read(ROOT / "config" / name)


def constant(name: str) -> Any:
    """``evals.core.manifest:SCHEMA``."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


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


OF_THE_DEFAULT_STUDY = {
    "README.md": [
        "trains {methods} methods with up to {seeds} seeds",
        "avg@{k} over {benchmarks} benchmarks of {problems} problems",
        "interval lies within {margin} points",
        "{bases} base models",
    ],
    "docs/tokens.md": [
        "rollouts_kept_every: {kept}",
        "of its first step and of every {kept}th",
    ],
}
OF_THE_SHARPENING_STUDY = {
    "config/README.md": [
        "with {more_seeds} seeds of every method",
        "Their policies after {first} and {second} of {long_steps} steps are scored too",
    ],
    "docs/faq.md": ["that of `config/sharpening.yaml` with {more_seeds} seeds"],
    "docs/results/studies.md": [
        "{methods} methods, three of them controls, {steps} rollout steps",
        "after {looks} seeds, with a margin of {margin} points",
        "continues it to {seeds} seeds of every method",
        "these {all_problems} problems",
        "`config/thorough.yaml` has {more_seeds} seeds",
        "with whole groups, {long_steps} steps each",
        "{named_seeds} to {more_named_seeds} seeds, and both controls",
    ],
    "docs/results/task_design.md": [
        "the {benchmarks} benchmarks of {problems} problems with {k} samples",
        "(docs/results/studies.md), {seeds} seeds each",
        "{updates} optimizer steps per rollout batch**, each on {in_mini_batch} rollouts",
        "learning rate is {rate}:",
        "all methods at {rate}",
        "Care multiplies the error rate of the way by {care}, haste by {haste}",
        "{usual} of ten are the usual one",
        "(family `worded`, {shortest} to {longest} digits)",
    ],
}
PAGES = [("config.yaml", page, said) for page, said in OF_THE_DEFAULT_STUDY.items()]
PAGES += [("sharpening.yaml", page, said) for page, said in OF_THE_SHARPENING_STUDY.items()]


@pytest.mark.parametrize(("name", "page", "said"), PAGES, ids=[f"{name} {page}" for name, page, _ in PAGES])
def test_a_study_is_described_as_it_is(name: str, page: str, said: list[str]) -> None:
    facts = of_the_study(name)
    names = {statement: re.findall(r"\{(\w+)\}", statement) for statement in said}
    require(page, [(statement, [facts[fact] for fact in names[statement]]) for statement in names])


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTANTS: dict[str, dict[str, Any]] = {
    "README.md": {"Python {} with venv": PROJECT["tool"]["mypy"]["python_version"]},
    "CONTRIBUTING.md": {"form: {} columns": PROJECT["tool"]["ruff"]["line-length"]},
    "docs/evaluation.md": {
        "only if at least {} problems have a success": "evals.statistics.interval:MINIMUM_INFORMATIVE_PROBLEMS",
        "multiplied by 1 + {} / N": "evals.statistics.interval:_HIDDEN_TAIL",
        "null if fewer than {} problems differ": "evals.scores.comparison:MINIMUM_DIFFERING_PROBLEMS",
        "accuracies are compared: {} or more each": "evals.scores.printed:FEWEST_UNEQUAL_SAMPLES",
        "| {} steps, the middles of equal parts": "rlvr.study.study:DEFAULT_STEPS",
        "max_t R_t - R_end >= max({},": FALL.points / 100,
        "a tenth of the steps (at least {})": "evals.statistics.robust:_SHORTEST_WINDOW",
    },
    "docs/grading.md": {
        "(seconds of processor time per comparison, {})": int(constant("evals.grading.pool:DEFAULT_TIME_LIMIT")),
        "(MiB per worker, {})": f"{constant('evals.grading.pool:DEFAULT_MEMORY_LIMIT') // MIB}",
        "exactly or to {} digits": "evals.grading.symbolic:PRECISION",
        "at least {} decimals **and** {} significant": (
            constant("evals.grading.exact:ROUNDED_DECIMALS"),
            constant("evals.grading.exact:ROUNDED_DIGITS"),
        ),
        "names the first {} disagreements": "evals.audit.run:DISAGREEMENTS_LISTED",
        "longer than {} characters or nested deeper than {} are": (
            constant("evals.grading.normalisation:MAX_LENGTH"),
            constant("evals.grading.normalisation:MAX_DEPTH"),
        ),
        "the last {} characters are read first": "evals.grading.multiple_choice:_TAIL",
        "itself {} seconds after its limit": "evals.grading.workers:_BACKSTOP",
        "{} times as much wall-clock time is": "evals.grading.verdict:WALL_CLOCK",
        "{} s for all calls of a problem and {} s for each case": (CANDIDATE.cpu, CASE.cpu),
        "; {} times as much wall-clock time; {} GiB of": (
            constant("evals.grading.verdict:WALL_CLOCK"),
            CANDIDATE.memory // GIB,
        ),
        "`/tmp` of {} MiB and {} files": (
            CANDIDATE.disk // MIB,
            str(constant("evals.grading.code.sandbox:MOST_FILES")),
        ),
        "one process of {} threads": CANDIDATE.processes,
    },
    "docs/your_verifier.md": {
        "{} s of processor time for a response": int(constant("evals.grading.pool:DEFAULT_TIME_LIMIT")),
        "({} s of wall-clock time)": int(
            constant("evals.grading.pool:DEFAULT_TIME_LIMIT") * constant("evals.grading.verdict:WALL_CLOCK")
        ),
        "time), {} GiB of memory": constant("evals.grading.pool:DEFAULT_MEMORY_LIMIT") // GIB,
        "more than {} responses, and more than a tenth": "evals.grading.code.verifier:ALLOWED_FAILURES",
        "(at most {} characters)": "evals.grading.verdict:_MAX_ANSWER_KEPT",
    },
    "docs/benchmarks.md": {
        "{}, {} and the largest `max_new_tokens`": tuple(
            Distribution.model_fields[key].default for key in ("temperature", "top_p")
        ),
        "double up to {} s": int(constant("evals.generation.server_backend:_LONGEST_PAUSE_SECONDS")),
        "{} % of the problem's runs of {} words": (
            round(100 * constant("evals.problems.disjoint:NEARLY_ALL")),
            constant("evals.problems.disjoint:RUN_LENGTH"),
        ),
        "runs the {} mathematics sets": len(study("real_benchmarks.yaml").benchmarks),
        "({} problems, ": sum(
            each.entry.count - len(each.entry.exclude or ())
            for each in study("real_benchmarks.yaml").benchmarks.values()
        ),
        "{} samples of {} tokens each)": (
            study("real_benchmarks.yaml").config.evaluation.samples_per_problem,
            study("real_benchmarks.yaml").config.evaluation.max_new_tokens,
        ),
    },
    "config/README.md": {"{} real benchmarks from local files": len(study("real_benchmarks.yaml").benchmarks)},
    "docs/other_tools.md": {"unpacks to more than {} GiB": constant("evals.logs.unpacking:MOST_BYTES") // GIB},
    "docs/real_model.md": {
        "a model of more than {} MiB": constant("rlvr.engines.local.memory:SMALL") // MIB,
        "at most 2^{} numbers": constant("rlvr.engines.local.policy:LOGITS_AT_ONCE").bit_length() - 1,
    },
    "docs/faq.md": {"the first response to {} problems": "rlvr.report.mlflow.projection:PROBLEMS_IN_TABLE"},
    "docs/paper_scale.md": {
        "{} steps, as few rollouts": "rlvr.study.rehearsal:STEPS",
        "over the ranks ({} or more)": constant("rlvr.study.rehearsal:_LEAST_ROLLOUTS"),
    },
    "docs/results/paper_settings.md": {
        "every {} steps by AIME 2025 avg@{}": (
            study("papers/delta.yaml").config.best_checkpoint.every,
            study("papers/delta.yaml").config.best_checkpoint.k,
        ),
    },
}


@pytest.mark.parametrize("page", CONSTANTS)
def test_limits_and_defaults_are_those_of_the_code(page: str) -> None:
    statements = []
    for statement, named in CONSTANTS[page].items():
        value = constant(named) if isinstance(named, str) and ":" in named else named
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
