"""The rendered launch: what a run's settings become among verl's overrides, without verl."""

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from evals.core.errors import InvalidInput, UserError
from evals.core.run_spec import VerlRun
from rlvr.engines.verl.checks import check
from rlvr.engines.verl.launch import Places, hydra_value, launch
from rlvr.study.catalogue import load_catalogue
from tests.commands import ended, rlvr_bench
from tests.unit.verl.conftest import CLUSTER, TRAINING, make_cluster, make_run, run_content

main = rlvr_bench("verl")

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def test_the_settings_of_the_run_are_verl_s(places: Places) -> None:
    overrides = launch(make_run(warmup_updates=40, adam_beta2=0.95), make_cluster(), places).overrides
    expected = {
        "data.train_batch_size": 128,
        f"{ACTOR}.ppo_mini_batch_size": 32,
        f"{ROLLOUT}.n": 16,
        "data.max_prompt_length": 2048,
        "data.max_response_length": 20480,
        f"{ROLLOUT}.max_model_len": 22528,
        f"{ACTOR}.optim.lr": 1e-6,
        f"{ACTOR}.optim.lr_warmup_steps": 0,  # the engine sets the rate of every update
        f"{ACTOR}.optim.weight_decay": 0.1,
        f"{ACTOR}.optim.betas": [0.9, 0.95],
        f"{ACTOR}.optim.override_optimizer_config": {"eps": 1e-8},  # verl has no key for it
        "trainer.total_training_steps": 220,
        "trainer.nnodes": 2,
        "trainer.n_gpus_per_node": 8,
        f"{ACTOR}.ulysses_sequence_parallel_size": 2,
        f"{ROLLOUT}.tensor_model_parallel_size": 4,
        "actor_rollout_ref.model.path": str(places.study / "results/base/qwen3_8b/checkpoint"),
    }
    assert {key: overrides[key] for key in expected} == expected
    assert overrides["trainer.save_freq"] == 4  # verl's default, -1, saves nothing to continue from
    assert overrides["actor_rollout_ref.model.trust_remote_code"] is False
    assert overrides[f"{ACTOR}.fsdp_config.use_no_sync_for_gradient_accumulation"] is False
    assert overrides["data.gen_batch_size"] == 1  # any number of prompts can replace those that failed


def test_adapters_are_trained_and_their_sums_sampled(places: Places) -> None:
    lora = {"rank": 16, "alpha": 32, "target_modules": ["q_proj", "v_proj"]}
    without, found = (launch(make_run(**more), make_cluster(), places) for more in ({}, {"lora": lora}))
    added = {key: value for key, value in found.overrides.items() if key not in without.overrides}
    model = "actor_rollout_ref.model"
    assert (without.overrides[f"{model}.lora_rank"], found.overrides[f"{model}.lora_rank"]) == (0, 16)
    assert added == {
        f"{model}.lora_alpha": 32,
        f"{model}.target_modules": ["q_proj", "v_proj"],
        f"{model}.lora.merge": True,
        f"+{ACTOR}.checkpoint.save_lora_only": True,
    }
    assert f"{model}.target_modules=[q_proj,v_proj]" in found.words


@pytest.mark.parametrize("name", sorted(load_catalogue()))
def test_every_method_of_the_catalogue_has_the_workers_that_it_needs(name: str, places: Places) -> None:
    run = make_run(name)
    overrides = launch(run, make_cluster(), places).overrides
    assert overrides["trainer.v1.sampler.custom_sampler.name"] == "MethodReplayBuffer"
    assert overrides["algorithm.use_kl_in_reward"] == (run.method.get("kl") is not None)
    assert overrides[f"{ACTOR}.calculate_entropy"] == (run.method.get("entropy_bonus") is not None)


