"""polgrad: its reference losses, for comparing the two projects' readings of the papers."""

PACKAGE = "polgrad"
PPO = ("grpo", "dapo", "dual_clip", "dr_grpo", "gspo", "gspo_token", "grpo_kl", "grpo_tis")
RATIOS = {"gspo": "sequence", "gspo_token": "sequence_token"}
SURROGATES = {"cispo": "cispo", "reinforce": "reinforce"}
MODES = {"seq-mean-token-sum-norm": "token_sum_norm"}


def options(case):
    """Spell a case in the fields of PolicyLossConfig; the tokens of the longest response are norm_len."""
    if case["loss"] not in (*PPO, *SURROGATES) or case["aggregation"] == "prompt-mean":
        raise NotImplementedError
    known = {"ratio": RATIOS.get(case["loss"], "token"), "surrogate": SURROGATES.get(case["loss"], "pg_clip")}
    known["aggregation"] = MODES.get(case["aggregation"], case["aggregation"].replace("-", "_"))
    if "epsilon_high" in case:
        names = {"epsilon_low": "eps_low", "epsilon_high": "eps_high", "dual_clip": "ratio_cap"}
        known |= {f"clip.{theirs}": case.get(ours) for ours, theirs in names.items()}
    known |= {"kl.kind": case["estimator"], "kl.coef": case["kl"]} if "kl" in case else {}
    return known | ({"is_correction.cap": case["cap"]} if "cap" in case else {})


def loss(part, options):
    """Compute the loss of a micro-batch, as its share of the mini-batch: polgrad has no count of the whole one."""
    import polgrad
    from polgrad.losses import ISCorrectionConfig

    def of(group):
        return {name.partition(".")[2]: value for name, value in options.items() if name.startswith(group)}

    clip, kl, cap = of("clip."), of("kl."), of("is_correction.")
    mode, whole = polgrad.Aggregation(options["aggregation"]), part.whole
    config = polgrad.PolicyLossConfig(
        ratio=polgrad.RatioKind(options["ratio"]),
        surrogate=polgrad.SurrogateKind(options["surrogate"]),
        clip=polgrad.ClipConfig(**clip) if clip else None,
        aggregation=mode,
        norm_len=whole.longest if options["aggregation"] == "token_sum_norm" else None,
        is_correction=ISCorrectionConfig(**cap) if cap else None,
        kl=polgrad.KLLossConfig(polgrad.KLEstimator(kl["kind"]), kl["coef"]) if kl else None,
    )
    streams = {"logprobs": part.log_probs, "old_logprobs": part.old_log_probs, "advantages": part.advantages}
    streams |= {"ref_logprobs": part.reference_log_probs, "rollout_logprobs": part.sampler_log_probs}
    value = polgrad.policy_loss(config, **streams, response_mask=part.mask).loss
    by_token = options["aggregation"] == "token_mean"
    share = part.mask.sum().double() / whole.tokens if by_token else len(part.mask) / whole.rows
    return value * share * whole.ranks


def advantages(name, rewards, groups):
    """Compute advantages [B]; a group whose rewards are all alike has none."""
    import polgrad

    if name == "rloo":
        return polgrad.rloo_advantages(rewards, groups)
    return polgrad.grpo_advantages(rewards, groups, polgrad.GroupNormConfig(scale="std" if name == "grpo" else "none"))
