"""Stages that evaluate policies: samples and grades of all benchmarks, one job each a policy; scores; comparisons."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from evals.audit import VERSION as AUDIT_VERSION
from evals.core.comparisons import Controls
from evals.core.config.sections import Statistics, StudyExecution
from evals.core.record import Record
from evals.core.sampling import OfBenchmark, Sampling
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading.verdict import VERIFIER
from rlvr.stages.stage import File, FileByName, Files, Stage


class PolicyStage(Stage):
    """A stage of one policy on all benchmarks: its outputs have a directory for each."""

    policy: str
    problems: FileByName

    def patterns(self) -> list[str]:
        """Those of each benchmark; a policy is a wildcard, a benchmark is none."""
        return [path.replace("{benchmark}", name) for name in self.problems for path in self.outputs]

    @property
    def job(self) -> str:
        """The name of the kind, and the policy."""
        return self.target.removeprefix("results/")


class Sample(PolicyStage):
    """The responses of a policy to all benchmarks. Finished batches lie in state/ beside them, which Snakemake leaves.

    Attributes:
        source: directory of the run or base model.
        checkpoint: the file that stands for it.
        problems, disjoint: of each benchmark, the problems' manifest and the check against training problems.
        sampling: the settings that all benchmarks share.
        own: those that each has of its own.
    """

    kind = "sample"
    outputs = tuple(f"results/samples/{{policy}}/{{benchmark}}/{name}" for name in ("samples.jsonl", "manifest.json"))
    target = "results/samples/{policy}"
    cost = "results/costs/sample/{policy}.tsv"
    environment = "sampling"
    version: ClassVar[Any] = SAMPLER_VERSION
    order = 20  # after trainings, before everything that is cheap
    threads_of = "sampling_threads"

    source: str
    checkpoint: File
    disjoint: FileByName
    sampling: Sampling
    own: dict[str, OfBenchmark]

    def resources(self, machine: StudyExecution) -> dict[str, Any]:
        """The GPUs that one model is spread over."""
        return {"gpu": self.sampling.tensor_parallel_size if machine.device == "cuda" else 0}

    def run(self, machine: StudyExecution) -> None:
        """Sample what is missing."""
        from evals.generation.settings import EvaluationSettings

        benchmarks = {
            self.problems[name].parent: EvaluationSettings.of(self.sampling, own, machine)
            for name, own in self.own.items()
        }
        next(iter(benchmarks.values())).choose_code_paths()
        self.sample(benchmarks)

    def sample(self, benchmarks: dict[Path, Any]) -> None:
        """Sample the policy."""
        from evals.generation.checkpoint import Checkpoint
        from evals.generation.evaluate import sample_benchmarks

        sample_benchmarks([Checkpoint.of(Path(self.source))], benchmarks, self.out)


class SampleCandidate(Sample):
    """The responses of a policy that the best one of its training is chosen among, on the choosing benchmark alone."""

    kind = "sample_candidate"


class GradingOf(Record):
    """The grading of a benchmark: the form in which its responses are read, and the version of what grades them."""

    kind: str
    version: Any


class Grade(PolicyStage):
    """A verdict on every response of a policy to all benchmarks, and the audit of the verdicts."""

    kind = "grade"
    outputs = tuple(
        f"results/grades/{{policy}}/{{benchmark}}/{name}"
        for name in ("grades.jsonl", "manifest.json", "audit.json", "audit.manifest.json")
    )
    target = "results/grades/{policy}"
    cost = "results/costs/grade/{policy}.tsv"
    version = AUDIT_VERSION
    order = 30  # as soon as there are samples

    samples: FileByName
    verifiers: FileByName = {}
    grading: dict[str, GradingOf]

    def run(self, machine: StudyExecution) -> None:
        """Grade and audit one benchmark after the other."""
        from evals.audit.run import SecondGrader, write_audit
        from evals.core.single_writer import single_writer
        from evals.grading.grade_file import grade_file
        from evals.grading.pool import GradingPool
        from evals.grading.verdict import Reason

        with ExitStack() as held:
            held.enter_context(single_writer(self.out / ".writer", "grades into this directory"))
            second = held.enter_context(SecondGrader(machine.grading_workers))
            pools: dict[Path | None, GradingPool] = {}
            for name, manifest in self.samples.items():
                samples, problems, out = manifest.with_name("samples.jsonl"), self.problems[name], self.out / name
                kind = self.grading[name].kind
                verifier = self.verifiers[name] if kind == VERIFIER else None
                if verifier not in pools:
                    pools[verifier] = held.enter_context(GradingPool(machine.grading_workers, verifier=verifier))
                reasons = grade_file(samples, problems, out, pools[verifier], kind)
                write_audit(samples.parent, out, problems, out / "audit.json", second)
                counts = ", ".join(f"{reason.value} {reasons[reason]}" for reason in Reason if reasons[reason])
                print(f"{out}: {reasons.total()} samples graded: {counts or 'none'}", file=sys.stderr)


class GradeCandidate(Grade):
    """A verdict on every response of a policy that the best one of its training is chosen among."""

    kind = "grade_candidate"


class Scores(Stage):
    """The scores of all runs of a study on a benchmark.

    Attributes:
        disjoint: says which problems are near copies of one another.
    """

    kind = "score"
    outputs = (
        "results/{folder}scores/{benchmark}.json",
        "results/{folder}scores/{benchmark}.manifest.json",
    )
    call = "evals.scores.score:write_scores"
    module = "evals.scores.score"

    folder: str
    benchmark: str
    grades: Files
    runs: File
    disjoint: File

    def arguments(self) -> dict[str, Any]:
        """The grades by their directories."""
        grades = [manifest.parent for manifest in self.grades]
        return {"benchmark": self.benchmark, "grades": grades, "runs": self.runs, "disjoint": self.disjoint}


class Comparisons(Stage):
    """Every method of a study beside its reference method and the base model.

    Attributes:
        metrics: of the trainings, which have measured the contrast of methods.
        decisions: of the last look, in a study that stops when it is certain.
        confidence: of the intervals.
        claim: ``methods``, with their seeds as a sample, or ``checkpoints``, these very policies.
    """

    kind = "compare"
    outputs = (
        "results/{folder}comparisons.json",
        "results/{folder}comparisons.manifest.json",
    )
    module = "evals.scores.comparison"

    folder: str
    scores: Files
    metrics: Files = ()
    decisions: Files = ()
    reference_method: str
    statistics: Statistics
    controls: Controls | None = None
    confidence: float = 0.95
    claim: str = "methods"

    def run(self, machine: StudyExecution) -> None:
        """Compare them."""
        from evals.core.comparisons import Claim, Looks
        from evals.scores.comparison import Settings, write_comparisons

        settings = Settings.of(
            self.reference_method,
            self.statistics,
            claim=Claim(self.claim),
            confidence=self.confidence,
            looks=tuple(look for path in self.decisions for look in Looks.read(path).looks),
            controls=self.controls,
        )
        write_comparisons(self.scores, settings, self.out, Path("results/runs") if self.metrics else None)


class Decide(Stage):
    """The decisions of one look: which comparisons are certain by now, and which go on."""

    kind = "look"
    outputs = ("results/{folder}decisions.json", "results/{folder}decisions.manifest.json")
    call = "evals.scores.looks:write_look"
    module = "evals.scores.looks"
    decides = True

    folder: str
    comparisons: File
    earlier: Files = ()
    margin: float
    level: float
    level_alone: float