def test_a_reference_worker_computes_as_the_actor_does_and_verl_adds_nothing_of_it(places: Places) -> None:
    for name in ("grpo", "grpo_kl_in_reward"):
        overrides = launch(make_run(name), make_cluster(), places).overrides
        assert overrides["algorithm.kl_ctrl.kl_coef"] == 0 and overrides[f"{ACTOR}.use_kl_loss"] is False
        of_ref = {key: value for key, value in overrides.items() if "actor_rollout_ref.ref." in key}
        assert of_ref == {
            key: overrides[key.replace(".ref.", ".actor.").replace("fsdp_config.ulysses", "ulysses")] for key in of_ref
        }
        assert len(of_ref) == 3
    assert not any("_ref.ref." in key for key in launch(make_run("dapo"), make_cluster(), places).overrides)


def test_workers_get_what_the_driver_gets(places: Places) -> None:
    found = launch(make_run(), make_cluster(), places)
    prefix = "+ray_kwargs.ray_init.runtime_env.env_vars."
    of_workers = {key.removeprefix(prefix): value for key, value in found.overrides.items() if key.startswith(prefix)}
    # All of it: what logs runs in a Ray worker, which has nothing of the driver's where Ray was started by others.
    assert of_workers == found.environment
    assert of_workers["RLVR_RUN"] == str(places.run / "run.json")


def test_a_gpu_machine_gets_nothing_that_is_for_cpus(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "engines")
    on_gpus = launch(make_run(), make_cluster(), places)
    here = replace(places, repository=Path(__file__).parents[3])
    on_cpus = launch(make_run(), make_cluster(platform="cpu_launch", sequence_parallel=1), here)
    added = set(on_cpus.overrides) - set(on_gpus.overrides)
    assert "+ray_kwargs.ray_init.num_gpus" in added and set(on_gpus.overrides) < set(on_cpus.overrides)
    assert (on_gpus.overrides["trainer.device"], on_cpus.overrides["trainer.device"]) == ("cuda", "cpu")
    assert on_cpus.overrides["+ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM"] == "rlvr_cpu"
    assert "VERL_PLATFORM" not in on_gpus.environment
    with pytest.raises(InvalidInput, match=r"platform: is 'tpu'; accepted: cuda, or a module that Python finds"):
        launch(make_run(), make_cluster(platform="tpu"), here)


def test_any_option_of_verl_can_be_handed_on_but_none_that_the_project_sets(places: Places) -> None:
    run = make_run().model_copy(update={"overrides": {f"{ROLLOUT}.scheduling_policy": "priority"}})
    words = launch(run, make_cluster(overrides={"+ray_kwargs.ray_init.include_dashboard": False}), places).words
    assert f"{ROLLOUT}.scheduling_policy=priority" in words and "+ray_kwargs.ray_init.include_dashboard=false" in words
    own = (f"{ROLLOUT}.n", f"+{ACTOR}.optim.lr", "trainer.v1.trainer_mode", "actor_rollout_ref.model.lora_rank")
    own += (f"{ACTOR}.optim", f"{ROLLOUT}.n.x")
    for key in own:
        with pytest.raises(InvalidInput, match="is set by the project") as error:
            launch(make_run(), make_cluster(overrides={key: 1}), places)
        assert error.value.key == f"overrides.{key}"


@pytest.mark.parametrize(
    "key",
    [
        *(f"{ROLLOUT}.{name}" for name in ("full_determinism", "repetition_penalty", "ignore_eos", "quantization")),
        *(f"{ROLLOUT}.engine_kwargs{name}" for name in ("", ".vllm", ".vllm.seed", ".vllm.override_generation_config")),
        *(f"{ROLLOUT}.{name}" for name in ("custom.server", "agent.custom_async_server.path", "over_sample_rate")),
        *("actor_rollout_ref.model.override_config.rope_theta", "+actor_rollout_ref.model.override_config"),
        *(f"{ROLLOUT}.engine_kwargs.vllm.{name}" for name in ("generation-config", "dtype", "max_model_len")),
        f"{ROLLOUT}.engine_kwargs.vllm.logprobs_mode",
        *("actor_rollout_ref.model.lora.rank", "actor_rollout_ref.model.exclude_modules", f"{ROLLOUT}.logprobs_mode"),
        *("actor_rollout_ref.ref.fsdp_config.qat.enable", f"{ACTOR}.fsdp_config.qat.enable"),
        *("custom_reward_function.path", "reward_model.enable", "reward.custom_reward_function.path"),
        *("skip.rollout.enable", "distillation.enabled", "trainer.use_v1", "data.shuffle_seed"),
    ],
)
def test_what_changes_what_is_drawn_or_graded_is_refused(key: str, places: Places) -> None:
    with pytest.raises(InvalidInput, match=r"is what the study decides|is set by the project") as error:
        launch(make_run(), make_cluster(overrides={key: 1}), places)
    assert error.value.key == f"overrides.{key}"


