"""The launch of a run: command, Hydra overrides and environment, as a pure function of the run and its cluster.

The command is verl's own, unmodified. Two public extension points of verl are used: the environment variable
VERL_USE_EXTERNAL_MODULES names the module that every process imports (plugin.py), and names in the overrides choose
what that module has registered.
"""

import importlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput
from evals.core.run_spec import VERIFIER_FILE, Cluster, VerlRun
from rlvr.methods.method import Method, compose

PLUGIN = "rlvr.engines.verl.plugin"
ENGINE_VENDOR = "rlvr"
REWARD_MANAGER = "rlvr"
RUN_VARIABLE = "RLVR_RUN"
CLUSTER_VARIABLE = "RLVR_CLUSTER"
STUDY_VARIABLE = "RLVR_STUDY"
CHECKPOINTS_VARIABLE = "RLVR_CHECKPOINTS_AT"
COMMAND = ("python", "-m", "verl.trainer.main_ppo")

PLAIN_TEXT = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""A chat template that is none: a base model is given the prompt and nothing else."""
_OF_THE_STUDY = (
    *("data.", "reward.", "critic.", "actor_rollout_ref.actor.optim.", "trainer.critic_warmup"),
    *("custom_reward_function", "reward_model", "sandbox_fusion"),  # earlier names of reward's
    *("distillation", "skip", "trainer.use_v1"),  # another teacher, stored rollouts, a trainer without our extensions
    *(f"actor_rollout_ref.model.{name}" for name in ("custom_chat_template", "tokenizer_path", "hf_config_path")),
    *(f"actor_rollout_ref.model.{name}" for name in ("override_config", "mtp", "lora", "exclude_modules")),
    *(f"actor_rollout_ref.rollout.{name}" for name in ("prompt_length", "response_length", "do_sample", "multi_turn")),
    # One seed for all samples of a prompt; other probabilities, ends, weights, servers; slow prompts that are dropped.
    *(f"actor_rollout_ref.rollout.{name}" for name in ("full_determinism", "repetition_penalty", "ignore_eos", "mtp")),
    *(f"actor_rollout_ref.rollout.{name}" for name in ("quantization", "qat", "custom", "over_sample_rate")),
    "actor_rollout_ref.rollout.logprobs_mode",  # of what corrections and the sampler's metrics compare
    *(f"actor_rollout_ref.{name}" for name in ("actor.fsdp_config.qat", "actor.qat", "ref.fsdp_config.qat")),
    *(f"actor_rollout_ref.rollout.agent.{name}" for name in ("default_agent_loop", "agent_loop_config_path")),
    "actor_rollout_ref.rollout.agent.custom_async_server",
)
"""The beginnings of options that would give training other prompts, responses, rewards or updates than the study says,
of which the plan would tell nothing."""
_OF_ENGINES = re.compile(
    r"actor_rollout_ref\.rollout\.engine_kwargs(?:\.\w+(?:\.(?:generation_config|override_generation_config|seed|model"
    r"|dtype|max_model_len|logprobs_mode|tokenizer\w*|revision|hf_\w+|quantization\w*|kv_cache_dtype|speculative\w*"
    r"|logits_processors|lora\w*)\b.*)?)?"
)
"""The options of an inference engine's own that change what it draws, and its options as a whole."""
_OF_THE_METHOD = (
    "algorithm.",
    *(f"actor_rollout_ref.actor.{name}" for name in ("policy_loss", "loss_", "clip_ratio", "kl_loss")),
)
"""The beginnings of options of verl's own losses and advantages, which nothing reads here."""
_NO_LIMIT_ON_EPOCHS = 1_000_000
"""The number of steps ends a run; a limit on epochs can end a resumed one before its first step (verl #5725)."""

_PLAIN_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
"""Strings that Hydra reads as strings without quotes."""

Value = bool | int | float | str | None | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    """A command that starts a run."""

    command: Sequence[str]
    overrides: Mapping[str, Value]
    """Hydra key -> value, over verl's ppo_trainer configuration; a + before a key adds it."""
    environment: Mapping[str, str]  # of the driver, and by the overrides of the workers too

    @property
    def words(self) -> list[str]:
        return [*self.command, *(f"{key}={hydra_value(value)}" for key, value in self.overrides.items())]

    def as_shell(self) -> str:
        """A command that can be pasted into a shell, and leaves nothing in its environment."""
        words = [shlex.quote(word) for word in self.words]
        head = " ".join(words[: len(self.command)])
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " \\\n    ".join([*variables, head, *words[len(self.command) :]]) + "\n"


@dataclass(frozen=True)
class Places:
    """Directories of a launch, all absolute."""

    run: Path  # of the run, with run.json and cluster.json
    study: Path  # where the study works, which paths in run.json are relative to
    repository: Path  # where this project's packages are
    state: Path  # saved states of this run's fingerprint

    @property
    def prompts(self) -> Path:
        """The training problems in verl's format."""
        return self.run / "verl" / "prompts.parquet"

    @property
    def verifier(self) -> Path:
        """The user's reward function, where a run has one."""
        return self.run / "verl" / VERIFIER_FILE

    @property
    def log(self) -> Path:
        """The output of verl and its merger, in all attempts."""
        return self.run / "verl" / "verl.log"


