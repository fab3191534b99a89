"""A run in progress: its model and sampler, position, clock, saved state, and score on validation problems.

:mod:`rlvr.engines.local.learner` has the step that changes them.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.run_spec import LocalRun
from evals.generation.chat import end_tokens, ends_in_words
from evals.generation.checkpoint import Checkpoint
from evals.generation.devices import claim_one
from evals.generation.sampler import Sampler
from evals.grading import GradingPool
from rlvr.engines.local.policy import Policy, TokenBatch, load_policy, same_bytes, score_in_chunks
from rlvr.engines.local.rollout import PromptOrder, Rollouts, RolloutSampler, encode_problems, sampling_of
from rlvr.engines.local.sampler_dose import DosedSampler
from rlvr.engines.local.vllm_rollouts import VllmRollouts
from rlvr.methods.loss_terms import LossTerm
from rlvr.methods.method import compose
from rlvr.methods.rollout_batch import rollout_kl
from rlvr.runs.state import State, StateStore, load_training_tensors, training_tensors

if TYPE_CHECKING:
    from rlvr.engines.local.learner import Updater

_COMPARED = ("reward_mean", "response_length_mean", "entropy", "loss", "grad_norm", "tokens_generated")
_TOLERANCE = 1e-4
"""The largest relative difference of a repeated step's metric; the same number of threads on one machine gives 0."""


@dataclass
class Position:
    """The position of a run. Random numbers are functions of it, so it is all that has to be saved of them."""

    step: int = 0  # rollout steps done
    prompts_used: int = 0  # training problems taken from the run's order
    updates: int = 0  # optimizer steps done
    metrics: list[dict[str, float]] = field(default_factory=list)  # one row per rollout step
    validation: list[dict[str, Any]] = field(default_factory=list)  # one row per score on the validation problems


def time_on(device: torch.device) -> float:
    """Return the time once ``device`` has done what it was asked for: a GPU is only told, and works on alone."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def peak_memory(device: torch.device) -> int:
    """Return the most bytes so far: of a GPU those that torch allocated, else this process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class StepClock:
    """Seconds spent in the parts of one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = time_on(device)
        self._seconds = dict.fromkeys(("rollout", "reward", "log_probs", "token_weights", "update"), 0.0)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the seconds of the block to ``part``."""
        started = time_on(self._device)
        yield
        self._seconds[part] = self._seconds.get(part, 0.0) + time_on(self._device) - started

    def metrics(self) -> dict[str, float]:
        """Seconds by part, and of the step so far."""
        parts = {f"seconds_{part}": seconds for part, seconds in self._seconds.items()}
        return {**parts, "seconds_step": time_on(self._device) - self._started}


