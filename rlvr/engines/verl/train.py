"""Train one run by verl until its last step is saved, merge it, and leave what the local engine leaves.

verl encodes a prompt by the tokenizer's chat template and adds nothing. So a prompt of plain text is given what
evaluation puts before it, and all prompts are compared, token by token, before the first step.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_jsonl, replacing, write_json
from evals.core.manifest import verify_outputs
from evals.core.run_spec import Cluster, VerlRun
from evals.core.single_writer import single_writer
from evals.generation.chat import end_tokens, ends_in_words
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.grading import VERSION as GRADER_VERSION
from evals.problems.problem_set import load, render_prompt
from rlvr.engines import option_versions
from rlvr.engines.result import (
    Training,
    checkpoint_directory,
    copied_inputs,
    lacking_checkpoints,
    repeat_result,
    write_result,
)
from rlvr.engines.verl import PINNED, VERSION
from rlvr.engines.verl.checkpoints import is_intact, merge, prepare_resume, remove_old
from rlvr.engines.verl.checks import check
from rlvr.engines.verl.launch import PLAIN_TEXT, Places, launch
from rlvr.engines.verl.metrics import Display, read_steps, whole_metrics
from rlvr.engines.verl.processes import end_processes_of, error_in, on_every_node, require_machine
from rlvr.engines.verl.ray_nodes import own_directory
from rlvr.runs.job import Interrupted, remove_metrics_so_far, termination

_LOOK_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0
_STARTS = 3
_RAY_IS_SLOW = "The current node timed out during startup"
"""What Ray says where its processes need more than its 30 seconds, which no setting changes."""
_PATIENCE_OF_RAY = {"RAY_gcs_server_port_wait_time_s": "300"}
"""Ray's own settings of how long it waits for its processes to start; by itself 30 seconds."""


@dataclass(frozen=True)
class Execution:
    """The execution of a run by verl; it changes numbers by rounding only."""

    cluster: Cluster
    python: str  # of the environment that verl is installed in
    study: Path  # the directory that the study works in
    repository: Path  # where this project's packages are
    lock_wait_seconds: float  # for another process that trains this run


def train(run: VerlRun, directory: Path, execution: Execution, checkpoints_at: Sequence[int] = ()) -> None:
    """Carry out ``run`` and leave checkpoint/, metrics.parquet and manifest.json in ``directory``.

    Started again it continues from the newest intact state, and a finished training is not started again. The policy is
    kept after the steps ``checkpoints_at`` as well (see :mod:`rlvr.engines.result`), multiples of the cluster's
    checkpoint_interval. verl does not repeat a run bit for bit, so one that the run has passed without keeping it
    is refused.

    Raises:
        Interrupted: on SIGTERM.
    """
    study, cluster = execution.study, execution.cluster
    base = verify_outputs(study / run.base / "manifest.json", "base_model")
    problems = verify_outputs(study / run.problems / "manifest.json", "problems")
    check(run, cluster, study / run.base / "checkpoint")
    inputs = {
        **{str(run.base / name): digest for name, digest in base.outputs.items() if name.startswith("checkpoint/")},
        str(run.problems / "problems.jsonl"): problems.outputs["problems.jsonl"],
        **copied_inputs(run, study),
    }
    versions = {"engine": VERSION, "verl": PINNED, "grader": GRADER_VERSION}
    training = Training(run, inputs, versions | option_versions(run.training))
    state = directory / "state" / training.fingerprint[:16]
    places = Places(run=directory, study=study, repository=execution.repository, state=state)
    started = time.monotonic()
    with single_writer(directory / "state", "trains this run", execution.lock_wait_seconds):
        if left := end_processes_of(directory / "run.json"):
            print(f"{run.run}: ended {left} processes that an earlier attempt had left", flush=True)
        lacking = lacking_checkpoints(directory, training, checkpoints_at)
        step = prepare_resume(state)
        _require_kept(run, cluster, state, step, lacking)
        left_out = write_prompts(run, study / run.problems, Checkpoint(study / run.base / "checkpoint"), places.prompts)

        def last_step(saved: int) -> int:
            """The step with which the run ends, as far as the rewards of the ``saved`` ones tell."""
            return run.training.last_step([row["reward_mean"] for row in read_steps(state, saved)])

        def write(result: Training, out: Path, metrics: pd.DataFrame, steps: int) -> None:
            """Make the policy after so many ``steps``."""
            details = merge(run, state / f"global_step_{steps}", out / "checkpoint", places, execution.python)
            write_result(
                out,
                result,
                sorted(path for path in (out / "checkpoint").iterdir() if path.is_file()),
                metrics[metrics["step"] <= steps],
                steps,
                optimizer_steps=steps * run.training.updates_per_step,  # a row of the metrics may be missing
                seconds_last_process=time.monotonic() - started,
                devices=cluster.devices,
                prompts_left_out=left_out,
                **details,
            )

        if step < last_step(step):
            require_machine(cluster)
            if step:
                print(f"{run.run}: continues after step {step} of {run.training.steps}", flush=True)
            if run.verifier_file is not None:
                shutil.copyfile(study / run.verifier_file, places.verifier)
            end = _run_verl(run, places, execution, Display(run, places, training.parameters, step), lacking)
            step = prepare_resume(state)
            if step != (last := last_step(step)):
                raise UserError(f"{run.run}: verl ended with step {step} saved, of {last}: {end}")
        if step < run.training.steps:
            print(f"{run.run}: {run.training.stopped_after(step)}", flush=True)
        metrics = whole_metrics(state, step)
        for earlier in (number for number in lacking if number <= step):
            shorter, place = training.after(earlier), checkpoint_directory(directory, earlier)
            write_json(place / "run.json", shorter.run.to_json())
            write(shorter, place, metrics, earlier)
            remove_old(state, cluster.checkpoints_kept, [later for later in lacking if later > earlier])
        write(training, directory, metrics, step)
        for later in (number for number in lacking if number > step):  # the run stopped before
            repeat_result(directory, training, later)
        remove_metrics_so_far(directory)