@pytest.mark.parametrize(
    "key",
    [f"{ROLLOUT}.engine_kwargs.vllm.attention_backend", "+actor_rollout_ref.model.override_config.attn_implementation"],
)
def test_how_it_is_drawn_can_be_said(key: str, places: Places) -> None:
    assert key in launch(make_run(), make_cluster(overrides={key: "x"}), places).overrides


def test_options_of_verl_s_own_losses_are_refused(places: Places) -> None:
    """Nothing reads them: the method is what the study says."""
    of_losses = (f"{ACTOR}.{name}" for name in ("policy_loss.loss_mode", "loss_agg_mode", "clip_ratio_high"))
    for key in (*of_losses, "+algorithm.rollout_correction.rollout_is", "algorithm.gamma"):
        with pytest.raises(InvalidInput, match="is what the method decides; accepted: a component") as error:
            launch(make_run(), make_cluster(overrides={key: 1}), places)
        assert error.value.key == f"overrides.{key}"


def test_what_a_template_is_told_is_the_studys_and_no_override(places: Places) -> None:
    told = {"enable_thinking": False}
    run = make_run().model_copy(update={"prompt_form": "chat", "chat_template_kwargs": told})
    words = launch(run, make_cluster(), places).words
    assert "++data.apply_chat_template_kwargs={enable_thinking:false}" in words
    model = "actor_rollout_ref.model"
    for key in (
        *("+data.apply_chat_template_kwargs", "++data.apply_chat_template_kwargs.enable_thinking", "data.prompt_key"),
        *(f"{model}.custom_chat_template", f"{model}.tokenizer_path", f"{ROLLOUT}.response_length"),
        *(f"{ACTOR}.optim.min_lr_ratio", "reward.custom_reward_function.path", "trainer.critic_warmup"),
    ):
        chat = make_run().model_copy(update={"prompt_form": "chat", "overrides": {key: "x"}})
        with pytest.raises(InvalidInput, match=r"is what the study decides.*chat_template_kwargs"):
            launch(chat, make_cluster(), places)


def test_a_chat_model_keeps_its_template(places: Places) -> None:
    key = "actor_rollout_ref.model.custom_chat_template"
    run = make_run()
    assert key in launch(run, make_cluster(), places).overrides
    assert key not in launch(run.model_copy(update={"prompt_form": "chat"}), make_cluster(), places).overrides


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e-6, "1e-06"),
        ("/a/b-c.d", "/a/b-c.d"),
        ("null", '"null"'),
        ("1", '"1"'),
        ("a, b", '"a, b"'),
        (["model", "extra"], "[model,extra]"),
        ({"a": "x", "b": "1"}, '{a:x,b:"1"}'),
    ],
)
def test_values_stand_in_hydra_s_grammar(value: object, text: str) -> None:
    assert hydra_value(value) == text  # type: ignore[arg-type]


def test_the_command_prints_a_script_for_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(run_content()), encoding="utf-8")
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER), encoding="utf-8")
    assert main(["render", "run.json"]) == 0
    script = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    words = shlex.split(script)
    assert words[words.index("python") : words.index("python") + 3] == ["python", "-m", "verl.trainer.main_ppo"]
    assert "data.shuffle=true" in words
    # The variables are the command's alone: a shell that kept RLVR_RUN would pass it to all that it starts later,
    # which `train` would take for what an earlier attempt left behind, and end.
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "$RLVR_RUN"\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    shell = ended(["bash"], input=f'{script}echo "later:$RLVR_RUN"\n', env=environment)
    assert shell.stdout.splitlines() == [str(tmp_path / "run.json"), "later:"]