def launch(run: VerlRun, cluster: Cluster, places: Places, checkpoints_at: Sequence[int] = ()) -> Launch:
    """The launch of ``run``; states after the steps ``checkpoints_at`` are kept."""
    method = compose(run.method, f"method {run.method_name}", run.training.max_new_tokens)
    environment = {
        "PYTHONPATH": str(places.repository),
        "PYTHONSAFEPATH": "1",  # no module of the directory that it works in
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "VERL_ENGINE_VENDOR": ENGINE_VENDOR,
        "HYDRA_FULL_ERROR": "1",
        RUN_VARIABLE: str(places.run / "run.json"),
        CLUSTER_VARIABLE: str(places.run / "cluster.json"),
        STUDY_VARIABLE: str(places.study),
    }
    overrides = _overrides(run, cluster, method, places)
    if method.kl is not None:
        # verl's reference worker, which it has for its own divergence; the method's takes its place.
        engine = "actor_rollout_ref.ref.fsdp_config"
        overrides |= {"algorithm.kl_ctrl.kl_coef": 0.0, **_precision(engine, run)}
        overrides[f"{engine}.ulysses_sequence_parallel_size"] = cluster.sequence_parallel
    if cluster.platform != "cuda":
        try:
            platform = importlib.import_module(cluster.platform)
        except ModuleNotFoundError as error:
            accepted = "cuda, or a module that Python finds (PYTHONPATH)"
            raise InvalidInput("cluster", "platform", f"is {cluster.platform!r}", accepted) from error
        environment |= platform.environment(places.repository)
        overrides |= platform.overrides(cluster.devices)
    if checkpoints_at:
        environment[CHECKPOINTS_VARIABLE] = ",".join(map(str, checkpoints_at))
    overrides |= {f"+ray_kwargs.ray_init.runtime_env.env_vars.{key}": value for key, value in environment.items()}
    decided = {key.lstrip("+") for key in overrides}
    given: dict[str, Value] = {**(run.overrides or {}), **cluster.overrides}
    for key in given:
        option = key.lstrip("+").replace("-", "_")  # vLLM takes its own options in either spelling
        is_kernel = option == "actor_rollout_ref.model.override_config.attn_implementation"
        if any(f"{option}.".startswith(f"{ours}.") or ours.startswith(f"{option}.") for ours in decided):
            found = "is set by the project"
            accepted = "an option that the project does not set itself (`rlvr-bench verl render` prints those)"
        elif _OF_ENGINES.fullmatch(option) or (option.startswith(_OF_THE_STUDY) and not is_kernel):
            found = "is what the study decides"
            accepted = "a setting of the study, as training.max_new_tokens or a model's prompt and chat_template_kwargs"
        elif option.startswith(_OF_THE_METHOD):
            found, accepted = "is what the method decides", "a component of the method (docs/methods/README.md)"
        else:
            continue
        raise InvalidInput("cluster", f"overrides.{key}", found, accepted)
    return Launch(COMMAND, {**overrides, **given}, environment)


