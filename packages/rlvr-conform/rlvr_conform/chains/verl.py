"""verl: its TrainingWorker trains a two-layer model for two updates, on FSDP2 over gloo; options as in the adapter."""

import os
from functools import partial
from types import SimpleNamespace

import torch

VOCABULARY, PROMPT = 12, 2


def use_cpu():
    """Give verl a platform for the CPU, as a plug-in does; it has none of its own."""
    import torch.distributed as distributed
    from verl.plugin.platform import platform_manager
    from verl.plugin.platform.platform_base import PlatformBase

    if distributed.is_initialized():
        return
    module = SimpleNamespace(**{name: lambda *_, **__: None for name in ("empty_cache", "synchronize", "set_device")})
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, lambda *_: 0)
    module.is_available, module.device_count, module.current_device = lambda: True, lambda: 1, lambda: "cpu"
    module.manual_seed, module.manual_seed_all = torch.manual_seed, lambda _: None
    module.get_rng_state, module.set_rng_state = torch.get_rng_state, torch.set_rng_state
    module.mem_get_info, module.get_device_name = lambda *_: (1 << 34, 1 << 34), lambda *_: "cpu"
    methods = {name: lambda *_, **__: None for name in PlatformBase.__abstractmethods__}
    methods |= {"device_name": "cpu", "vendor_name": "cpu", "device_module": module, "rollout_env_vars": lambda _: {}}
    methods |= {"is_available": lambda _: True, "device_count": lambda _: 1, "current_device": lambda _: "cpu"}
    methods |= {
        "communication_backend_name": lambda _: "gloo",
        "visible_devices_envvar": lambda _: "CUDA_VISIBLE_DEVICES",
    }
    methods |= {
        "ray_resource_name": lambda _: "GPU",
        "ray_noset_envvars": lambda _: [],
        "is_ipc_supported": lambda _: False,
    }
    platform_manager.set_platform(type("CPU", (PlatformBase,), methods)())
    os.environ["VERL_ENGINE_DEVICE"] = "cuda"
    distributed.init_process_group("gloo")


