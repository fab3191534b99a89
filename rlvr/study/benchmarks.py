"""The benchmarks and the training set of a study: their files in config/, and the local copies that replace the Hub."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.config import problem_sets
from evals.core.config.problem_sets import GENERATED, Benchmark, PublishedSet, TrainingSet, parse_benchmark
from evals.core.config.sections import DrawnProblems, LocalCopy, Problems, PublishedProblems
from evals.core.errors import InvalidInput
from evals.core.yaml_file import read_yaml
from evals.problems.releases import RELEASES
from rlvr.study.source_files import CONFIG, REPOSITORY

BENCHMARKS = CONFIG / "benchmarks"
DATASETS = CONFIG / "datasets"

_NOT_OF_THE_PROBLEMS = frozenset(
    {"title", "description", "licence", "prompt", "samples_per_problem", "source", "verifier", "extraction"}
    | {"max_new_tokens"}
)
"""Keys that do not decide which problems a set has."""


@dataclass(frozen=True)
class StudyBenchmark:
    """A benchmark as a study uses it: its file in config/benchmarks, and the local copy that replaces the Hub."""

    name: str
    entry: Benchmark
    copy: LocalCopy | None = None

    @property
    def path(self) -> str | None:
        """The absolute path of what is read; None for a generated benchmark or the Hub."""
        if self.copy is not None:
            return absolute_path(self.copy.path)
        return absolute_path(self.entry.path) if isinstance(self.entry, problem_sets.FileBenchmark) else None

    @property
    def grader(self) -> str:
        """The grader of the responses: math, choice or code."""
        return self.entry.grader if isinstance(self.entry, problem_sets.ReadBenchmark) else "math"

    def prompt(self, form: str) -> str:
        """The prompt template for a ``base`` model or for a ``chat`` model's user turn."""
        prompt = self.entry.prompt
        return prompt if isinstance(prompt, str) else str(getattr(prompt, form))

    def problem_settings(self) -> dict[str, Any]:
        """The values that decide the problems: with a changed prompt or title they are not read again."""
        if isinstance(self.entry, problem_sets.GeneratedBenchmark):
            return {"kinds": [self.entry.kind], "count": self.entry.count, "seed": self.entry.seed}
        settings = self.entry.to_json() | (self.copy.to_json() if self.copy else {})
        settings |= {"path": self.path} if self.path else {}
        return {"name": self.name, **_deciding(settings)}


def read_benchmarks(names: Iterable[str], copies: Mapping[str, LocalCopy], source: str) -> dict[str, StudyBenchmark]:
    """Read the benchmarks ``names``, some of which a study has local copies of; ``source`` names the study."""
    for name in copies:
        if _read_benchmark(name, source, "benchmark_sources").source == GENERATED:
            accepted = "a benchmark that is read from the Hub or a file"
            raise InvalidInput(source, "benchmark_sources", f"{name!r} is generated", accepted)
    entries = {name: _read_benchmark(name, source, "benchmarks") for name in names}
    return {name: StudyBenchmark(name, entry, copies.get(name)) for name, entry in entries.items()}


def training_settings(problems: DrawnProblems | PublishedSet, source: str, key: str = "problems") -> dict[str, Any]:
    """The values that decide problems that a study trains on, methods or a model: drawn, or a set's of config/datasets.

    ``source`` and ``key`` say where the problems are named.
    """
    if isinstance(problems, DrawnProblems):
        values = problems.to_json()
        return {key: values[key] for key in ("kinds", "count", "seed")}
    training_set = _read_training_set(problems, source, key)
    if training_set.repository is None and problems.path is None:
        accepted = f"a file of {training_set.title}, which is not read from the Hub (docs/benchmarks.md)"
        raise InvalidInput(source, f"{key}.path", "is missing", accepted)
    entry = training_set.to_json()
    changes: dict[str, Any] = {"exclude": sorted(problems.exclude)} if problems.exclude else {}
    changes |= {"path": absolute_path(problems.path)} if problems.path else {}
    return {"name": problems.source, **_deciding(entry), **changes}


def require_solutions(settings: Mapping[str, Any], name: str, source: str, key: str) -> None:
    """Check that problems with these settings have solutions; ``name`` is what the study calls them."""
    release = settings.get("columns")
    if not isinstance(release, str) or not RELEASES[release].has_solutions:
        known = ", ".join(known for known, release_form in RELEASES.items() if release_form.has_solutions)
        accepted = f"a file, or a set in the form of a release that has them: {known} (docs/benchmarks.md)"
        raise InvalidInput(source, key, f"names {name}, which have no solutions", accepted)


def training_title(problems: Problems, source: str) -> str:
    """The name of the training problems for people."""
    return GENERATED if isinstance(problems, DrawnProblems) else _read_training_set(problems, source).title


def training_verifier(problems: Problems, source: str) -> str | None:
    """The user's file that gives the rewards: that of the study, or of its training set."""
    if problems.verifier is None and isinstance(problems, PublishedProblems):
        return _read_training_set(problems, source).verifier
    return problems.verifier


def absolute_path(path: str) -> str:
    """The path behind one of a configuration, relative to the repository whatever directory the study works in."""
    return str((REPOSITORY / Path(path).expanduser()).resolve())


def _deciding(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in _NOT_OF_THE_PROBLEMS}


def _read_training_set(problems: PublishedSet, source: str, key: str = "problems") -> TrainingSet:
    path = _file_of(DATASETS, problems.source, source, f"{key}.source", "training set")
    return TrainingSet.parse(read_yaml(path), f"config/datasets/{path.name}")


def _read_benchmark(name: str, source: str, key: str) -> Benchmark:
    path = _file_of(BENCHMARKS, name, source, key, "benchmark")
    return parse_benchmark(read_yaml(path), f"config/benchmarks/{path.name}")


def _file_of(directory: Path, name: str, source: str, key: str, kind: str) -> Path:
    path = directory / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in directory.glob("*.yaml")))
        raise InvalidInput(source, key, f"{name!r} is no {kind}", known)
    return path
