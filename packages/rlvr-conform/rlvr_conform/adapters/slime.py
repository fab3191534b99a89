"""slime: its policy loss function, with given log-probabilities and the context parallelism of one device."""

from types import SimpleNamespace

PACKAGE = "slime"
TRAINER = "slime"
ESTIMATORS = {"gspo": "gspo", "cispo": "cispo"}
PPO = ("grpo", "dapo", "dual_clip", "grpo_kl", "grpo_kl_unbiased", "grpo_tis")
NAMES = {"epsilon_low": "eps_clip", "epsilon_high": "eps_clip_high", "dual_clip": "eps_clip_c"}
NAMES |= {"kl": "kl_loss_coef", "cap": "tis_clip"}
SWITCHED_OFF = ("use_rollout_logprobs", "use_opsm", "get_mismatch_metrics", "entropy_coef", "use_kl_loss", "use_tis")


def options(case):
    """Spell a case in slime's options."""
    if case["loss"] not in (*PPO, *ESTIMATORS) or not case["aggregation"].endswith("mean"):
        raise NotImplementedError
    known = {NAMES[key]: value for key, value in case.items() if key in NAMES}
    known |= {"use_tis": True} if "cap" in case else {}
    if "kl" in case:
        known |= {"use_kl_loss": True, "kl_loss_type": "k3", "use_unbiased_kl": case["estimator"] == "unbiased_k3"}
    by_token = {"calculate_per_token_loss": case["aggregation"] == "token-mean"}
    return {"advantage_estimator": ESTIMATORS.get(case["loss"], "grpo"), **by_token, **known}


def loss(part, options):
    """Compute the loss of a micro-batch, divided as Megatron divides it."""
    import torch
    from slime.backends.megatron_utils import cp_utils
    from slime.backends.megatron_utils import loss as module

    cp_utils.mpu = module.mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: 1, get_context_parallel_group=lambda: None
    )
    lengths = part.mask.sum(dim=1).tolist()

    def rows(values):
        return [row[:length] for row, length in zip(values, lengths, strict=True)]

    of_model = {"log_probs": rows(part.log_probs), "entropy": rows(torch.zeros_like(part.log_probs))}
    module.get_log_probs_and_entropy = lambda *_, **__: (None, of_model)
    module.get_rollout_top_p_logprob_kwargs = lambda *_: {}
    off = dict.fromkeys((*SWITCHED_OFF, "custom_tis_function_path", "eps_clip_c", "tis_clip_low"), 0)
    args = {**off, "eps_clip": 0.2, "eps_clip_c": None, "custom_tis_function_path": None, **options}
    args.setdefault("eps_clip_high", args["eps_clip"])
    masks = rows(part.mask.double())
    batch = {"advantages": rows(part.advantages), "log_probs": rows(part.old_log_probs), "loss_masks": masks}
    batch |= {"rollout_log_probs": rows(part.sampler_log_probs), "ref_log_probs": rows(part.reference_log_probs)}
    batch |= {"response_lengths": lengths, "total_lengths": lengths, "unconcat_tokens": None}
    batch["rollout_mask_sums"] = [mask.sum() for mask in masks]
    by_token = args["calculate_per_token_loss"]
    reduced = cp_utils.get_sum_of_sample_mean(lengths, lengths, masks, batch["rollout_mask_sums"], by_token)
    value, _ = module.policy_loss_function(SimpleNamespace(**args), batch, None, reduced)
    return value * part.whole.ranks / (part.whole.tokens if by_token else part.whole.rows)
