"""The sections of a study file: problems, validation, evaluation, statistics, checkpoint, execution."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from evals.core.comparisons import FALL, Fall
from evals.core.config.problem_sets import Kinds, PublishedSet, Verifier, require_verifier
from evals.core.errors import refuse
from evals.core.numbers import BOUNDED, Count, Index, NotNegative, Positive, Several, Share
from evals.core.record import Settings, setting
from evals.core.records import Weighting
from evals.core.run_spec import Execution, Machines, ValidationSchedule
from evals.core.sampling import BenchmarkSampling, SamplingMachine
from evals.core.values import Name, Prompt, Seeds, Sha256, Text


class DrawnProblems(Settings):
    """Training problems that are drawn from a seed.

    The split of a generated problem follows from a hash of its text, so that no benchmark can hold a training problem.
    """

    seed: Index = setting("decides which problems are drawn")
    count: Count = setting("number of different problems")
    prompt: Prompt = setting("text with {problem} in it once")
    kinds: Kinds = setting("kinds of problems, equally likely")
    verifier: Verifier = None

    def check_whole(self) -> None:
        require_verifier(self.kinds, self.verifier)


class PublishedProblems(PublishedSet):
    """Training problems of a published set (docs/benchmarks.md)."""

    prompt: Prompt = setting("text with {problem} in it once")
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

    seed: Index = setting("decides which problems are drawn")
    count: Several = setting("number of problems")


class SeedsByLooks(Settings):
    """Training seeds 1, 2, ... until every comparison with the reference method is certain (docs/evaluation.md)."""

    at_most: Annotated[int, Field(ge=2, le=10_000)] = setting("seeds of each method in all")
    looks: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)] = setting(
        "numbers of seeds at the looks, ascending; the last ends the study"
    )
    margin: Annotated[Positive, Field(le=100)] = setting("points within which an interval means equivalent")
    level: Annotated[Positive, Field(le=50)] = setting(
        "per cent of studies that may have a false verdict on a score, and as many on falls", 5.0
    )

    def check_whole(self) -> None:
        is_other = sorted(set(self.looks)) != list(self.looks) or self.looks[-1] > self.at_most
        refuse(is_other, f"is {list(self.looks)}", f"ascending numbers of seeds up to {self.at_most}", "looks")


StudySeeds = Annotated[
    Annotated[Seeds, Tag("Seeds")] | Annotated[SeedsByLooks, Tag("SeedsByLooks")],
    Discriminator(lambda content: "SeedsByLooks" if isinstance(content, SeedsByLooks | dict) else "Seeds"),
]


class LocalCopy(Settings):
    """A local copy of a benchmark that is otherwise read from the Hugging Face Hub."""

    path: Text = setting("the file or directory, relative to the repository")
    sha256: Sha256 | None = setting("SHA-256 of the resulting problems.jsonl", None)


class Decoding(Settings):
    """Another way in which every checkpoint answers the benchmarks, beside the one that verdicts are about."""

    temperature: NotNegative = setting("sampling temperature; 0 is greedy")
    top_p: Share = setting("share of the probability that is kept", 1.0)
    samples_per_problem: Count = setting("responses to each problem; 1 at temperature 0")

    def check_whole(self) -> None:
        found, accepted = f"is {self.samples_per_problem} at temperature 0", "1, for all would be the same"
        refuse(self.temperature == 0 and self.samples_per_problem > 1, found, accepted, "samples_per_problem")


class Evaluation(BenchmarkSampling, Settings):
    """Sampling for evaluation. Every sample has random numbers of its own, the same for every checkpoint."""

    samples_per_problem: Count = setting("the k of avg@k")
    samples_of: dict[Name, Count] = setting("another k, by benchmark; in a study without methods", {})
    prompt: Literal["training", "benchmark"] | None = setting(
        "training: problems.prompt (the default with a published training set); benchmark: the benchmark's own. "
        "Multiple choice and programs keep their own",
        None,
    )
    decodings: dict[Name, Decoding] = setting("further ways of sampling by name (docs/evaluation.md)", {})
    audited: Share = setting(
        "share of the samples with plain answers that the second grader judges, beside all other samples "
        "(docs/grading.md)",
        0.125,
    )

    def samples(self, benchmark: str) -> int:
        return self.samples_of.get(benchmark, self.samples_per_problem)


class Statistics(Settings):
    """Intervals and tests (docs/evaluation.md)."""

    seed: Index = setting("random seed of bootstrap and sign flips")
    resamples: Annotated[int, Field(ge=100), BOUNDED] = setting("number of bootstrap replicates")
    permutations: Annotated[int, Field(ge=100), BOUNDED] = setting("number of sign flips of the sign-flip test")
    weighting: Weighting | None = setting(
        "weights in the mean over benchmarks: equal for `benchmarks` (the default) or for `problems`, or a number for "
        "each",
        None,
    )
    fall: Fall = setting("rule by which a run fell (docs/evaluation.md)", FALL)


class BestCheckpoint(Settings):
    """The checkpoints along every run of which the one with the highest avg@k on a benchmark is reported.

    Of equals the earliest is chosen. Other samples than those that are scored decide.
    """

    benchmark: Name = setting("benchmark of the study that chooses")
    k: Count = setting("samples of each of its problems")
    every: Count = setting("steps between two checkpoints")


class Checkpoint(Settings):
    """The checkpoints of a run that are reported beside its last one."""

    best: BestCheckpoint = setting("the best on one benchmark")


class StudyExecution(Execution, SamplingMachine, Settings):
    """The execution of jobs: devices, threads and intervals. Nothing here changes a number beyond its rounding.

    The study fixes the number of threads, which can change the last bit of a sum (docs/results/portability.md).
    """

    base_threads: Count = setting("threads of a job that trains a base model", 1)
    training_threads: Count = setting("threads of a run", 1)
    sampling_python: Text | None = setting(
        "Python of the environment that samples, such as .venv-engines/bin/python", None
    )
    training_python: Text | None = setting("Python of verl's environment, or of vLLM's for rollouts by vLLM", None)
    cluster: Machines | None = setting("where verl trains; engine verl", None)
    forks: bool = setting("whether jobs here are forks of a process with their packages; models from scratch", True)
