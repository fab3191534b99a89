"""The package's own configuration: a study, the runs that claims are measured on, and decoding with two models."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from evals.core.errors import NotAccepted
from evals.core.numbers import BOUNDED, Count, Index, NotNegative, Share
from evals.core.record import Settings
from evals.core.values import UNIQUE, Name, Text

Criterion = Literal[
    "log_prob_difference",  # log pi_trained(y) - log pi_base(y) of the token drawn, whichever model drew it
    "kl_trained_base",  # KL(pi_trained || pi_base)
    "kl_base_trained",  # KL(pi_base || pi_trained)
    "js",  # Jensen-Shannon divergence, at most log 2
    "jeffreys",  # mean of the two KL divergences
    "entropy",  # entropy of the model that drives
    "assistant_entropy",  # entropy of the other model
    "random",  # a uniform number of its own
]
"""The value that decides whether a token is drawn again."""
USUAL: tuple[Criterion, ...] = ("log_prob_difference", "kl_trained_base", "entropy", "assistant_entropy", "random")
TokenFractions = Annotated[tuple[Share, ...], Field(min_length=1), *UNIQUE]
ProblemCount = Annotated[int, Field(ge=6), BOUNDED]


class ClaimsConfig(Settings):
    """The runs that claims are measured on (README.md, `Its files`)."""

    method: str  # its runs, one a seed of the first model, are replayed for token tables and probed
    weighting_method: str | None = None  # the same of a method that weighs tokens
    steps: Annotated[tuple[Count, ...], Field(min_length=1), *UNIQUE]  # rollout steps, from 1
    seeds: Count | None = None  # so many of the training seeds, the first; None for all
    benchmark: str  # on which base and trained models are compared token by token
    benchmark_problems: Count | None = None  # so many of its problems, the first; None for all
    selected: Annotated[tuple[str, ...], Field(min_length=2, max_length=2), *UNIQUE] | None = None
    compared: Annotated[tuple[str, ...], Field(min_length=1), *UNIQUE] | None = None


class DecodingProblems(Settings):
    """The generated problems on which thresholds are chosen; none of them is scored."""

    seed: Index  # decides which problems are drawn
    count: ProblemCount


class DecodingBenchmark(Settings):
    """A benchmark of the study on which thresholds are chosen; none of its problems is reported."""

    benchmark: Name  # neither gated nor with a verifier; of mathematics or of choices
    count: ProblemCount | None = None  # so many of its problems, the first; None for all


def _kind_of_problems(content: Any) -> str:
    named = isinstance(content, DecodingBenchmark) or (isinstance(content, dict) and "benchmark" in content)
    return "DecodingBenchmark" if named else "DecodingProblems"


class DecodingConfig(Settings):
    """Decoding with two models, the base and the reference method's (docs/decoding.md)."""

    problems: Annotated[
        Annotated[DecodingProblems, Tag("DecodingProblems")] | Annotated[DecodingBenchmark, Tag("DecodingBenchmark")],
        Discriminator(_kind_of_problems),
    ] = DecodingProblems(seed=7301, count=60)  # drawn ones are of the kinds of the study's generated benchmarks
    benchmarks: Annotated[tuple[Name, ...], Field(min_length=1), *UNIQUE] | None = None  # reported; None for all others
    seeds: Count | None = None  # so many of the reference method's training seeds, the first; None for all
    criteria: Annotated[tuple[Criterion, ...], Field(min_length=1), *UNIQUE] = USUAL
    fractions: TokenFractions = (0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 1.0)  # of the base's tokens; 1 replaces every token
    extrapolation_fractions: TokenFractions = (0.003, 0.01, 0.03, 0.1)  # of the driver's tokens
    gammas: Annotated[tuple[NotNegative, ...], Field(min_length=1), *UNIQUE] = (0.05, 0.1, 0.2, 0.5)

    @field_validator("problems", mode="before")
    @classmethod
    def _check_form(cls, problems: Any) -> Any:
        if isinstance(problems, dict) and not {"seed", "benchmark"} & problems.keys():
            raise NotAccepted(f"has {', '.join(problems) or 'no key'}", "seed and count, or benchmark and count")
        return problems

    @field_validator("criteria")
    @classmethod
    def _check_criteria(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        if "log_prob_difference" not in criteria:
            raise NotAccepted(f"is {', '.join(criteria)}", "a list with log_prob_difference")
        return criteria

    @field_validator("fractions", "extrapolation_fractions")
    @classmethod
    def _check_fractions(cls, fractions: tuple[float, ...]) -> tuple[float, ...]:
        if all(fraction >= 1 for fraction in fractions):
            raise NotAccepted(f"is {', '.join(map(str, fractions))}", "a list with a fraction below 1")
        return fractions


class ClaimsFile(Settings):
    """A file of this package: the study whose results it reads, and what is made of them."""

    extends: Text  # the study's file, as seen from the directory of this one
    claims: ClaimsConfig | None = None
    decoding: DecodingConfig = DecodingConfig()
