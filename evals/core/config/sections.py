"""The sections of a study file: problems, validation, evaluation, statistics, checkpoint, execution."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from evals.core.comparisons import FALL, Fall
from evals.core.config.problem_sets import Kinds, PublishedSet, Verifier, require_verifier
from evals.core.config.settings import Settings
from evals.core.errors import NotAccepted
from evals.core.numbers import BOUNDED, Count, Index, NotNegative, Positive, Share
from evals.core.records import Weighting
from evals.core.run_spec import Execution, Machines, ValidationSchedule
from evals.core.sampling import BenchmarkSampling, SamplingMachine
from evals.core.values import Name, Prompt, Seeds, Sha256, Text


class DrawnProblems(Settings):
    """Training problems that are drawn from a seed.

    The split of a generated problem follows from a hash of its text, so that no benchmark can hold a training problem.
    """

    seed: Index = Field(description="decides which problems are drawn")
    count: Count = Field(description="number of different problems")
    prompt: Prompt = Field(description="text with {problem} in it once")
    kinds: Kinds = Field(description="kinds of problems, equally likely")
    verifier: Verifier = None

    @model_validator(mode="after")
    def _check_verifier(self) -> Self:
        require_verifier(self.kinds, self.verifier)
        return self


class PublishedProblems(PublishedSet):
    """Training problems of a published set (docs/benchmarks.md)."""

    prompt: Prompt = Field(description="text with {problem} in it once")
    verifier: Verifier = None


def _kind_of_problems(content: Any) -> str:
    published = isinstance(content, PublishedProblems) or (isinstance(content, dict) and "source" in content)
    return "PublishedProblems" if published else "DrawnProblems"


Problems = Annotated[
    Annotated[DrawnProblems, Tag("DrawnProblems")] | Annotated[PublishedProblems, Tag("PublishedProblems")],
    Discriminator(_kind_of_problems),
]


class Validation(ValidationSchedule, Settings):
    """Scores along every run on held-out problems, from random streams of their own."""

    seed: Index = Field(description="decides which problems are drawn")
    count: Annotated[int, Field(ge=2), BOUNDED] = Field(description="number of problems")


class SeedsByLooks(Settings):
    """Training seeds 1, 2, ... until every comparison with the reference method is certain (docs/evaluation.md)."""

    at_most: Annotated[int, Field(ge=2, le=10_000)] = Field(description="seeds of each method in all")
    looks: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)] = Field(
        description="numbers of seeds at the looks, ascending; the last ends the study"
    )
    margin: Annotated[Positive, Field(le=100)] = Field(description="points within which an interval means equivalent")
    level: Annotated[Positive, Field(le=50)] = Field(
        default=5.0,
        description="per cent of studies that may have a false verdict on a score, and as many on falls",
    )

    @model_validator(mode="after")
    def _check_looks(self) -> Self:
        if sorted(set(self.looks)) != list(self.looks) or self.looks[-1] > self.at_most:
            raise NotAccepted(f"is {list(self.looks)}", f"ascending numbers of seeds up to {self.at_most}", "looks")
        return self


def _kind_of_seeds(content: Any) -> str:
    return "SeedsByLooks" if isinstance(content, SeedsByLooks | dict) else "Seeds"


StudySeeds = Annotated[
    Annotated[Seeds, Tag("Seeds")] | Annotated[SeedsByLooks, Tag("SeedsByLooks")], Discriminator(_kind_of_seeds)
]


class LocalCopy(Settings):
    """A local copy of a benchmark that is otherwise read from the Hugging Face Hub."""

    path: Text = Field(description="the file or directory, relative to the repository")
    sha256: Sha256 | None = Field(default=None, description="SHA-256 of the resulting problems.jsonl")


class Decoding(Settings):
    """Another way in which every checkpoint answers the benchmarks, beside the one that verdicts are about."""

    temperature: NotNegative = Field(description="sampling temperature; 0 is greedy")
    top_p: Share = Field(default=1.0, description="share of the probability that is kept")
    samples_per_problem: Count = Field(description="responses to each problem; 1 at temperature 0")

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.temperature == 0 and self.samples_per_problem > 1:
            raise NotAccepted(
                f"is {self.samples_per_problem} at temperature 0", "1, for all would be the same", "samples_per_problem"
            )
        return self


class Evaluation(BenchmarkSampling, Settings):
    """Sampling for evaluation. Every sample has random numbers of its own, the same for every checkpoint."""

    samples_per_problem: Count = Field(description="the k of avg@k")
    samples_of: dict[Name, Count] = Field(default={}, description="another k, by benchmark; in a study without methods")
    prompt: Literal["training", "benchmark"] | None = Field(
        default=None,
        description="training: problems.prompt (the default with a published training set); benchmark: the "
        "benchmark's own. Multiple choice and programs keep their own",
    )
    decodings: dict[Name, Decoding] = Field(
        default={},
        description="further ways of sampling by name (docs/evaluation.md)",
    )
    audited: Share = Field(
        default=0.125,
        description="share of the samples with plain answers that the second grader judges, beside all other "
        "samples (docs/grading.md)",
    )

    def samples(self, benchmark: str) -> int:
        """The samples of each problem of a benchmark."""
        return self.samples_of.get(benchmark, self.samples_per_problem)


class Statistics(Settings):
    """Intervals and tests (docs/evaluation.md)."""

    seed: Index = Field(description="random seed of bootstrap and sign flips")
    resamples: Annotated[int, Field(ge=100), BOUNDED] = Field(description="number of bootstrap replicates")
    permutations: Annotated[int, Field(ge=100), BOUNDED] = Field(
        description="number of sign flips of the sign-flip test"
    )
    weighting: Weighting | None = Field(
        default=None,
        description="weights in the mean over benchmarks: equal for `benchmarks` (the default) or for `problems`, "
        "or a number for each",
    )
    fall: Fall = Field(
        default=FALL,
        description="rule by which a run fell (docs/evaluation.md)",
    )


class BestCheckpoint(Settings):
    """The checkpoints along every run of which the one with the highest avg@k on a benchmark is reported.

    Of equals the earliest is chosen. Other samples than those that are scored decide.
    """

    benchmark: Name = Field(description="benchmark of the study that chooses")
    k: Count = Field(description="samples of each of its problems")
    every: Count = Field(description="steps between two checkpoints")


class Checkpoint(Settings):
    """The checkpoints of a run that are reported beside its last one."""

    best: BestCheckpoint = Field(description="the best on one benchmark")


class StudyExecution(Execution, SamplingMachine, Settings):
    """The execution of jobs: devices, threads and intervals. Nothing here changes a number beyond its rounding.

    The study fixes the number of threads, which can change the last bit of a sum (docs/results/portability.md).
    """

    base_threads: Count = Field(default=1, description="threads of a job that trains a base model")
    training_threads: Count = Field(default=1, description="threads of a run")
    sampling_python: Text | None = Field(
        default=None,
        description="Python of the environment that samples, such as .venv-engines/bin/python",
    )
    training_python: Text | None = Field(
        default=None, description="Python of verl's environment, or of vLLM's for rollouts by vLLM"
    )
    cluster: Machines | None = Field(default=None, description="where verl trains; engine verl")
