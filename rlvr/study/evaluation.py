"""The evaluation of a model that exists: a study without methods, in a directory of its own (``rlvr-bench eval``).

The command line is written as a study's configuration, and the workflow runs it. So samples, grades, scores and
manifests are those of any study, and an evaluation that was interrupted goes on as a study does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from typer import Option

from evals.core.errors import InvalidInput, UserError
from evals.core.files import parse_json, read_jsonl, write_json
from evals.core.numbers import Count
from evals.core.record import with_defaults
from evals.core.sampling import TokenDistribution
from evals.core.yaml_file import read_yaml
from rlvr.study.benchmarks import read_benchmarks
from rlvr.study.source_files import REPOSITORY

_RESAMPLING = {"seed": 1, "resamples": 10_000, "permutations": 100_000}
_HAS_GPU = Path("/dev/nvidia0").exists()


@dataclass(frozen=True)
class Evaluated:
    """The model and the benchmarks of an evaluation.

    Attributes:
        model: a directory in Hugging Face format, or OWNER/NAME on the Hub.
        benchmarks: names of files in config/benchmarks, separated by commas or spaces.
        k: samples of each problem; more words such as mmlu_pro=1 give benchmarks another number.
        revision: commit, branch or tag of a model on the Hub; default: main.
        server: address of a server with OpenAI's interface that has the model, such as http://127.0.0.1:8000/v1.
        extra_body: extra JSON fields for each request to the server.
        sources: local copies of benchmarks, as NAME=PATH.
    """

    model: str
    benchmarks: list[str]
    k: list[str]
    revision: str | None = None
    server: str | None = None
    extra_body: str = "{}"
    sources: list[str] = ()  # type: ignore[assignment]


@dataclass(frozen=True)
class Prompting:
    """The prompts of an evaluation, and what ends a response.

    Attributes:
        prompt: chat for the model's chat template, base for plain text.
        system_prompt: system prompt of a chat model.
        enable_thinking: thinking setting of the chat template; default: the template's own.
        few_shot: file of worked examples, JSON lines with problem and solution.
        stop: texts that end a response, such as a next problem's beginning.
    """

    prompt: Literal["chat", "base"] = "chat"
    system_prompt: str | None = None
    enable_thinking: Literal["true", "false"] | None = None
    few_shot: Path | None = None
    stop: list[str] = ()  # type: ignore[assignment]


if TYPE_CHECKING:
    Distribution = TokenDistribution
else:

    class Distribution(with_defaults(TokenDistribution, temperature=0.6, top_p=0.95)):
        """The distribution of tokens; a benchmark's file says its longest response."""

        max_new_tokens: Count | None = Field(
            default=None, description="longest response in tokens; default: the largest of the benchmarks' files"
        )


@dataclass(frozen=True)
class Machine:
    """Where an evaluation runs.

    Attributes:
        backend: inference backend; default: vllm if --python is given or this Python has it, else transformers.
        device: device of the model; default: cuda if this machine has an NVIDIA GPU.
        dtype: precision of weights and activations; auto: the checkpoint's own.
        tensor_parallel_size: GPUs that share a model.
        max_model_len: context length, if it is to be shorter than the model's.
        seed: random seed.
        batch_size: responses decoded or asked for at a time; default: 1024 of vLLM, 64 of a server, else 16.
        python: Python of another environment in which to sample.
        threads: number of threads of a sampling job on a CPU.
        cores: number of cores for all jobs together; default: all.
    """

    backend: Literal["vllm", "transformers", "local"] | None = None
    device: Literal["cpu", "cuda"] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    seed: int = 1
    batch_size: int | None = None
    python: str | None = None
    threads: int = 1
    cores: Annotated[int | None, Option(min=1)] = None


