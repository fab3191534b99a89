"""The records of audits: how far the grades of a run can be relied on."""

from evals.core.record import ExtensibleRecord, Record
from evals.core.values import OtherExtraction


class Disagreement(Record):
    """A sample on which the second grader disagrees, with the reasons of both."""

    problem_id: str | int
    sample: int
    ours: str
    second: str


class SecondOpinion(ExtensibleRecord):
    """The verdicts of the second grader on the samples of a run."""

    # Of samples that are easy to grade the second grader was asked about a drawn share.
    compared: int  # samples on which both have a verdict
    failed: int  # on which the second one has none
    only_ours: int  # which only ours takes as correct; disagreements are the first of both
    only_second: int
    disagreements: tuple[Disagreement, ...] = ()
    share: float = 1.0


class Audit(ExtensibleRecord):
    """The reliability of a run's grades on a benchmark, in samples."""

    run: str
    samples: int
    correct: int
    truncated: int | None  # None where the samples do not say how they ended
    no_answer: int
    timeouts: int
    unparsable: int
    other_failures: int  # of grading: memory, a killed process, an unreadable gold, a verifier that raised, no response
    no_second_because: str | None  # withheld texts, code or verifier, where the second grader is not asked; or None
    second: SecondOpinion | None


class GraderName(Record):
    """The name and version of a grader."""

    name: str
    version: str


class BenchmarkAudit(ExtensibleRecord):
    """The audit of a policy on one benchmark, the content of ``grades/{policy}/{benchmark}/audit.json``."""

    benchmark: str
    extraction: OtherExtraction = None
    second_grader: GraderName
    audit: Audit
