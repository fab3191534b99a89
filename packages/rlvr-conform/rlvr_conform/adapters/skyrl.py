"""SkyRL: the registered policy losses, on advantages that carry the mini-batch's normaliser."""

from types import SimpleNamespace

PACKAGE = "skyrl"
TRAINER = "skyrl"
STAND_INS = ("skyrl.train.config", "skyrl.tinker")
PPO = ("grpo", "dapo", "dr_grpo", "grpo_tis")
LOSSES = {"dual_clip": "dual_clip", "gspo_token": "gspo", "gspo": "gspo", "sapo": "sapo", "cispo": "cispo"}
LOSSES |= {"clip_cov": "clip_cov", "kl_cov": "kl_cov", "dppo_tv": "dppo", "dppo_kl": "dppo"}
MODES = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean", "prompt-mean": "prompt_mean"}
MODES |= {"seq-mean-token-sum-norm": "seq_mean_token_sum_norm"}
NAMES = {"epsilon_low": "eps_clip_low", "epsilon_high": "eps_clip_high", "dual_clip": "clip_ratio_c"}
NAMES |= {"delta_low": "dppo.delta_low", "delta_high": "dppo.delta_high", "cap": "off.token_tis_ratio_clip_high"}
NAMES |= {"tau_positive": "sapo.tau_pos", "tau_negative": "sapo.tau_neg", "top_fraction": "kl_cov.kl_cov_frac"}
NAMES |= {"kl_coefficient": "kl_cov.ppo_kl_coef", "clip_fraction": "clip_cov.clip_ratio"}
NAMES |= {"covariance_low": "clip_cov.clip_cov_lb", "covariance_high": "clip_cov.clip_cov_ub"}
DEFAULTS = {"eps_clip_low": 0.2, "eps_clip_high": 0.2, "clip_ratio_c": 3.0, "cispo.cispo_eps_clip_low": 1.0}
DEFAULTS |= {"cispo.cispo_anchor": "old", "cispo.cispo_eps_clip_high": 4.0, "off.tis_ratio_type": None}
DEFAULTS |= dict.fromkeys(("off.sequence_mask_metric", "off.outlier_token_is_threshold_low"))
DEFAULTS |= dict.fromkeys(("off.token_mask_is_threshold_low", "off.outlier_token_is_threshold_high"))


def options(case):
    """Spell a case in SkyRL's options; off. stands for off_policy_correction."""
    if case["loss"] not in (*PPO, *LOSSES) or case["aggregation"] not in MODES:
        raise NotImplementedError
    known = {NAMES[key]: value for key, value in case.items() if key in NAMES}
    if case["loss"] == "cispo":
        known = {f"cispo.cispo_{name}": value for name, value in known.items()}
    known |= {"dppo.dppo_type": case["loss"].replace("dppo", "binary")} if "dppo" in case["loss"] else {}
    known |= {"off.tis_ratio_type": "token"} if "cap" in case else {}
    reduction = {"loss_reduction": MODES[case["aggregation"]]}
    return {"policy_loss_type": LOSSES.get(case["loss"], "regular"), **reduction, **known}


def loss(part, options):
    """Compute the loss of a micro-batch, whose advantages were divided over the mini-batch before."""
    import ray

    ray.is_initialized = lambda: False  # the registry of losses then lies in this process
    from skyrl.backends.skyrl_train.utils import ppo_utils

    config = SimpleNamespace()
    for name, value in {**DEFAULTS, **options}.items():
        group, _, key = name.rpartition(".")
        group = {"off": "off_policy_correction"}.get(group, group)
        holder = vars(config).setdefault(group, SimpleNamespace()) if group else config
        setattr(holder, key, value)
    of_rows = part.mask.sum(dim=1, keepdim=True)
    whole, mode = part.whole, options["loss_reduction"]
    divisor = {"token_mean": whole.tokens, "sequence_mean": whole.rows * of_rows}.get(mode, whole.rows * whole.longest)
    advantages, mask = part.advantages / divisor, part.mask.double()
    function = ppo_utils.PolicyLossRegistry.get(options["policy_loss_type"])
    sampler = part.sampler_log_probs if "off.tis_ratio_type" in options else None
    value, _ = function(part.log_probs, part.old_log_probs, advantages, config, mask, sampler)
    return value * whole.ranks
