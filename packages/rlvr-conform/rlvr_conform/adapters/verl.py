"""verl: the registered policy losses, normalised by its worker's counts of the global batch."""

PACKAGE = "verl"
SAME = ("gspo", "sapo", "cispo", "kl_cov", "clip_cov", "dppo_tv", "dppo_kl", "dro")
OTHER = {"gspo_token": "gspo", "gmpo": "geo_mean", "reinforce": "gpg"}
LOSSES = {name: name for name in SAME} | OTHER
LOSSES |= dict.fromkeys(("grpo", "dapo", "dual_clip", "dr_grpo", "grpo_kl", "grpo_tis"), "vanilla")
LOW, HIGH, CAP = "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"
NAMES = {"epsilon_low": LOW, "epsilon_high": HIGH, "delta_low": LOW, "delta_high": HIGH}
NAMES |= {"dual_clip": CAP, "ratio_cap": CAP, "tau_positive": "tau_pos", "tau_negative": "tau_neg"}
NAMES |= {"kl": "kl_loss_coef", "estimator": "kl_loss_type", "cap": "rollout_is_threshold"}
OF_LOSS = {"top_fraction": "kl_cov_ratio", "kl_coefficient": "ppo_kl_coef", "clip_fraction": "clip_cov_ratio"}
OF_LOSS |= {"covariance_low": "clip_cov_lb", "covariance_high": "clip_cov_ub", "beta": "dro_beta"}
NAMES |= {ours: f"policy_loss.{theirs}" for ours, theirs in OF_LOSS.items()}


def options(case):
    """Spell a case in verl's options."""
    if case["loss"] not in LOSSES or case["aggregation"] == "prompt-mean":
        raise NotImplementedError
    known = {NAMES[key]: value for key, value in case.items() if key in NAMES}
    return {"policy_loss.loss_mode": LOSSES[case["loss"]], "loss_agg_mode": case["aggregation"], **known}


def choices():
    """List the switches of the actor's configuration and the modes of aggregation."""
    from verl.workers.config import ActorConfig, PolicyLossConfig

    configs = {"": ActorConfig, "policy_loss.": PolicyLossConfig}
    fields = [(prefix, field) for prefix, config in configs.items() for field in config.__dataclass_fields__.values()]
    return {prefix + field.name: (False, True) for prefix, field in fields if field.type in (bool, "bool")}


def loss(part, options):
    """Compute the loss of a micro-batch."""
    from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
    from verl.workers.config import ActorConfig, PolicyLossConfig

    of_policy = {key.partition(".")[2]: value for key, value in options.items() if key.startswith("policy_loss.")}
    settings = {key: value for key, value in options.items() if key in ActorConfig.__dataclass_fields__}
    whole, mask, mode, weights = part.whole, part.mask.long(), options["loss_agg_mode"], None
    counts = {"dp_size": whole.ranks, "batch_num_tokens": whole.tokens, "global_batch_size": whole.rows}
    counts["loss_scale_factor"] = whole.longest
    settings |= {"policy_loss": PolicyLossConfig(**of_policy), "global_batch_info": counts}
    config = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4, **settings)
    if cap := options.get("rollout_is_threshold"):
        ratios = part.old_log_probs - part.sampler_log_probs
        weights, _ = compute_rollout_correction_weights(ratios, mask, "token", cap)
    of_loss = get_policy_loss_fn(of_policy["loss_mode"])
    given = (part.old_log_probs, part.log_probs, part.advantages, mask, mode, config)
    value, _ = of_loss(*given, rollout_is_weights=weights)
    if "kl_loss_coef" in options:
        kl = kl_penalty(part.log_probs, part.reference_log_probs, options["kl_loss_type"])
        value = value + options["kl_loss_coef"] * agg_loss(kl, mask, mode, **counts)
    return value


def advantages(name, rewards, groups):
    """Compute advantages [B]."""
    import torch
    from verl.trainer.ppo import core_algos

    given = (rewards[:, None], torch.ones(len(rewards), 1), groups.numpy(), 1e-6)
    if name == "rloo":
        return core_algos.compute_rloo_outcome_advantage(*given)[0][:, 0]
    return core_algos.compute_grpo_outcome_advantage(*given, name == "grpo")[0][:, 0]
