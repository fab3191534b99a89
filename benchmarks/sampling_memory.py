"""Memory of a job that samples long responses: a backend that makes up its texts, and everything else as it is.

    python benchmarks/sampling_memory.py --problems 1000 --samples 100 --tokens 32768

The resident set is printed before the first sample, at its peak after sampling, after an interruption (the finished
samples are read again), and after the file is written. A token is four characters.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

from evals.generation.backend import Backend, Request, Response
from evals.generation.checkpoint import Checkpoint
from evals.generation.evaluate import sample_plan
from evals.generation.plan import SamplePlan
from evals.generation.settings import EvaluationSettings


class MadeUp(Backend):
    """Answers every request with as many tokens as it may have, ``together`` at a time."""

    def __init__(self, together: int = 1) -> None:
        self._together = together

    def stream(self, requests: Iterable[Request], draws: Any = None) -> Iterator[Mapping[int, Response]]:
        """Yield the responses in the order of the requests."""
        waiting = enumerate(requests)
        while answered := list(islice(waiting, self._together)):
            yield {index: Response([index] * request.max_new_tokens, finished=True) for index, request in answered}


class MadeUpTokenizer:
    """Decodes a token to four characters."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """The text of a prompt or of a response."""
        return f"{tokens[0] % 1000:3d} " * len(tokens)

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        """The tokens of a text, which are those that were sampled but for their first digits."""
        return SimpleNamespace(ids=[int(part) for part in text.split()])

    def id_to_token(self, token: int) -> str:
        """The text of an end token."""
        return "<end>"

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """No tags of thinking."""
        return {}


class MadeUpModel:
    """Stands for a checkpoint, of which a job needs the tokenizer and the end of a response."""

    tokenizer = MadeUpTokenizer()
    end_token, end_tokens = 0, (0,)


def make_plan(problems: int, samples: int, tokens: int) -> SamplePlan:
    """A plan of ``problems`` x ``samples`` responses of ``tokens`` tokens."""
    content = {
        "samples_per_problem": samples,
        "seed": 1,
        "prompt": "{problem}",
        "max_new_tokens": tokens,
        "sampling_threads": 1,
    }
    content |= {"temperature": 1.0, "top_p": 1.0, "sampling_batch_size": 256, "backend": "vllm"}
    settings = EvaluationSettings.parse(content, "")
    ids = [f"p{number}" for number in range(problems)]
    prompts = [(1, 2, 3)] * problems
    models = [cast(Checkpoint, MadeUpModel())]
    return SamplePlan(models, settings, ids, prompts, 10 * tokens, {0: "<end>"}, {}, {"engine": "made up"}, 0, False)


def peak_mebibytes() -> float:
    """The largest resident set of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measure(arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Sample everything and write it; then read what was kept, and write it again."""
    plan, load = make_plan(arguments.problems, arguments.samples, arguments.tokens), partial(MadeUp, arguments.together)
    report: dict[str, Any] = {**vars(arguments), "directory": None, "peak_before": peak_mebibytes()}
    started = time.perf_counter()
    sample_plan(plan, load, out)
    report |= {"peak_of_sampling": peak_mebibytes(), "sampling_seconds": round(time.perf_counter() - started, 1)}
    sample_plan(plan, load, out)
    report |= {"peak_after_writing": peak_mebibytes(), "seconds": round(time.perf_counter() - started, 1)}
    return report | {"file_mebibytes": round((out / "samples.jsonl.bz2").stat().st_size / 2**20)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--together", type=int, default=1, help="responses that finish together, in one write")
    parser.add_argument("--directory", type=Path, help="of the scratch files; default: the system's")
    chosen = parser.parse_args()
    with TemporaryDirectory(dir=chosen.directory) as scratch:
        print(json.dumps(measure(chosen, Path(scratch)), indent=2))