@pytest.mark.parametrize(
    ("change", "key", "accepted"),
    [
        ({"engine": "local"}, "engine", "verl"),
        ({"dtypes": 1}, "", "dtype"),
        ({"training": {"steps": 1}}, "training", ""),
        ({"training": {**TRAINING, "steps": "many"}}, "training.steps", "a whole number"),
        ({"training": {**TRAINING, "steps": True}}, "training.steps", "a whole number"),
        ({"training": {**TRAINING, "temperature": None}}, "training.temperature", "a number"),
        ({"training": {**TRAINING, "updates_per_step": 0}}, "training.updates_per_step", "at least 1"),
        ({"prompt": "Answer:"}, "prompt", ""),
        ({"seed": 1.5}, "seed", "a whole number"),
    ],
)
def test_a_run_that_is_none_names_the_key(change: dict[str, object], key: str, accepted: str) -> None:
    with pytest.raises(InvalidInput) as error:
        VerlRun.parse({**run_content(), **change}, "run.json")
    assert error.value.key == key and accepted in error.value.accepted


def test_a_method_that_is_none_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**run_content(), "method": {}}), encoding="utf-8")
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER), encoding="utf-8")
    assert main(["render", str(tmp_path / "run.json")]) == 2
    error = capsys.readouterr().err
    assert "method delta: lacks advantage" in error and error.count("\n") == 1