class Chain:
    """A short training, with what every update was made of."""

    def __init__(self, options, ranks, micro_batches, sampled_micro_batches, longest):
        if sampled_micro_batches < micro_batches:
            raise NotImplementedError("an update is of one rollout batch")
        use_cpu()
        from transformers import LlamaForCausalLM
        from verl.utils import tensordict_utils
        from verl.workers.config import (
            FSDPActorConfig,
            FSDPEngineConfig,
            FSDPOptimizerConfig,
            HFModelConfig,
            PolicyLossConfig,
            TrainingWorkerConfig,
        )
        from verl.workers.engine_workers import TrainingWorker
        from verl.workers.utils.losses import ppo_loss

        of_loss = {key.partition(".")[2]: value for key, value in options.items() if key.startswith("policy_loss.")}
        of_actor = {key: value for key, value in options.items() if not key.startswith("policy_loss.")}
        of_actor |= {"policy_loss": PolicyLossConfig(**of_loss), "loss_scale_factor": longest}
        actor = FSDPActorConfig(strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=4, **of_actor)
        write_model("model")
        parts = {"path": "model", "override_config": {"attn_implementation": "sdpa"}, "use_remove_padding": False}
        parts = {
            "model_config": HFModelConfig(**parts),
            "optimizer_config": FSDPOptimizerConfig(lr=0.05, clip_grad=1e9),
        }
        precision = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
        engine = {"strategy": "fsdp2", "use_torch_compile": False, "mixed_precision": precision}
        engine |= {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 4}
        parts["engine_config"] = FSDPEngineConfig(**engine)
        self.worker = TrainingWorker(TrainingWorkerConfig(model_type="language_model", **parts))
        self.worker.reset()
        self.worker.set_loss_fn(partial(ppo_loss, config=actor))
        self.model = LlamaForCausalLM.from_pretrained("model").double()
        self.batch, data = self._drawn(4 * sampled_micro_batches, ranks, longest)
        engine, self.kept, rows = self.worker.engine, [], []
        train, step = engine.train_batch, engine.optimizer_step

        def keep_rows(data, loss_function):
            rows.append(data["row"].tolist())
            return train(data, loss_function)

        def keep_gradient():
            state = {name: whole(value).clone() for name, value in engine.module.state_dict().items()}
            gradient = torch.cat([whole(value.grad).flatten() for value in engine.module.parameters()])
            self.kept.append((state, gradient.double(), rows[-1]))
            return step()

        engine.train_batch, engine.optimizer_step = keep_rows, keep_gradient
        plain = {"temperature": 1.0, "mini_batch_size": 4 * micro_batches * ranks, "calculate_entropy": False}
        plain |= {"global_batch_size": 4 * micro_batches * ranks, "dataloader_kwargs": {"shuffle": False}}
        output = self.worker.train_mini_batch(tensordict_utils.get_tensordict(data, plain))
        losses = tensordict_utils.get(output, "metrics")["loss"]
        self.updates = [self._update(number, loss) for number, loss in enumerate(losses)]

    def _drawn(self, rows, ranks, longest):
        """Draw this rank's responses, whose policy before the update was near the one that is trained."""
        rank = int(os.environ["RANK"])
        chance = torch.Generator().manual_seed(rank)
        lengths = torch.randint(1, longest + 1, (rows,), generator=chance).tolist()
        ids = [torch.randint(2, VOCABULARY, (PROMPT + length,), generator=chance) for length in lengths]
        advantages = torch.randn(rows, generator=chance).tolist()
        batch = [{"ids": ids[i], "length": lengths[i], "advantage": advantages[i]} for i in range(rows)]
        for row in batch:
            with torch.no_grad():
                row["old"] = self._log_probs(row) + 0.15 * torch.randn(row["length"], generator=chance)
        ones = [torch.ones(length) for length in lengths]
        data = {
            "input_ids": ids,
            "prompts": [each[:PROMPT] for each in ids],
            "responses": [each[PROMPT:] for each in ids],
        }
        data |= {"position_ids": [torch.arange(len(each)) for each in ids], "response_mask": ones, "loss_mask": ones}
        data |= {"old_log_probs": [row["old"].float() for row in batch]}
        data |= {"advantages": [one * row["advantage"] for one, row in zip(ones, batch, strict=True)]}
        nested = {name: torch.nested.as_nested_tensor(value, layout=torch.jagged) for name, value in data.items()}
        return batch, {**nested, "row": torch.arange(rows)}

    def _log_probs(self, row):
        """Compute the log-probabilities of a response."""
        logits = self.model(input_ids=row["ids"][None]).logits[0, PROMPT - 1 : -1]
        return logits.log_softmax(-1).gather(1, row["ids"][PROMPT:, None])[:, 0]

    def _update(self, number, loss):
        """Describe an update: the logged loss, and [rows][T] of what its gradient depends on."""
        rows = [self.batch[i] for i in self.kept[number][2]]
        self.model.load_state_dict(self.kept[number][0])
        result = {"lengths": [row["length"] for row in rows], "new": [self._log_probs(row).tolist() for row in rows]}
        result |= {"old": [row["old"].float().tolist() for row in rows]}
        return {"loss": loss, **result, "advantage": [[row["advantage"]] * row["length"] for row in rows]}

    def gradients(self, number, slopes):
        """Return the gradient that verl accumulated, and the one that the slopes [rows][length] make."""
        state, gradient, rows = self.kept[number]
        self.model.load_state_dict(state)
        self.model.zero_grad()
        for i, slope in zip(rows, slopes, strict=True):
            (self._log_probs(self.batch[i]) * torch.tensor(slope, dtype=torch.float64)).sum().backward()
        return gradient, torch.cat([value.grad.flatten() for value in self.model.parameters()])


def whole(value):
    """A tensor without its parts on other ranks."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def write_model(folder):
    """Write a model of two layers and a tokenizer, the same every time."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **shape, **ends)).save_pretrained(folder)
    made = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="t0", eos_token="t1").save_pretrained(folder)
