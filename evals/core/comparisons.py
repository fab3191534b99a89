"""The records of comparisons between methods: differences, verdicts, angles of gradients, controls."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from evals.core.numbers import ShareOrZero
from evals.core.record import ExtensibleRecord, Record, absent, setting
from evals.core.records import Estimate, Interval, Weighting


class Claim(StrEnum):
    """The subject of a comparison."""

    METHODS = "methods"  # methods, whose seeds are a sample of all the seeds that could have been trained
    CHECKPOINTS = "checkpoints"  # the very policies that were evaluated


class Verdict(StrEnum):
    """A comparison in words."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"  # the interval lies within the margin; a study that stops when it is certain says so
    UNDECIDED = "not decided"  # such a study ended before the comparison was better, worse or equivalent
    NOT_DISTINGUISHABLE = "not distinguishable"
    NO_CONTRAST = "no contrast with the reference"
    """No difference was found, and training runs say why: the method's updates are the reference's but for noise."""

    @property
    def is_difference(self) -> bool:
        return self in (Verdict.BETTER, Verdict.WORSE)


class Falls(StrEnum):
    """The shares of training runs that fell, a method's beside the reference method's, where they differ."""

    MORE = "falls more often"
    LESS = "falls less often"


class Fall(Record):
    """The rule by which a training run fell: what its training reward lost from its best point to its end.

    Of a study with ``validation`` the score on held-out problems counts too (docs/evaluation.md).
    """

    points: Annotated[float, Field(gt=0, le=100)] = setting(
        "smallest fall of reward or score, in percentage points", 20.0
    )
    share: ShareOrZero = setting("smallest fall as a share of what the run had gained", 0.5)


FALL = Fall()
"""The rule of a study that says no other: 20 points are five times the error of two windows' difference with 32 prompts
a step."""


class Comparison(ExtensibleRecord):
    """A method against the reference method or the base model, on one benchmark or on ``all``; fractions of one.

    Averages, difference, interval, p-values, MDE and verdict are of the training runs that did not fall. Where all runs
    of a method fell, the difference is that of all of them, with no interval and no p-value.
    """

    model: str
    method: str
    against: str  # the reference method, or base
    against_model: str | None = None  # the model that has against, where it is another one; None where it is model
    benchmark: str
    method_average: float
    against_average: float
    difference: float
    standard_error: float | None
    confidence_interval: Interval | None
    p_value: float | None
    # found in 80 % of studies of this size; on all of a study that stops when it is certain, by its own looks
    minimum_detectable_effect: float | None
    seeds: int  # of all training runs, like against_seeds: of those that fell too
    against_seeds: int
    problems: int
    # over the methods of the study that are compared against the same one; on a benchmark over the pair's benchmarks
    p_value_holm: float | None
    verdict: Verdict
    fell: int | None = None  # how many of them fell, like against_fell; None where nobody knows, and of a base model
    against_fell: int | None = None
    falls_p_value: float | None = None  # of both shares that fell (Boschloo's exact test), on all, of all seeds
    falls_p_value_holm: float | None = None  # the same, corrected over the methods of the study
    falls: Falls | None = None  # the verdict on these shares; None where no difference was shown
    median_unbiased: float | None = None  # the difference, corrected for a study's stopping; None in others
    undecided: float | None = None  # the chance that a study that stops would decide nothing here; None in others
    bases: int | None = absent()  # base models that runs of both started from; None of a single one
    interval_over_bases: Interval | None = absent()  # if these are a sample of all that there could be
    variance_shares: dict[str, float] | None = absent()  # of problems, samples, seeds and base models

    @property
    def estimate(self) -> Estimate:
        return self.difference, self.confidence_interval

    @property
    def words(self) -> str:
        """The verdict in words: of which part it is, where a run of either method fell or two are equivalent."""
        if not self.fell and not self.against_fell:
            return f"{self.verdict} in score" if self.verdict is Verdict.EQUIVALENT else self.verdict.value
        of_score = f"score: {self.verdict}" if self.falls_p_value is not None else self.verdict.value
        return f"{of_score}; {self.falls or 'falls: no difference shown'}"

    @property
    def falls_differ(self) -> Falls:
        """The direction in which the shares that fell differ."""
        more = (self.fell or 0) * self.against_seeds > (self.against_fell or 0) * self.seeds
        return Falls.MORE if more else Falls.LESS

    @property
    def is_harm(self) -> bool:
        """Return whether the method was found worse, in its score or by its falls."""
        return self.verdict is Verdict.WORSE or self.falls is Falls.MORE

    @property
    def is_open(self) -> bool:
        """Return whether a study that stops when it is certain knows neither the score nor a difference in falls."""
        return self.falls is None and self.verdict in (Verdict.UNDECIDED, Verdict.NO_CONTRAST)


