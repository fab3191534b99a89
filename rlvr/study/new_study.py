"""A commented study of a model on the GPUs of one machine, for a user to go on from."""

import re
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import write_text
from evals.generation.chat import has_chat_template, turn_end
from evals.generation.checkpoint import Checkpoint
from rlvr.study.job_sizes import BYTES_TRAINED, named_billions
from rlvr.study.study import Study

_STUDY = """\
# {title}
#
#   snakemake -n --configfile {file} --directory DIR       what would be done, and what it would cost
#   snakemake --configfile {file} --directory DIR --cores 8
{measured}#
# `rlvr-bench methods` lists the methods, config/README.md explains the sections, docs/configuration.md every key.
extends: {parent}  # of config/ of the project: what is not here is as it is there
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
_MEASURED = """\
#   rlvr-bench rehearse {file}       two steps of it: what a step takes on this machine
#
# A step of Qwen3-0.6B at the lengths of one_gpu.yaml took 32 seconds and 36 GB on an H200 (docs/results/gpu.md), its
# training of 100 steps 54 minutes; both grow with the model.
"""
_LORA = """
training:
  # By its name {size:g} billion parameters: with gradients and moments {needed:.0f} GB. So adapters are trained.
  lora: {{rank: 32, alpha: 64}}
"""
_OF_VERL = """\
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
        accepted = "a checkpoint directory or OWNER/NAME on the Hub is accepted"
        raise UserError(f"--model: {model} has no config.json; {accepted}")
    name = re.sub(r"\W+", "_", directory.resolve().name if is_local else model.rpartition("/")[2]).strip("_").lower()
    form = prompt or ("chat" if is_local and _is_chat_model(directory) else "base")
    instruction = r"{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."
    size = named_billions(model.rpartition("/")[2]) or 0.0
    if is_local:
        where_from = f"path: {directory.resolve()}  # its bytes are part of every result's identity"
    else:
        commit = newest_commit(model)
        revision = f"revision: {commit}" if commit else "# revision: COMMIT  # else main of that day"
        where_from = f"id: {model}\n    {revision}"
    text = _STUDY.format(
        title=f"{model}: three methods on {f'{gpus} GPUs' if gpus > 1 else 'one GPU' if gpus else 'the CPU'}.",
        file=out,
        parent="one_gpu.yaml" if memory >= 80 or gpus > 1 else "one_gpu_24gb.yaml",
        name=name,
        measured=_MEASURED.format(file=out) if gpus == 1 else "",
        engine="engine: verl\n" if gpus > 1 else "",
        where=where_from,
        prompt=form,
        instruction=f'"{instruction}"' if form == "chat" else rf'"{instruction}\n"',
    )
    if (needed := BYTES_TRAINED * size) > memory * max(gpus, 1):
        training = _LORA.format(size=size, needed=needed)
    else:
        training = "\ntraining:\n" if gpus > 1 else ""
    of_machine = _OF_VERL.replace("GPUS", str(gpus)) if gpus > 1 else "" if gpus else "\nexecution: {device: cpu}\n"
    text += training + of_machine
    write_text(out, text)
    try:
        return Study.read(out)
    except UserError:  # such as a name that is none
        out.unlink()
        raise


def newest_commit(model: str) -> str | None:
    """Ask the Hub for the commit that a model has now; None where it does not answer, or has no such model."""
    try:
        from huggingface_hub import HfApi

        return HfApi().model_info(model, timeout=10).sha
    except Exception:  # of the library's kinds, and of its HTTP client's; or the library is not here
        return None


def _is_chat_model(directory: Path) -> bool:
    """Return whether a checkpoint's turns end with a token that ends its responses; a base model's do not."""
    checkpoint = Checkpoint(directory)
    return has_chat_template(directory) and turn_end(checkpoint) in checkpoint.end_tokens
