"""The accuracy of a base model under training on held-out problems."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.generation.sampler import sample
from evals.generation.thinking import case_of
from evals.grading import GradingPool
from rlvr.runs.state import save_checkpoint

SAMPLES = 4
"""Responses to each problem."""


def held_out_accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Mapping[str, str]], longest: int
) -> float:
    """The share of right responses, of at most ``longest`` tokens each, drawn at temperature 1.

    A problem has the same random numbers at every look, so that looks differ by the model alone.
    """
    with TemporaryDirectory() as directory, GradingPool(1) as pool:
        save_checkpoint(model, tokenizer, Path(directory))
        checkpoint = Checkpoint.of(Path(directory))
        prompts = encode_prompts(checkpoint, [problem["problem"] + "\n" for problem in problems], "base")
        identities = [[f"base model/{row}/{number}" for number in range(SAMPLES)] for row in range(len(problems))]
        parameters = SamplingParameters(max_new_tokens=longest, temperature=1.0)
        responses = sample(checkpoint.decoder("cpu"), prompts, identities, parameters, checkpoint.end_tokens)
        cases = [
            case_of(checkpoint.tokenizer, prompt, response.tokens, response.finished, problem["answer"])
            for problem, prompt, of_problem in zip(problems, prompts, responses, strict=True)
            for response in of_problem
        ]
        verdicts = pool.grade(cases)
    return sum(verdict.correct for verdict in verdicts) / len(verdicts)