def configuration(
    evaluated: Evaluated, prompting: Prompting, distribution: Distribution, machine: Machine
) -> dict[str, Any]:
    """The study that an evaluation is; what is not accepted is named in one line, with the option that says it."""
    benchmarks = _words("--benchmarks", evaluated.benchmarks)
    known = read_benchmarks(benchmarks, {}, "--benchmarks")
    number, *others = _words("--k", evaluated.k)
    samples_of = {name: _count(k) for name, k in _pairs("--k", others).items()}
    backend = machine.backend or ("vllm" if machine.python or find_spec("vllm") else "transformers")
    in_flight = 64 if evaluated.server else 1024 if backend == "vllm" else 16
    evaluation: dict[str, Any] = {
        "backend": backend,
        "samples_per_problem": _count(number),
        "samples_of": samples_of or None,
        **distribution.to_json(),
        "max_new_tokens": distribution.max_new_tokens or max(each.entry.max_new_tokens for each in known.values()),
        "max_model_len": machine.max_model_len,
        "stop": list(prompting.stop) or None,
        "few_shot": None if prompting.few_shot is None else read_jsonl(prompting.few_shot, ("problem", "solution")),
        "sampling_batch_size": machine.batch_size or in_flight,
        "tensor_parallel_size": machine.tensor_parallel_size,
        "seed": machine.seed,
    }
    name, model = _model(evaluated)
    thinking = {None: None, "true": {"enable_thinking": True}, "false": {"enable_thinking": False}}
    model |= {"prompt_form": prompting.prompt, "system_prompt": prompting.system_prompt}
    model["chat_template_kwargs"] = thinking[prompting.enable_thinking]
    if evaluated.server is None:
        model["dtype"] = machine.dtype
    device = machine.device or ("cuda" if _HAS_GPU and evaluated.server is None else "cpu")
    workers = min(4, machine.cores or len(os.sched_getaffinity(0)))
    execution = {"device": device, "sampling_threads": machine.threads, "grading_workers": workers}
    python = machine.python
    if python is not None and "/" in python:  # a study's paths are relative to the repository
        python = str(Path(python).expanduser().absolute())
    sources = _pairs("--sources", evaluated.sources)
    content: dict[str, Any] = {
        "study": name,
        "models": {name: _given(model)},
        "benchmarks": benchmarks,
        "benchmark_sources": {key: {"path": str(Path(path).resolve())} for key, path in sources.items()} or None,
        "evaluation": _given(evaluation),
        "statistics": _RESAMPLING,
        "execution": _given({**execution, "sampling_python": python}),
    }
    return _given(content)


def _given(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value is not None}


def _words(option: str, values: Sequence[str]) -> list[str]:
    words = [word for value in values for word in value.split(",") if word]
    if not words:
        raise InvalidInput(option, "", "is empty", "at least one value")
    return words


def _pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not (name and equals and rest):
            raise InvalidInput(option, "", f"is {value!r}", "NAME=VALUE")
        pairs[name] = rest
    return pairs


def _count(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]*", text):
        raise InvalidInput("--k", "", f"is {text!r}", "a number of 1 or more, then NAME=NUMBER for single benchmarks")
    return int(text)


def _model(evaluated: Evaluated) -> tuple[str, dict[str, Any]]:
    """The model's name in the results, and where it is."""
    path = Path(evaluated.model).expanduser()
    name = re.sub("[^a-z0-9]+", "_", path.resolve().name.lower()).strip("_") or "model"
    if evaluated.server is not None:
        extra = parse_json(evaluated.extra_body, "--extra-body") or None
        return name, {"source": "server", "base_url": evaluated.server, "model": evaluated.model, "extra_body": extra}
    if path.is_dir():
        if evaluated.revision is not None:
            raise InvalidInput("--revision", "", f"is given with {path}", "none with a directory")
        return name, {"source": "hugging_face", "path": str(path.resolve())}
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", evaluated.model):
        accepted = "a directory in Hugging Face format, or OWNER/NAME on the Hub"
        raise InvalidInput("--model", "", f"is {evaluated.model!r}", accepted)
    return name, {"source": "hugging_face", "id": evaluated.model, "revision": evaluated.revision or "main"}


def evaluate(content: dict[str, Any], out: Path, cores: int | None) -> list[Path]:
    """Run an evaluation, or go on with it, in the directory ``out``; returns the directories of its grades."""
    from rlvr.study.study import Study  # the command line imports this module to list its options

    study = Study.resolve(content, "rlvr-bench eval")
    run_study(content, out, cores)
    return [out / f"results/grades/{run.run}/{name}" for run in study.runs for name in study.benchmarks]


def _settings_of_profile() -> list[str]:
    """The options that stand for the workflow's profile, of which Snakemake would print a line."""
    words = ["--workflow-profile", "none"]
    for key, value in read_yaml(REPOSITORY / "profiles/default/profile.yaml").items():
        values = value if isinstance(value, list) else [value]
        words += [] if value is False else [f"--{key}", *(str(each) for each in values if each is not True)]
    return words


def run_study(
    content: dict[str, Any], out: Path, cores: int | None, targets: Sequence[str] = ("all",), sdm: str | None = None
) -> None:
    """Run a study, or go on with it, in the directory ``out``, in which it is written to study.json.

    Snakemake says on standard error what it does.
    """
    if not (find_spec("snakemake") and (REPOSITORY / "Snakefile").is_file()):
        raise UserError("this command runs a study, which needs a clone and its environment (README.md, Install)")
    write_json(file := out / "study.json", content)
    options = ["--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(out), "--configfile", str(file)]
    options += [*_settings_of_profile(), "--cores", str(cores or "all"), *(["--sdm", sdm] if sdm else [])]
    command = [sys.executable, "-P", "-m", "rlvr.study.launch", "--", *targets, *options]
    ours = [str(REPOSITORY), str(REPOSITORY / "workflow/progress")]
    paths = os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": paths}, stdout=2, check=False)
    if ended.returncode != 0:
        raise UserError(f"{out}: the study stopped with status {ended.returncode}, as said above; what has run is kept")
