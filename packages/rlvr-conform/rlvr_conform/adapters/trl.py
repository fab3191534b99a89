"""TRL: the loss of GRPOTrainer, without its model; options pass through GRPOConfig."""

from collections import defaultdict
from functools import cache
from inspect import signature
from types import SimpleNamespace

PACKAGE = INSTALL = "trl"
LOSSES = {"grpo": "grpo", "dapo": "dapo", "dr_grpo": "dr_grpo", "gspo": "grpo", "sapo": "sapo", "cispo": "cispo"}
LOSSES |= {"vespo": "vespo", "grpo_kl": "grpo", "grpo_kl_unbiased": "grpo", "dual_clip": "dapo"}
NAMES = {"epsilon_low": "epsilon", "epsilon_high": "epsilon_high", "kl": "beta", "dual_clip": "delta"}
for sign, short in (("positive", "pos"), ("negative", "neg")):
    NAMES |= {f"tau_{sign}": f"sapo_temperature_{short}"}
    NAMES |= {f"power_{sign}": f"vespo_k_{short}", f"decay_{sign}": f"vespo_lambda_{short}"}
MODES = {"grpo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
made = cache(lambda config, *options: config(**dict(options)))  # which takes long


def options(case):
    """Spell a case in the options of GRPOConfig; how token losses are aggregated follows from the loss."""
    kind = LOSSES.get(case["loss"])
    if kind is None or MODES.get(kind, "token-mean") != case["aggregation"]:
        raise NotImplementedError
    level = {"importance_sampling_level": "sequence"} if case["loss"] == "gspo" else {}
    level |= {"use_bias_correction_kl": True} if case.get("estimator") == "unbiased_k3" else {}
    return {"loss_type": kind, **level, **{NAMES[key]: value for key, value in case.items() if key in NAMES}}


def choices():
    """List the switches of GRPOConfig's own that may change a loss, and the levels of its ratio."""
    from trl import GRPOConfig

    switches = [name for name, kind in GRPOConfig.__annotations__.items() if kind in (bool, "bool")]
    return {**dict.fromkeys(switches, (False, True)), "importance_sampling_level": ("token", "sequence")}


def loss(part, options):
    """Compute the loss of a micro-batch as the trainer's own method, on a trainer that was not set up."""
    import torch
    from trl import GRPOConfig, GRPOTrainer

    if unknown := options.keys() - GRPOConfig.__dataclass_fields__.keys():
        raise NotImplementedError(f"GRPOConfig has no {', '.join(sorted(unknown))}")
    whole, steps = part.whole, part.whole.micro_batches
    fixed = {"output_dir": "unused", "use_cpu": True, "bf16": False, "report_to": "none", "num_generations": 4}
    fixed |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": steps}
    fixed["steps_per_generation"] = steps * whole.mini_batches
    args = made(GRPOConfig, *fixed.items(), *options.items())
    computed = signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    given = (part.log_probs, torch.zeros_like(part.log_probs), None)[: 3 if "compute_aux_loss" in computed else 2]

    class Bare(GRPOTrainer):
        def __init__(self):
            self.args, self._metrics = args, defaultdict(lambda: defaultdict(list))
            self.model, self.max_completion_length = SimpleNamespace(training=True), whole.longest
            self.current_gradient_accumulation_steps = steps
            self.epsilon_low, self.epsilon_high = args.epsilon, args.epsilon_high or args.epsilon
            self.accelerator = SimpleNamespace(num_processes=whole.ranks, gather=lambda x: x, reduce=lambda x, **_: x)
            self._get_per_token_logps_and_entropies = lambda *_, **__: given

        def __getattr__(self, name):  # as the trainer has them from its configuration
            return getattr(args, name, False)

    ids, tokens = part.mask.long(), torch.tensor(whole.tokens * whole.mini_batches)
    inputs = {"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": part.mask.double()}
    inputs |= {"advantages": part.advantages[:, 0], "old_per_token_logps": part.old_log_probs}
    inputs |= {"ref_per_token_logps": part.reference_log_probs, "num_items_in_batch": tokens}
    try:
        return Bare()._compute_loss(None, inputs)
    except ValueError as error:
        raise NotImplementedError(str(error)) if "Unknown loss type" in str(error) else error from None
