"""OpenRLHF: PolicyLoss, with the counts of the global batch that its actor passes."""

PACKAGE = "openrlhf"
TRAINER = "openrlhf"
STAND_INS = ("openrlhf.models.actor", "openrlhf.models.model")
PPO = ("grpo", "dapo", "dual_clip", "gspo", "grpo_kl", "grpo_tis")


def options(case):
    """Spell a case in the options of the loss."""
    if case["loss"] not in PPO or not case["aggregation"].endswith("token-mean"):
        raise NotImplementedError
    known = {"clip_eps_low": case["epsilon_low"], "clip_eps_high": case["epsilon_high"]}
    known["policy_loss_type"] = "gspo" if case["loss"] == "gspo" else "ppo"
    known |= {"dual_clip": case["dual_clip"]} if "dual_clip" in case else {}
    known |= {"kl_estimator": case["estimator"], "init_kl_coef": case["kl"]} if "kl" in case else {}
    if "cap" in case:
        known |= {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.0, case["cap"]]}
    return {"token_level_loss": case["aggregation"] == "token-mean", **known}


def loss(part, options):
    """Compute the loss of a micro-batch."""
    from openrlhf.models.loss import PolicyLoss, aggregate_loss
    from openrlhf.models.utils import compute_approx_kl

    mask, whole = part.mask.double(), part.whole
    counts = {"dp_size": whole.ranks, "batch_num_tokens": whole.tokens, "global_batch_size": whole.rows}
    given = {key: value for key, value in options.items() if key not in ("kl_estimator", "init_kl_coef")}
    of_loss = PolicyLoss(**given)
    value = of_loss(part.log_probs, part.old_log_probs, part.advantages, mask, part.sampler_log_probs, **counts)[0]
    if "kl_estimator" in options:
        kl = compute_approx_kl(part.log_probs, part.reference_log_probs, options["kl_estimator"])
        value = value + options["init_kl_coef"] * aggregate_loss(kl, mask, options["token_level_loss"], **counts)
    return value