class RunInProgress:
    """A run's model, sampler and position.

    Attributes:
        updater: the optimizer steps, which the subclass with the step makes.
    """

    updater: Updater

    def __init__(self, run: LocalRun, device: str, gradient_checkpointing: bool = False) -> None:
        claim_one(device)
        checkpoint, training = Checkpoint(run.base / "checkpoint"), run.training
        self.method = compose(run.method, f"method {run.method_name}", run.training.max_new_tokens)
        self.run = run
        self.position = Position()
        self.tokenizer = checkpoint.tokenizer
        problems = read_jsonl(run.problems / "problems.jsonl", required=("id", "problem", "answer"))
        self.order = PromptOrder(problems, run.seed)
        prompts = encode_problems(checkpoint, run, problems)
        if run.validation is not None:
            self._held_out = read_jsonl(run.validation.problems / "problems.jsonl", ("id", "problem", "answer"))
            prompts |= encode_problems(checkpoint, run, self._held_out)
        self.longest_prompt = max(prompts.values(), key=len)
        self._load = partial(load_policy, checkpoint, device, run.dtype, head_dtype=run.head_dtype)
        self.model = self._load(gradient_checkpointing, training.share_prompts)
        if training.lora is not None:
            from rlvr.engines.local.lora import adapted  # which imports peft and transformers

            self.model = adapted(self.model, checkpoint, training.lora, run.seed)
        ends = end_tokens(checkpoint, run.prompt_form, run.chat_template_kwargs)
        print(f"{run.run}: responses end with {ends_in_words(ends)}", flush=True)
        self._vllm: VllmRollouts | None = None
        if training.sampling_backend == "vllm":
            self._vllm = VllmRollouts(checkpoint, run, device, len(self.longest_prompt), list(ends))
        # In half precision the sampler's numbers, of other shapes, differ from the trainer's by more than a last digit.
        dose = training.sampler_dose
        self._scored_by_trainer = run.dtype != "float32" or self._vllm is not None or dose is not None
        self._dosed = DosedSampler(dose, self._load()) if dose is not None else None
        self._is_cut = self._vllm is None and min(training.top_p, dose.top_p if dose else 1.0) < 1.0
        self._sampler = RolloutSampler(
            self.tokenizer, prompts, training.samples_per_prompt, sampling_of(training), list(ends)
        )
        self._reference: Policy | None = None
        self._scores_by_reference = False
        if self.method.kl is not None:
            self.load_reference(for_loss=isinstance(self.method.kl, LossTerm))

    def load_reference(self, for_loss: bool = True) -> None:
        """Load the reference policy, which the training starts from; with ``for_loss`` it scores what is trained on."""
        if self._reference is None:
            self._reference = self._load()
        self._scores_by_reference |= for_loss

    @property
    def details(self) -> dict[str, Any]:
        """What a manifest says of how the policy was computed."""
        training, device, backend = self.run.training, self.model.device.type, self.model.backend
        betas = [training.adam_beta1, training.adam_beta2]
        return {
            **{"model_computed_by": backend, "sampled_by": self._vllm.name if self._vllm else backend},
            **{"same_bytes": same_bytes(device, self.run.dtype, backend, self._vllm is not None), "device": device},
            "optimizer": {"name": "AdamW", "betas": betas, "epsilon": training.adam_epsilon},
        }

    def _sampler_of_policy(self) -> Sampler:
        """The sampler of the present policy."""
        return self._vllm.sampler(self.model) if self._vllm else self.model.sampler()

    def token_text(self, token: int) -> str:
        """Return the text of one token alone."""
        return str(self.tokenizer.decode([token], skip_special_tokens=False))

    def restore(self, state: State) -> None:
        """Continue from a saved state."""
        load_training_tensors(self.model, self.updater.optimizer, state.tensors)
        if self._dosed is not None:
            self._dosed.restore(state.tensors)
        self.position = Position(state.step, **state.values)

    def save(self, store: StateStore, is_last: bool = False) -> None:
        """Save everything that :meth:`restore` needs; after the last step the weights, and no optimizer."""
        position = self.position
        values = {"prompts_used": position.prompts_used, "updates": position.updates, "metrics": position.metrics}
        if self.run.validation is not None:
            values["validation"] = position.validation
        past = self._dosed.state() if self._dosed is not None else {}
        tensors = training_tensors(self.model, None if is_last else self.updater.optimizer)
        store.save(position.step, tensors | past, values, is_last)

    def _log_probs_by(self, policy: Policy, tokens: TokenBatch) -> Tensor:
        """The log-probabilities [N] of the response tokens under another policy than the current one, or again."""
        training = self.run.training
        size, most_tokens = training.micro_batch_size, training.scored_tokens
        return score_in_chunks(policy, tokens, training.temperature, size, None, most_tokens)[0]

    def _log_probs_by_policy(self, drawn: Rollouts) -> Tensor:
        """The log-probabilities [N] of sampled tokens under the policy: the sampler's where they are the trainer's."""
        if self._scored_by_trainer:
            return self._log_probs_by(self.model, drawn.tokens)
        mask = drawn.tokens.response_mask
        return drawn.log_probs[:, : mask.shape[1]][mask.to(drawn.log_probs.device)]

    def validate(self, pool: GradingPool) -> None:
        """Score the present policy on the validation problems, if it is due and not done; no step notices it."""
        settings, step, scores = self.run.validation, self.position.step, self.position.validation
        if settings is None or step % settings.every or (scores and scores[-1]["step"] == step):
            return
        # Of the whole distribution, whatever rollouts are drawn from: scores along training runs can then be compared.
        parameters = self._sampler.parameters.model_copy(update={"top_p": 1.0})
        sampler = replace(self._sampler, samples_per_prompt=settings.samples_per_problem, parameters=parameters)
        rollouts = sampler.roll_out(self._sampler_of_policy(), self._held_out, f"validation/{self.run.seed}/{step}", 0)
        right = torch.tensor([verdict.reward == 1 for verdict in rollouts.verdicts(pool)])
        correct = right.view(len(self._held_out), settings.samples_per_problem).sum(dim=1)
        counts = {"correct_counts": correct.tolist(), "samples_per_problem": settings.samples_per_problem}
        scores.append({"step": step, **counts, "base_kl": self._base_kl(rollouts)})

    def _base_kl(self, drawn: Rollouts) -> float:
        """Estimate KL(policy || base model) in nats a token, from responses that the policy drew."""
        if self.position.updates == 0:
            return 0.0
        # Where both numbers are the trainer's, passes of one shape round alike.
        shared = self.run.training.share_prompts or not self._scored_by_trainer
        by_base = self._log_probs_by(self._reference or self._load(share_prompts=shared), drawn.tokens)
        return rollout_kl(by_base, self._log_probs_by_policy(drawn).to(by_base.device))


def require_same_step(run: str, repeated: Mapping[str, float], recorded: Mapping[str, float]) -> None:
    """Check that a repeated step has the metrics that the run wrote down."""
    for name in _COMPARED:
        if abs(repeated[name] - recorded[name]) > _TOLERANCE * max(1.0, abs(recorded[name])):
            raise UserError(
                f"{run}: step {repeated['step']:.0f} has {name} {repeated[name]:.6g} when it is repeated and "
                f"{recorded[name]:.6g} in the run's metrics; use the run's number of threads and device, and code of "
                "its versions"
            )