def _require_kept(run: VerlRun, cluster: Cluster, state: Path, done: int, wanted: Sequence[int]) -> None:
    """Check that the states of ``wanted`` steps are kept or will be; ``done`` steps are done."""
    for step in wanted:
        if step % cluster.checkpoint_interval:
            accepted = f"by verl: multiples of checkpoint_interval, {cluster.checkpoint_interval}"
            raise InvalidInput(run.run, "checkpoints_at", f"is {step}", accepted)
        if step <= done and not is_intact(state / f"global_step_{step}", to_continue=False):
            raise UserError(
                f"{run.run}: checkpoints_at: the state after step {step} was not kept, and verl does not repeat a "
                f"training bit for bit; remove {state} to train the run again"
            )


def _run_verl(
    run: VerlRun, places: Places, execution: Execution, display: Display, checkpoints_at: Sequence[int]
) -> str:
    """Start verl, again if Ray does not come up in time, and wait for it; how it ended, in one line."""
    for start in range(_STARTS):
        output, status = _start_verl(run, places, execution, display, checkpoints_at)
        if _RAY_IS_SLOW not in output or start == _STARTS - 1:
            break
        print(f"{run.run}: Ray did not start within its time on this busy machine; it is started again", flush=True)
    return f"{error_in(output, status)} ({places.log})"


def _start_verl(
    run: VerlRun, places: Places, execution: Execution, display: Display, checkpoints_at: Sequence[int]
) -> tuple[str, int]:
    """Start verl and wait for it; its output, which goes to a log that is kept over attempts, and its exit status."""
    verl = launch(run, execution.cluster, places, checkpoints_at)
    places.state.mkdir(parents=True, exist_ok=True)
    log, python = places.log, execution.python
    # Ray and vLLM start programs of verl's environment.
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])
    # On one node verl starts a Ray of its own, whatever other one runs there, with files of its own.
    has_own = execution.cluster.nodes == 1 and "RAY_ADDRESS" not in os.environ
    before = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output, own_directory() as own, termination() as asked_to_stop:
        of_ray = {"RAY_ADDRESS": "local", "RAY_TMPDIR": own} if has_own else {}
        process = subprocess.Popen(
            [*on_every_node(execution.cluster, python, os.environ), python, *verl.words[1:]],
            cwd=log.parent,
            env={**_PATIENCE_OF_RAY, **os.environ, **verl.environment, **of_ray, "PATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                if asked_to_stop():
                    raise Interrupted(f"{run.run}: stopped; it continues from the state that was saved last")
                display.update()
                time.sleep(_LOOK_SECONDS)
        finally:
            process.terminate()
            try:
                process.wait(timeout=_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                print("verl does not end; it is killed", file=sys.stderr, flush=True)
            end_processes_of(places.run / "run.json")
    display.update()
    with log.open("rb") as output:
        output.seek(before)
        return output.read().decode(errors="replace"), process.returncode


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
    """The prompts by which verl has evaluation's tokens, in place of ``texts``, of ``problems``; their numbers."""
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