def hydra_value(value: Value) -> str:
    """A value in Hydra's override grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        plain = _PLAIN_WORD.fullmatch(value) and value not in ("null", "true", "false")
        return value if plain else json.dumps(value, ensure_ascii=False)  # a quoted string takes any text
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(entry)}" for key, entry in value.items()) + "}"
    return "[" + ",".join(hydra_value(entry) for entry in value) + "]"


def _overrides(run: VerlRun, cluster: Cluster, method: Method, places: Places) -> dict[str, Value]:
    training, lora = run.training, run.training.lora
    of_lora: dict[str, Value] = {}
    if lora is not None:
        targets = lora.target_modules
        of_lora = {
            "actor_rollout_ref.model.lora_alpha": lora.alpha,
            "actor_rollout_ref.model.target_modules": targets if isinstance(targets, str) else list(targets),
            "actor_rollout_ref.model.lora.merge": True,  # vLLM is sent the sums, as weights of an ordinary model
            "+actor_rollout_ref.actor.checkpoint.save_lora_only": True,
        }
    actor, rollout, model = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
    return {
        "data.train_files": str(places.prompts),
        # verl reads a validation set even if it never validates: evaluation is a stage of its own here.
        "data.val_files": str(places.prompts),
        "data.val_max_samples": 1,
        "data.train_batch_size": training.prompts_per_step,
        "data.gen_batch_size": 1,  # so that any number of prompts can replace those that failed
        "data.max_prompt_length": training.max_prompt_tokens,
        "data.max_response_length": training.max_new_tokens,
        "data.filter_overlong_prompts": False,  # they are not in the file: see prompts.py
        "data.truncation": "error",
        "data.shuffle": True,
        "data.seed": run.seed,
        "data.dataloader_num_workers": 0,
        "data.trust_remote_code": False,
        "algorithm.adv_estimator": "grpo",  # what verl makes of it gives way to the method's: see trainer.py
        "algorithm.use_kl_in_reward": method.kl is not None,
        "reward.reward_manager.name": REWARD_MANAGER,
        "algorithm.filter_groups.enable": False,  # a method's selection is in the sampler
        "trainer.v1.trainer_mode": "sync",
        "trainer.v1.sampler.custom_sampler.path": "pkg://rlvr.engines.verl.replay_buffer",
        "trainer.v1.sampler.custom_sampler.name": "MethodReplayBuffer",
        f"{model}.path": str(places.study / run.base / "checkpoint"),
        f"{model}.trust_remote_code": False,
        f"{model}.external_lib": PLUGIN,
        f"{model}.enable_gradient_checkpointing": True,
        f"{model}.use_remove_padding": True,
        **({f"{model}.custom_chat_template": PLAIN_TEXT} if run.prompt_form == "base" else {}),
        **({"++data.apply_chat_template_kwargs": run.chat_template_kwargs} if run.chat_template_kwargs else {}),
        f"{actor}.strategy": "fsdp2",
        # The engine has the method's loss in place of verl's: see loss.py.
        f"{actor}.use_kl_loss": False,
        f"{actor}.entropy_coeff": 0,
        f"{actor}.calculate_entropy": method.entropy_bonus is not None,
        f"{actor}.ppo_mini_batch_size": training.prompts_per_step // training.updates_per_step,
        f"{actor}.ppo_epochs": 1,
        f"{actor}.shuffle": False,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": cluster.tokens_per_device,
        f"{actor}.ulysses_sequence_parallel_size": cluster.sequence_parallel,
        f"{actor}.use_torch_compile": True,
        f"{actor}.optim.lr": training.learning_rate,
        f"{actor}.optim.lr_warmup_steps": 0,  # the engine sets the rate of every update
        f"{actor}.optim.lr_scheduler_type": "constant",
        f"{actor}.optim.weight_decay": training.weight_decay,
        f"{actor}.optim.betas": [training.adam_beta1, training.adam_beta2],
        f"{actor}.optim.override_optimizer_config": {"eps": training.adam_epsilon},
        f"{actor}.grad_clip": training.gradient_clip,
        f"{actor}.optim.clip_grad": training.gradient_clip,
        **_precision(f"{actor}.fsdp_config", run),
        f"{actor}.fsdp_config.use_torch_compile": True,
        # True, as in verl's dataclass, would keep the whole model's gradients in float32 on every device.
        f"{actor}.fsdp_config.use_no_sync_for_gradient_accumulation": False,
        f"{actor}.fsdp_config.param_offload": cluster.offload,
        f"{actor}.fsdp_config.optimizer_offload": cluster.offload,
        f"{actor}.fsdp_config.seed": run.seed,
        f"{actor}.checkpoint.save_contents": ["model", "optimizer", "extra"],
        f"{rollout}.name": "vllm",
        f"{rollout}.n": training.samples_per_prompt,
        f"{rollout}.temperature": training.temperature,
        f"{rollout}.top_p": training.top_p,
        f"{rollout}.top_k": -1,
        f"{rollout}.seed": run.seed,
        f"{rollout}.dtype": run.dtype,
        f"{rollout}.max_model_len": training.max_prompt_tokens + training.max_new_tokens,
        f"{rollout}.tensor_model_parallel_size": cluster.rollout_tensor_parallel,
        f"{rollout}.gpu_memory_utilization": cluster.gpu_memory_utilization,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.log_prob_use_dynamic_bsz": True,
        f"{rollout}.log_prob_max_token_len_per_gpu": cluster.tokens_per_device,
        "reward.num_workers": cluster.grading_workers,
        "trainer.project_name": "rlvr",
        "trainer.experiment_name": run.run,
        "trainer.logger": ["console"],
        "trainer.nnodes": cluster.nodes,
        "trainer.n_gpus_per_node": cluster.gpus_per_node,
        "trainer.device": "cuda",
        "trainer.total_training_steps": training.steps,
        "trainer.total_epochs": _NO_LIMIT_ON_EPOCHS,
        "trainer.save_freq": cluster.checkpoint_interval,
        "trainer.checkpoint_callback_class": "rlvr.engines.verl.plugin.RecordShards",
        "trainer.max_actor_ckpt_to_keep": None,  # RecordShards removes old ones
        "trainer.default_local_dir": str(places.state),
        "trainer.resume_mode": "auto",
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        f"{model}.lora_rank": lora.rank if lora else 0,
        f"{model}.lora_adapter_path": None,
        **of_lora,
    }


def _precision(engine: str, run: VerlRun) -> dict[str, Value]:
    """The options of a worker's ``engine``: weights in float32, passes in the run's type."""
    computed = {"bfloat16": "bf16", "float32": "fp32"}[run.dtype]
    return {
        f"{engine}.model_dtype": "fp32",
        f"+{engine}.mixed_precision": {"param_dtype": computed, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    }
