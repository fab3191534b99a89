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
TokenFractions = Annotated[tuple[Share, ...], Field(min_length=1), *UNIQUE]
ProblemCount = Annotated[int, Field(ge=6), BOUNDED]


class ClaimsConfig(Settings):
    """The runs that claims are measured on."""

    method: str = Field(description="its runs, one a seed of the first model, are replayed for token tables and probed")
    weighting_method: str | None = Field(
        default=None,
        description="the same for a method that weighs tokens, such as DelTA, for the claims about weights",
    )
    steps: Annotated[tuple[Count, ...], Field(min_length=1), *UNIQUE] = Field(
        description="rollout steps that are analysed, from 1"
    )
    seeds: Count | None = Field(
        default=None, description="so many of the study's training seeds are analysed, the first; default: all"
    )
    benchmark: str = Field(description="on which base and trained models are compared token by token")
    benchmark_problems: Count | None = Field(
        default=None,
        description="so many of its problems are sampled, the first; default: all. A claim takes up to 176 samples of "
        "each a run",
    )
    selected: Annotated[tuple[str, ...], Field(min_length=2, max_length=2), *UNIQUE] | None = Field(
        default=None,
        description="two methods, of this study or of named ones, that train on the tokens of highest and of lowest "
        "weight",
    )
    compared: Annotated[tuple[str, ...], Field(min_length=1), *UNIQUE] | None = Field(
        default=None,
        description="methods, of this study or of named ones, whose training and checkpoints are compared for drift; "
        "which of them make a pair follows from their settings. One that differs from another in its steps alone, at a "
        "constant learning rate, is a point of that one's drift over training",
    )


class DecodingProblems(Settings):
    """The generated problems on which thresholds are chosen; none of them is scored."""

    seed: Index = Field(description="decides which problems are drawn")
    count: ProblemCount = Field(description="number of problems")


class DecodingBenchmark(Settings):
    """A benchmark of the study on which thresholds are chosen; none of its problems is reported."""

    benchmark: Name = Field(description="neither gated nor with a verifier; of mathematics or of choices")
    count: ProblemCount | None = Field(default=None, description="so many of its problems, the first; default: all")


def _kind_of_problems(content: Any) -> str:
    named = isinstance(content, DecodingBenchmark) or (isinstance(content, dict) and "benchmark" in content)
    return "DecodingBenchmark" if named else "DecodingProblems"


class DecodingConfig(Settings):
    """Decoding with two models, the base and the reference method's (docs/decoding.md)."""

    problems: Annotated[
        Annotated[DecodingProblems, Tag("DecodingProblems")] | Annotated[DecodingBenchmark, Tag("DecodingBenchmark")],
        Discriminator(_kind_of_problems),
    ] = Field(
        default=DecodingProblems(seed=7301, count=60),
        description="problems on which thresholds are chosen; those that are drawn are of the kinds of the study's "
        "generated benchmarks",
    )
    benchmarks: Annotated[tuple[Name, ...], Field(min_length=1), *UNIQUE] | None = Field(
        default=None,
        description="benchmarks of the study that are reported; default: all but the one that thresholds are chosen on",
    )
    seeds: Count | None = Field(
        default=None,
        description="so many of the reference method's training seeds decode with the base model, the first; default: "
        "all",
    )
    criteria: Annotated[tuple[Criterion, ...], Field(min_length=1), *UNIQUE] = Field(
        default=("log_prob_difference", "kl_trained_base", "entropy", "assistant_entropy", "random"),
        description="criteria of replacement, in the sweep and in the figure; log_prob_difference is one of them",
    )
    fractions: TokenFractions = Field(
        default=(0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 1.0),
        description="fractions of the base's tokens that the thresholds of replacement are set at; with 1 every token "
        "is replaced",
    )
    extrapolation_fractions: TokenFractions = Field(
        default=(0.003, 0.01, 0.03, 0.1),
        description="fractions of the driver's tokens that the log-prob difference is set at in extrapolation",
    )
    gammas: Annotated[tuple[NotNegative, ...], Field(min_length=1), *UNIQUE] = Field(
        default=(0.05, 0.1, 0.2, 0.5), description="how far extrapolation goes beyond the trained model"
    )

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

    extends: Text = Field(description="the study's file, as seen from the directory of this one")
    claims: ClaimsConfig | None = Field(default=None, description="the runs that claims are measured on")
    decoding: DecodingConfig = Field(default=DecodingConfig(), description="decoding with two models")
