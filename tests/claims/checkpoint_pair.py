"""Two tiny untrained checkpoints and graded samples of two problems, as evaluation would have written them."""

from dataclasses import dataclass
from pathlib import Path

from evals.core.files import write_jsonl
from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.runs.state import save_checkpoint
from tests.commands import rlvr_bench
from tests.random_model import architecture

main = rlvr_bench("claims")

ARCHITECTURE = architecture(16, 16, 1, 64)
PROBLEMS = {"one": "Compute 3+4 from left to right, modulo 10.", "two": "Compute 2*4 from left to right, modulo 10."}
SAMPLES = (
    ("one", 0, "3+4=7\n\\boxed{7}", "stop", True),
    ("one", 1, "3+4=8\n\\boxed{8}", "stop", False),
    ("two", 0, "2*4=", "length", False),
    ("two", 1, "2*4=8\n\\boxed{8}", "stop", True),
)
"""Problem, sample, text, finish reason, right."""


@dataclass(frozen=True)
class Pair:
    """A pair of checkpoints with problems, samples and grades beside it."""

    directory: Path

    def arguments(self, out: Path, *more: str) -> list[str]:
        """Of ``compare``, without grades."""
        names = {"base": "base", "trained": "trained", "problems": "problems.jsonl", "samples": "samples.jsonl"}
        files = [part for option, name in names.items() for part in (f"--{option}", str(self.directory / name))]
        return ["compare", *files, "--prompt", "{problem}\n", "--batch-size", "2", "--out", str(out), *more]

    @property
    def grades(self) -> Path:
        """``grades.jsonl`` of the samples."""
        return self.directory / "grades.jsonl"

    def compared(self, out: Path, graded: bool = True) -> Path:
        """Directory of a finished comparison."""
        assert main(self.arguments(out, *(["--grades", str(self.grades)] if graded else []))) == 0
        return out


def make_pair(directory: Path) -> Pair:
    """Write all of it; the problems are of a generated kind."""
    tokenizer = build_tokenizer()
    for seed, name in enumerate(("base", "trained")):
        save_checkpoint(initial_model(ARCHITECTURE, tokenizer, seed), tokenizer, directory / name)
    write_jsonl(
        directory / "problems.jsonl",
        [{"id": name, "problem": text, "answer": "7", "family": "chain"} for name, text in PROBLEMS.items()],
    )
    rows = [
        {"problem_id": problem, "sample": sample, "text": text, "finish_reason": reason}
        for problem, sample, text, reason, _ in SAMPLES
    ]
    write_jsonl(directory / "samples.jsonl", rows)
    verdicts = [
        {
            "problem_id": problem, "sample": sample, "correct": correct, "answer": None,
            "reason": "match" if correct else "mismatch",
            "tokens": 8, "finish_reason": reason,
        }
        for problem, sample, _, reason, correct in SAMPLES
    ]  # fmt: skip
    # In another order than the samples, as nothing promises theirs.
    write_jsonl(directory / "grades.jsonl", verdicts[::-1])
    return Pair(directory)
