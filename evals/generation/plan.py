"""The samples that an evaluation wants of a model, or of a pair of models, and what identifies them."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from evals.core.errors import InvalidInput
from evals.core.files import fingerprint, sha256_bytes, sha256_file
from evals.generation import VERSION, arithmetic
from evals.generation.backend import Backend, BackendSettings, Request, engine_version, load_backend
from evals.generation.chat import apply_chat_template, end_tokens, taught_end
from evals.generation.checkpoint import UNLIMITED, Checkpoint, ServedModel
from evals.generation.devices import claim_devices, drivers, require_driver
from evals.generation.settings import DECISIVE, EvaluationSettings, Turn
from evals.problems.problem_set import load


@dataclass(frozen=True)
class SamplePlan:
    """All samples that are wanted, and what identifies them."""

    models: Sequence[Checkpoint]  # one, or several that decode in step
    settings: EvaluationSettings
    ids: Sequence[str | int]  # of the problems, in order
    prompts: Sequence[tuple[int, ...]]  # token ids of each problem's prompt
    context_length: int  # longest prompt and response together
    end_tokens: Mapping[int, str]  # ids that end a response, with their texts
    inputs: Mapping[str, str]  # path -> SHA-256 of the files that were read
    parameters: Mapping[str, Any]  # everything that the samples depend on
    unknown_tokens: int  # of the prompts' tokens, how many stand for text that the tokenizer does not know
    gated: bool  # the texts, and responses that could quote them, may be written nowhere
    bodies: Sequence[Mapping[str, Any]] = ()  # of a server: each problem's prompt as it is sent; there are no ids then

    @cached_property
    def room(self) -> list[int]:
        """Tokens that are left for each problem's response; 0 where the prompt alone fills the context."""
        limit = self.settings.max_new_tokens
        return [max(0, min(limit, self.context_length - len(prompt))) for prompt in self.prompts]

    @cached_property
    def end(self) -> int:
        """The token that a response's text is ended with where it is encoded again."""
        return taught_end(self.models[-1], self.settings.prompt_form, self.settings.chat_template_kwargs)

    def batches(self) -> list[list[tuple[int, int]]]:
        """The wanted (problem's index, sample's number) that have room, in the batches they are decoded in.

        Prompts of one batch are of similar length, as all are read at the length of the longest.
        """
        numbers = range(self.settings.samples_per_problem)
        order = sorted(range(len(self.prompts)), key=lambda index: len(self.prompts[index]))
        jobs = [(index, number) for index in order if self.room[index] for number in numbers]
        size = self.settings.sampling_batch_size
        return [jobs[start : start + size] for start in range(0, len(jobs), size)]

    def key(self, sample: tuple[int, int]) -> tuple[str | int, int]:
        """The problem's id and number of a wanted sample."""
        return self.ids[sample[0]], sample[1]

    def requests(self, samples: Iterable[tuple[int, int]]) -> Iterator[Request]:
        """The requests of samples; the random numbers of each are those of seed, problem and number."""
        for index, number in samples:
            identity = f"evaluation/{self.settings.seed}/{self.ids[index]}/{number}"
            yield Request(self.prompts[index], identity, self.room[index], self.bodies[index] if self.bodies else {})

    def load_backend(self) -> Backend:
        """Load the models; torch then keeps to the threads of the settings."""
        settings = self.settings
        if settings.backend != "server":  # which computes nothing here, and needs neither torch nor a GPU
            if settings.device == "cuda":
                import torch

                require_driver(torch.version.cuda, drivers())
                claim_devices(settings.tensor_parallel_size)
            arithmetic.set_up(settings.sampling_threads, settings.is_portable)
        backend_settings = BackendSettings(
            dtype=self.parameters.get("dtype", "auto"),
            device=settings.device,
            context_length=self.context_length,
            end_tokens=list(self.end_tokens),
            sampling=settings,
            stop=settings.stop,
            tensor_parallel_size=settings.tensor_parallel_size,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            head_dtype=settings.head_dtype,
        )
        return load_backend(settings.backend, self.models, backend_settings)

    def with_parameters(self, **parameters: Any) -> Self:
        """The plan with further parameters."""
        return dataclasses.replace(self, parameters={**self.parameters, **parameters})

    @property
    def fingerprint(self) -> str:
        """Fingerprint of what decides the samples."""
        return fingerprint({"parameters": self.parameters, "inputs": sorted(self.inputs.values())})

    @property
    def identity(self) -> str:
        """Fingerprint of what decides one sample; how many there are of each problem does not."""
        decisive = {key: value for key, value in self.parameters.items() if key != "samples_per_problem"}
        return dataclasses.replace(self, parameters=decisive).fingerprint


