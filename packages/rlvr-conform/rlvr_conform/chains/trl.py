"""TRL: GRPOTrainer trains a two-layer model for two updates; its batches, gradients and logged losses are kept."""

import copy

import torch


class Chain:
    """A short training, with what every update was made of."""

    def __init__(self, options, ranks, micro_batches, sampled_micro_batches, longest):
        from datasets import Dataset
        from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, set_seed
        from trl import GRPOConfig, GRPOTrainer

        set_seed(0)
        shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=12, **shape, **ends)).double()
        data = Dataset.from_list([{"prompt": f"{a} {b}"} for a in "abcd" for b in "efgh"])
        fixed = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": longest, "seed": 0}
        fixed |= {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "logging_steps": 1}
        fixed |= {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "optim": "sgd", "disable_tqdm": True}
        fixed |= {"gradient_accumulation_steps": micro_batches, "steps_per_generation": sampled_micro_batches}
        fixed |= {"max_steps": 2, "learning_rate": 0.5, "gradient_checkpointing": False}
        fixed |= {"ddp_backend": "gloo"} if ranks > 1 else {}
        parts, self.kept = [], []

        class Kept(GRPOTrainer):
            def _compute_loss(self, model, inputs):
                parts.append(inputs)
                return super()._compute_loss(model, inputs)

        def keep(*_, **__):
            gradient = torch.cat([value.grad.flatten() for value in self.model.parameters()])
            self.kept.append((copy.deepcopy(self.model.state_dict()), gradient, list(parts)))
            parts.clear()

        def reward(completions, **_):
            return [float("a" in text) for text in completions]

        hook = type("Hook", (TrainerCallback,), {"on_pre_optimizer_step": keep})()
        args = GRPOConfig("trained", **fixed, **options)
        trainer = Kept(self.model, reward, args, data, processing_class=tokenizer(), callbacks=[hook])
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        self.updates = [self._update(number, loss) for number, loss in enumerate(losses)]

    def _update(self, number, loss):
        """Describe an update: the logged loss, and [rows][T] of what its gradient depends on."""
        rows = {"lengths": [], "new": [], "old": [], "advantage": []}
        for part, values in zip(self.kept[number][2], self._log_probs(number), strict=True):
            old = part.get("old_per_token_logps")  # None where it is the present policy's
            rows["lengths"] += part["completion_mask"].sum(1).tolist()
            rows["new"] += values.tolist()
            rows["old"] += (values if old is None else old).tolist()
            rows["advantage"] += part["advantages"].view(-1, 1).expand_as(values).tolist()
        return {"loss": loss, **rows}

    def _log_probs(self, number):
        """Compute the log-probabilities of an update's micro-batches under the policy before it."""
        state, _, parts = self.kept[number]
        self.model.load_state_dict(state)
        results = []
        for part in parts:
            ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
            mask = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
            logits = self.model(input_ids=ids, attention_mask=mask).logits[:, part["prompt_ids"].shape[1] - 1 : -1]
            results.append(logits.log_softmax(-1).gather(2, part["completion_ids"][:, :, None])[:, :, 0])
        return results

    def gradients(self, number, slopes):
        """Return the gradient that the trainer accumulated, and the one that the slopes [rows][length] make."""
        self.model.zero_grad()
        rows = [row for values in self._log_probs(number) for row in values]
        pairs = zip(rows, slopes, strict=True)
        sum((row[: len(slope)] * torch.tensor(slope, dtype=row.dtype)).sum() for row, slope in pairs).backward()
        return self.kept[number][1], torch.cat([value.grad.flatten() for value in self.model.parameters()])


def tokenizer():
    """A tokenizer with ten words, made here."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<end>", *"abcdefghij"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")