# Misfits that verl would find in a remote worker, hours later or never.


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_config(tmp_path, max_position_embeddings=32768)
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def write_config(directory: Path, **content: Any) -> None:
    (directory / "config.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("name", sorted(load_catalogue()))
def test_every_method_passes(name: str, checkpoint: Path) -> None:
    if name == "dapo_sign_separated":
        with pytest.raises(
            InvalidInput, match=r"makes mini-batches of unequal sizes; accepted: with engine local alone"
        ):
            check(make_run(name), make_cluster(), checkpoint)
        return
    check(make_run(name), make_cluster(tokens_per_device=22528), checkpoint)


def test_verl_gives_no_shaping_the_responses() -> None:
    run = make_run("dapo")
    votes = run.model_copy(update={"method": {**run.method, "reward_shaping": {"name": "majority_vote"}}})
    with pytest.raises(InvalidInput, match="reads responses; accepted: with engine local alone"):
        check(votes, make_cluster(), None)


@pytest.mark.parametrize(
    ("extended", "key", "message"),
    [("dapo_dynamic_sampling", "batching.selection", "is there"), ("delta", "token_weights", "are of hidden states")],
)
def test_nothing_needs_a_penalised_reward_before_verl_has_it(extended: str, key: str, message: str) -> None:
    """Its workers score the reference policy after the selection, and after the token weights are computed."""
    term = {"name": "reward_term", "coefficient": 0.001, "estimator": "k1"}
    run = make_run(extended)
    with_term = run.model_copy(update={"method": {**run.method, "kl": term}})
    with pytest.raises(InvalidInput, match=f"{message}; accepted: none beside kl: reward_term") as error:
        check(with_term, make_cluster(), None)
    assert error.value.key == key
    in_loss = {**term, "name": "loss_term"}
    check(run.model_copy(update={"method": {**run.method, "kl": in_loss}}), make_cluster(), None)


@pytest.mark.parametrize(
    ("training", "cluster", "key", "accepted"),
    [
        ({"updates_per_step": 3}, {}, "training.updates_per_step", "a divisor of prompts_per_step"),
        ({"prompts_per_step": 4, "samples_per_prompt": 3}, {}, "training", "multiple of the 8 data-parallel ranks"),
        ({"warmup_updates": -4}, {}, "training.warmup_updates", "at least 0"),
        ({"temperature": 0.0}, {}, "training.temperature", "above 0"),
        ({"learning_rate": float("nan")}, {}, "training.learning_rate", "a finite number"),
        ({"max_new_tokens": 30721}, {"tokens_per_device": 20000}, "training", "at most 32768, the context of"),
        ({}, {"gpus_per_node": 3}, "rollout_tensor_parallel", "a divisor of 6 devices"),
        ({}, {"gpus_per_node": 6, "nodes": 2}, "rollout_tensor_parallel", "a multiple of gpus_per_node, 6"),
        ({}, {"nodes": 0}, "nodes", "at least 1"),
        ({}, {"checkpoint_interval": -1}, "checkpoint_interval", "at least 1"),
        ({}, {"checkpoints_kept": 1}, "checkpoints_kept", "at least 2"),
        ({}, {"tokens_per_device": 8192}, "tokens_per_device", "at least 11264"),
        ({}, {"gpu_memory_utilization": 7.0}, "gpu_memory_utilization", "at most 1"),
        ({}, {"gpu_memory_utilization": 0.0}, "gpu_memory_utilization", "above 0"),
        ({}, {"grading_workers": 0}, "grading_workers", "at least 1"),
    ],
)
def test_a_misfit_ends_in_one_line(
    training: dict[str, Any], cluster: dict[str, Any], key: str, accepted: str, checkpoint: Path
) -> None:
    with pytest.raises(InvalidInput) as error:
        check(make_run("delta", **training), make_cluster(**cluster), checkpoint)
    assert error.value.key == key and accepted in str(error.value) and "\n" not in str(error.value)


def test_adapters_are_asked_for_by_names_of_the_model_s_weights(checkpoint: Path) -> None:
    names = ("self_attn.q_proj", "mlp.up_proj", "input_layernorm")
    weights = {f"model.layers.0.{name}.weight": np.zeros((2, 2)) for name in names}
    save_file({**weights, "lm_head.weight": np.zeros((2, 2))}, checkpoint / "model.safetensors")
    cluster, lora = make_cluster(tokens_per_device=22528), {"rank": 4, "alpha": 8}
    check(make_run(lora=lora), cluster, checkpoint)
    check(make_run(lora={**lora, "target_modules": ["q_proj", "up_proj"]}), cluster, checkpoint)
    for name in ("lm_head", "kv_proj"):
        with pytest.raises(InvalidInput, match="accepted: all-linear, or some of q_proj, up_proj") as error:
            check(make_run(lora={**lora, "target_modules": ["q_proj", name]}), cluster, checkpoint)
        assert error.value.key == "training.lora.target_modules" and repr(name) in str(error.value)


def test_a_model_that_is_none_or_brings_code_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such directory"):
        check(make_run(), make_cluster(), tmp_path / "nothing")
    write_config(checkpoint, auto_map={"AutoConfig": "x.Y"})
    with pytest.raises(UserError, match="brings code of its own"):
        check(make_run(), make_cluster(), checkpoint)
    write_config(checkpoint)
    # verl's reward workers load the tokenizer with code of others allowed; it may even lie in another repository.
    tokenizer = checkpoint / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({"auto_map": {"AutoTokenizer": ["someone/else--code.Tokenizer", None]}}))
    with pytest.raises(UserError, match=r"tokenizer_config\.json: brings code of its own"):
        check(make_run(), make_cluster(), checkpoint)
    tokenizer.unlink()
    (checkpoint / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config\.json: is no JSON object"):
        check(make_run(), make_cluster(), checkpoint)
    write_config(checkpoint)
    (checkpoint / "tokenization.py").write_text("")
    with pytest.raises(UserError, match="brings code of its own"):
        check(make_run(), make_cluster(), checkpoint)
    (checkpoint / "tokenization.py").unlink()
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds no \.safetensors file"):
        check(make_run(), make_cluster(), checkpoint)
