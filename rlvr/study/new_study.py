"""A commented study of a model on the GPUs of one machine, for a user to go on from."""

import os
import re
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import write_text
from evals.generation.chat import has_chat_template, turn_end
from evals.generation.checkpoint import Checkpoint
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study

_ONE_GPU = REPOSITORY / "config" / "one_gpu.yaml"
_SMALL_GPU = REPOSITORY / "config" / "one_gpu_24gb.yaml"

_STUDY = """\
# {title}
#
#   snakemake -n --configfile {file} --directory DIR       what would be done, and what it would cost
#   snakemake --configfile {file} --directory DIR --cores 8
#
# `rlvr-bench methods` lists the methods, config/README.md explains the sections, docs/configuration.md every key.
extends: {parent}  # what is not here is as it is there: training, evaluation, statistics
study: {name}
{engine}seeds: [1, 2]

models:
  {name}:
    source: hugging_face
    {where}
    prompt_form: {prompt}  # base: plain text; chat: the user's turn of the model's chat template
    dtype: bfloat16

# A training set of config/datasets, or `path` to a file of your own beside it.
problems:
  source: gsm8k_train
  prompt: {instruction}

benchmarks: [gsm8k, math_500]  # names of files in config/benchmarks

methods:
  dapo: {{}}
  delta: {{}}
  dapo_forking_tokens: {{}}
reference_method: dapo  # the one that every other is compared with
"""
_OF_VERL = """
training:
  micro_batch_size: null  # the local engine's; verl takes tokens_per_device
  micro_batch_tokens: null
  sampling_batch_size: null
  max_prompt_tokens: 512

evaluation: {backend: vllm, max_model_len: 2048, tensor_parallel_size: 1}

contrast_steps: 0  # the local engine's

execution:
  gradient_checkpointing: null
  training_python: python  # of the environment that verl is installed in (docs/paper_scale.md)
  sampling_python: python
  cluster:
    nodes: 1
    gpus_per_node: GPUS
    tokens_per_device: 16384
"""


def write_new_study(out: Path, model: str, gpus: int, memory: int, prompt: str | None) -> Study:
    """Write the file, and read it as a check.

    Args:
        out: the file; one that is there is never overwritten.
        model: OWNER/NAME on the Hub, or the directory of a checkpoint.
        gpus: of the machine. None: the CPU; one: the local engine; more: verl.
        memory: GB of a GPU.
        prompt: ``base`` or ``chat``; None takes chat if a local checkpoint has a chat template whose turns end with one
            of its end tokens; a base model's do not.
    """
    if out.exists():
        raise UserError(f"{out}: is there already; give another name")
    directory = Path(model).expanduser()
    is_local = directory.is_dir() or model.startswith((".", "/", "~"))
    if is_local and not (directory / "config.json").is_file():
        raise UserError(
            f"--model: {model} has no config.json; a checkpoint directory or OWNER/NAME on the Hub is accepted"
        )
    name = re.sub(r"\W+", "_", directory.resolve().name if is_local else model.rpartition("/")[2]).strip("_").lower()
    form = prompt or ("chat" if is_local and _is_chat_model(directory) else "base")
    instruction = r"{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."
    parent = _ONE_GPU if memory >= 80 or gpus > 1 else _SMALL_GPU
    inside = out.absolute().is_relative_to(REPOSITORY)
    text = _STUDY.format(
        title=f"{model}: three methods on {f'{gpus} GPUs' if gpus > 1 else 'one GPU' if gpus else 'the CPU'}.",
        file=out,
        parent=os.path.relpath(parent, out.absolute().parent) if inside else parent,
        name=name,
        engine="engine: verl\n" if gpus > 1 else "",
        where=f"path: {directory.resolve()}" if is_local else f"id: {model}",
        prompt=form,
        instruction=f'"{instruction}"' if form == "chat" else rf'"{instruction}\n"',
    )
    if gpus > 1:
        text += _OF_VERL.replace("GPUS", str(gpus))
    elif gpus == 0:
        text += "\nexecution: {device: cpu}\n"
    write_text(out, text)
    try:
        return Study.read(out)
    except UserError:  # such as a name that is none
        out.unlink()
        raise


def _is_chat_model(directory: Path) -> bool:
    """Return whether a checkpoint's turns end with a token that ends its responses; a base model's do not."""
    checkpoint = Checkpoint(directory)
    return has_chat_template(directory) and turn_end(checkpoint) in checkpoint.end_tokens
