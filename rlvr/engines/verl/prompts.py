"""The training problems in the format that verl reads, whose prompts are evaluation's, token by token.

verl encodes a prompt by the tokenizer's chat template and adds nothing. So a prompt of plain text is given what
evaluation puts before it, and all prompts are compared before the first step.
"""

import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_jsonl, replacing
from evals.core.run_spec import VerlRun
from evals.generation.chat import end_tokens, ends_in_words
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.problems.problem_set import load, render_prompt
from rlvr.engines.verl.launch import PLAIN_TEXT

_SHOWN = 8
"""Tokens of a prompt that an error shows."""


def write_prompts(run: VerlRun, problems: Path, checkpoint: Checkpoint, path: Path) -> int:
    """Write the problems of the directory ``problems`` for verl; the number of those that are left out as too long.

    Their truth is the gold answer, or for a verifier the JSON of the problem's row.

    Raises:
        UserError: a prompt has other tokens by verl than in evaluation, a response another end, or all are too long.
    """
    require_ends(run, checkpoint)
    rows = load(problems).problems
    truths = [row.answer for row in rows]
    if run.verifier is not None:
        truths = [json.dumps(row) for row in read_jsonl(problems / "problems.jsonl")]
    texts = [render_prompt(run.prompt, row.problem) for row in rows]
    contents, lengths = prompts_by_verl(run, checkpoint, texts, [str(row.id) for row in rows])
    longest = run.training.max_prompt_tokens
    short = [number for number, length in enumerate(lengths) if length <= longest]
    if not short:
        accepted = f"at least {min(lengths)}, the shortest prompt"
        raise InvalidInput(run.run, "training.max_prompt_tokens", f"is {longest}", accepted)
    if left_out := len(rows) - len(short):
        print(f"{run.run}: {left_out} of {len(rows)} prompts have more than {longest} tokens, and are left out")
    table = pa.table(
        {
            "prompt": [[{"role": "user", "content": contents[number]}] for number in short],
            "data_source": ["rlvr"] * len(short),
            "reward_model": [{"ground_truth": truths[number], "style": "rule"} for number in short],
            "extra_info": [{"index": number, "id": str(rows[number].id)} for number in short],
        }
    )
    with replacing(path) as temporary:
        parquet.write_table(table, temporary)
    return left_out


def prompts_by_verl(
    run: VerlRun, checkpoint: Checkpoint, texts: Sequence[str], problems: Sequence[str]
) -> tuple[list[str], list[int]]:
    """What verl is given in place of ``texts``, those of ``problems``, for evaluation's tokens; and their numbers."""
    from transformers import AutoTokenizer

    expected = encode_prompts(checkpoint, texts, run.prompt_form, template=run.chat_template_kwargs)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint.directory, trust_remote_code=False, local_files_only=True)
    beginning = ""
    if run.prompt_form == "base":
        tokenizer.chat_template = PLAIN_TEXT
        bos = checkpoint.special_token("bos_token")
        if bos is not None and expected and expected[0][:1] == (bos,):
            beginning = str(checkpoint.tokenizer.id_to_token(bos))
    contents = [beginning + text for text in texts]
    chats = [[{"role": "user", "content": content}] for content in contents]
    by_verl = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, tokenize=True, return_dict=False, **run.chat_template_kwargs
    )
    for problem, ours, verls in zip(problems, expected, by_verl, strict=True):
        if list(ours) != list(verls):
            at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, verls, strict=False)))
            parts = " and ".join(str(list(ids)[at : at + _SHOWN]) for ids in (verls, ours))
            raise UserError(
                f"{run.run}: problem {problem}: from token {at} on verl's prompt is another one than evaluation's "
                f"({parts}); accepted: a prompt whose text has none of the tokenizer's special tokens"
            )
    return contents, [len(ids) for ids in expected]


def require_ends(run: VerlRun, checkpoint: Checkpoint) -> None:
    """Print the tokens that end a response; check that vLLM, which verl tells of no other, ends it at all of them."""
    ends = end_tokens(checkpoint, run.prompt_form, run.chat_template_kwargs)
    print(f"{run.run}: responses end with {ends_in_words(ends)}", flush=True)
    others = {number: text for number, text in ends.items() if number not in checkpoint.end_tokens}
    if others:
        accepted = "a generation_config.json whose eos_token_id names it too"
        message = f"turns end with {ends_in_words(others)}, which ends no rollout by verl"
        raise InvalidInput(str(checkpoint.directory), "", message, accepted)