class Look(Record):
    """A method against the reference method over all benchmarks, looked at after some seeds of both."""

    model: str
    method: str
    seeds: int
    level: float  # 1 less the confidence of interval: the looks of all comparisons of a study together err in 5 %
    level_alone: float  # the same if the comparison were the study's only one
    difference: float
    interval: Interval | None
    verdict: Verdict | None  # on the score; None where it is not certain
    falls: Falls | None = absent()  # the verdict on the shares that fell; None where no difference is certain

    @property
    def is_decided(self) -> bool:
        """Return whether the method is trained no further."""
        return self.verdict is not None or self.falls is not None


class Looks(Record):
    """The content of ``looks/SEEDS/decisions.json``: this look's rows after those of the looks before."""

    margin: float
    looks: tuple[Look, ...]

    def last(self) -> dict[tuple[str, str], Look]:
        """The last look at each comparison, by model and method."""
        return {(look.model, look.method): look for look in self.looks}


class Controls(Record):
    """Two methods of a study whose verdicts are known beforehand: whether the others can be believed."""

    positive: str = setting("a method that is known to harm")
    negative: str = setting("a method that is known to change nothing")
    random_rewards: str | None = setting(
        "a method that trains on rewards of chance, such as dapo_random_rewards",
        None,
        exclude_if=lambda method: method is None,
    )


_CONTRAST_LIMIT = 2.0
"""The ratio of angle to floor below which the interval of a method without contrast ends (docs/evaluation.md)."""


class Contrast(ExtensibleRecord):
    """The angle between a method's gradients and the reference method's, over the method's training runs.

    Angles are in degrees, means over the measured steps of a training run and then over runs.
    """

    model: str
    method: str
    against: str
    degrees: float
    floor_degrees: float  # the angle of the reference method with random token weights, on the same rollouts
    slope_degrees: float | None  # between the losses' derivatives by the log-probabilities; None where not measured
    ratio_interval: Interval | None  # of the angle over the floor's; None if a single step was measured
    is_above_floor: bool  # whether that ratio is shown to be above 1
    seeds: int

    @property
    def is_absent(self) -> bool:
        """The finding that the method has no contrast: its angle is not shown to be above the floor, and is near it.

        Few training runs of different angles show neither.
        """
        if self.is_above_floor:
            return False
        return self.ratio_interval is None or self.ratio_interval[1] < _CONTRAST_LIMIT


class Comparisons(ExtensibleRecord):
    """The content of ``comparisons.json``; ``confidence`` is the level of the intervals, ``seed`` the resampling's.

    ``contrasts`` has the methods whose runs measured their angle to the reference method, ``looks`` the path of
    every comparison in a study that stops when it is certain. There the interval beside the reference method is that of
    the comparison's last look, at its ``level_alone``.
    """

    reference_method: str
    claim: Claim = Claim.METHODS
    weighting: Weighting = "benchmarks"
    confidence: float
    bootstrap_resamples: int
    permutations: int
    seed: int = 0
    controls: Controls | None = None
    comparisons: tuple[Comparison, ...]
    contrasts: tuple[Contrast, ...] = ()
    looks: tuple[Look, ...] = Field(default=(), exclude_if=lambda looks: not looks)
    fall: Fall = Field(default=FALL, exclude_if=lambda fall: fall == FALL)  # the rule by which runs fell
    fallen: tuple[str, ...] | None = None  # the runs that fell; None where no training was read
    margin: float | None = absent()  # of equivalence, in a study that stops when it is certain
    level: float | None = absent()  # of all comparisons of such a study together
    all_decided: float | None = absent()  # the chance that a repetition of such a study decides every comparison