def make_plan(models: Sequence[Checkpoint], problems: Path, settings: EvaluationSettings) -> SamplePlan:
    """Plan the samples of a problem set; prompts are those of the last model."""
    problem_set, model = load(problems), models[-1]
    texts = problem_set.prompts(settings.prompt)
    path = problems / "problems.jsonl"
    if settings.prompt_form == "base":
        shown = "".join(text if role == "user" else f"{text}\n\n" for role, text in settings.turns_before)
        texts = [shown + text for text in texts]
    parameters = {
        "engine": settings.backend,
        "version": VERSION,
        "engine_version": engine_version(settings.backend),
        "prompts_sha256": sha256_bytes("\0".join(texts).encode("utf-8")),
        **settings.model_dump(mode="json", include=DECISIVE, exclude_defaults=True),
    }
    ids, inputs = [problem.id for problem in problem_set.problems], {str(path): sha256_file(path)}
    if isinstance(model, ServedModel):
        bodies = [_body(text, settings) for text in texts]
        parameters = {**parameters, "requests_sha256": fingerprint(bodies), **model.parameters}
        none, unlimited = [()] * len(ids), settings.max_new_tokens
        return SamplePlan(models, settings, ids, none, unlimited, {}, inputs, parameters, 0, problem_set.gated, bodies)
    prompts = encode_prompts(model, texts, settings.prompt_form, settings.turns_before, settings.chat_template_kwargs)
    context = min(model.context_length(settings.max_model_len) for model in models)
    if context == UNLIMITED:  # what is needed, for engines that make room for all of it
        context = max(map(len, prompts), default=0) + settings.max_new_tokens
    told = settings.chat_template_kwargs
    ends = {number: text for model in models for number, text in end_tokens(model, settings.prompt_form, told).items()}
    unknown = model.special_token("unk_token")
    parameters |= {
        "dtype": model.dtype(settings.dtype),
        "prompt_tokens_sha256": fingerprint(prompts),
        "end_tokens": sorted(ends),
    }
    return SamplePlan(
        models,
        settings,
        ids,
        prompts,
        context,
        ends,
        {name: digest for model in models for name, digest in model.hashes.items()} | inputs,
        parameters,
        sum(prompt.count(unknown) for prompt in prompts) if unknown is not None else 0,
        problem_set.gated,
    )


def _body(text: str, settings: EvaluationSettings) -> dict[str, Any]:
    """A problem's prompt as a server is sent it."""
    if settings.prompt_form == "base":
        return {"prompt": text}
    turns = [*settings.turns_before, ("user", text)]
    body: dict[str, Any] = {"messages": [{"role": role, "content": content} for role, content in turns]}
    return body | ({"chat_template_kwargs": settings.chat_template_kwargs} if settings.chat_template_kwargs else {})


def encode_prompts(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    form: str,
    before: Sequence[Turn] = (),
    template: Mapping[str, Any] = MappingProxyType({}),
) -> list[tuple[int, ...]]:
    """Encode every prompt.

    A model whose tokenizer begins a text with BOS, or whose template writes one, gets exactly one; others get none. Of
    form ``base`` a text is the prompt. Of form ``chat`` it is the user's turn in the model's chat template, after the
    turns ``before``; ``template`` is what the template is told.
    """
    tokenizer, bos = checkpoint.tokenizer, checkpoint.special_token("bos_token")
    begins = bos is not None and tokenizer.encode("").ids[:1] == [bos]
    if form == "chat":
        texts = apply_chat_template(checkpoint, [[*before, ("user", text)] for text in texts], template)
    else:
        tokenizer.encode_special_tokens = True  # a base prompt is plain text: "<s>" in a problem is three characters
    prompts = []
    for number, encoding in enumerate(tokenizer.encode_batch(list(texts), add_special_tokens=False), start=1):
        ids = tuple(encoding.ids)
        if begins and bos is not None and ids[:1] != (bos,):
            ids = (bos, *ids)
        count = 0 if bos is None else ids.count(bos)
        if count > 1 or (begins and count != 1) or (count == 1 and ids[0] != bos):
            where = f"{checkpoint.directory}: prompt {number}"
            raise InvalidInput(where, "", f"has {count} BOS tokens", "exactly one, at its start")
        prompts.append(ids)
    tokenizer.encode_special_tokens = False
    return prompts
