"""A base model, a run and samples of a few seconds, and the hashes of their bytes.

The hashes are the same on every x86-64 processor with AVX2 (docs/results/portability.md). After a change that is meant
to change results, write them anew:

    python -m tests.golden > tests/golden.json
"""

import bz2
import json
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from evals.core.arithmetic import choose_code_paths
from evals.core.files import canonical_json, sha256_file, write_bytes, write_text
from evals.generation.checkpoint import Checkpoint
from evals.generation.settings import EvaluationSettings
from tests.commands import run_command
from tests.stages import base_model, sample_benchmark

KINDS = [{"family": "chain", "operands": 2}]
STEPS, BATCH_SIZE = 60, 32
ARCHITECTURE = {
    **{"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256, "tie_word_embeddings": True},
}
CORPUS = {"seed": 1, "kinds": KINDS, "error_rates": [0.1], "shares": [1.0], "misconception_share": 0.7}
BASE_TRAINING = {
    **{"seed": 1, "steps": STEPS, "batch_size": BATCH_SIZE, "learning_rate": 0.003, "warmup_steps": 5},
    **{"weight_decay": 0.01, "gradient_clip": 1.0},
}
DAPO = {
    "version": 1,
    "advantage": {"name": "grpo"},
    "token_weights": None,
    "loss": {"name": "clipped"},
    "batching": {"assignment": {"name": "random_split"}, "selection": None},
}


def make(directory: Path) -> dict[str, str]:
    """Make the three in ``directory`` and return the hash of each."""
    problems, base, run, samples = (directory / name for name in ("problems", "base", "run", "samples"))
    prompt = "{problem}\n"
    from evals.core.config.base_models import Corpus  # once the code paths are chosen
    from evals.problems.arithmetic import write_problems
    from rlvr.base_model.corpus import write_corpus

    with redirect_stdout(sys.stderr):
        write_problems("p", KINDS, "train", 16, 1, problems)
        write_corpus(Corpus.parse(CORPUS, "corpus"), STEPS * BATCH_SIZE, directory / "corpus.jsonl")
        base_model({**BASE_TRAINING, "architecture": ARCHITECTURE}, directory / "corpus.jsonl", STEPS, base)
    training = {
        **{"steps": 2, "prompts_per_step": 4, "samples_per_prompt": 4, "updates_per_step": 2, "micro_batch_size": 8},
        **{"max_new_tokens": 24, "temperature": 1.0, "sampling_batch_size": 64, "learning_rate": 0.001},
        **{"warmup_updates": 0, "weight_decay": 0.1, "gradient_clip": 1.0},
    }
    content = {
        **{"run": "run", "model": "tiny", "base": str(base), "problems": str(problems), "prompt": prompt},
        **{"method_name": "dapo", "method": DAPO, "seed": 1, "training": training},
    }
    write_text(run / "run.json", canonical_json(content))
    with redirect_stdout(sys.stderr):
        assert run_command("train", run / "run.json", "--threads", 1) == 0
    asked = {"samples_per_problem": 2, "max_new_tokens": 24, "temperature": 1.0, "top_p": 0.95}
    asked |= {"sampling_batch_size": 32}
    settings = EvaluationSettings.parse({**asked, "prompt": prompt, "seed": 1, "sampling_threads": 1}, "golden")
    settings.choose_code_paths()
    with redirect_stdout(sys.stderr):
        sample_benchmark([Checkpoint.of(run)], problems, settings, samples)
    write_bytes(directory / "samples/samples.jsonl", bz2.decompress((samples / "samples.jsonl.bz2").read_bytes()))
    made = ("base/checkpoint/model.safetensors", "run/checkpoint/model.safetensors", "samples/samples.jsonl")
    return {name: sha256_file(directory / name) for name in made}


if __name__ == "__main__":
    choose_code_paths()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(make(Path(place)), indent=2))
