"""The settings of sampling one benchmark."""

from typing import Self

from evals.core.arithmetic import choose_code_paths
from evals.core.sampling import OfBenchmark, Sampling, SamplingMachine
from evals.problems.problem_set import render_prompt

Turn = tuple[str, str]
"""The role and the text of a turn of a chat."""


DECISIVE = {*OfBenchmark.model_fields, *Sampling.model_fields} - {"backend", "dtype"}
"""The settings that decide samples as they are given; engine and type of a model are looked up."""


class EvaluationSettings(OfBenchmark, Sampling, SamplingMachine):
    """The settings of sampling a benchmark."""

    @classmethod
    def of(cls, sampling: Sampling, benchmark: OfBenchmark, machine: SamplingMachine) -> Self:
        """The settings of sampling a benchmark on a machine."""
        parts = ((OfBenchmark, benchmark), (Sampling, sampling), (SamplingMachine, machine))
        return cls(**{name: getattr(part, name) for kind, part in parts for name in kind.model_fields})

    @property
    def is_portable(self) -> bool:
        """Tell whether arithmetic takes code paths of every processor; half precision and backends have others."""
        return self.backend == "local" and self.device == "cpu" and self.dtype not in ("bfloat16", "float16")

    def choose_code_paths(self) -> None:
        """Choose the code paths of this process's arithmetic, before numpy and torch are imported."""
        if self.is_portable:
            choose_code_paths()

    @property
    def turns_before(self) -> list[Turn]:
        """The turns before a problem: the system's, and those of the worked examples."""
        turns = [] if self.system_prompt is None else [("system", self.system_prompt)]
        for example in self.few_shot:
            turns += [("user", render_prompt(self.prompt, example.problem)), ("assistant", example.solution)]
        return turns
