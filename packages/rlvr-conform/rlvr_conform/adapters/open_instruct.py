"""open-instruct: its loss function, divided as its trainer divides it, by the tokens of the accumulated batch."""

from types import SimpleNamespace

PACKAGE = "open-instruct"
TRAINER = "open_instruct"
STAND_INS = tuple(f"open_instruct.{name}" for name in ("data_loader", "data_types", "olmo_core_utils", "utils"))
LOSSES = {"dapo": "dapo", "cispo": "cispo", "grpo": "dapo", "grpo_kl": "dapo", "grpo_tis": "dapo"}
NAMES = {"epsilon_low": "clip_lower", "epsilon_high": "clip_higher", "kl": "beta", "cap": "rho_clamp_upper_bound"}


def options(case):
    """Spell a case in open-instruct's options; it aggregates by tokens alone."""
    if case["loss"] not in LOSSES or "dual_clip" in case:
        raise NotImplementedError
    known = {NAMES[key]: value for key, value in case.items() if key in NAMES}
    known |= {"kl_estimator": 2} if "kl" in case else {}
    return {"loss_fn": LOSSES[case["loss"]], "use_rho_correction": "cap" in case, **known}


def loss(part, options):
    """Compute the loss of a micro-batch."""
    import torch
    from open_instruct import grpo_utils
    from open_instruct.rl_utils import masked_mean

    off = dict.fromkeys(("rho_mask_sequence_level", "rho_mask_tv_divergence"), False)
    off |= dict.fromkeys(("rho_clamp_lower_bound", "rho_mask_lower_bound", "rho_mask_upper_bound"), 0.0)
    config = SimpleNamespace(**{"clip_lower": 0.2, "clip_higher": 0.272, "beta": 0.0, **off, **options})
    given = (part.old_log_probs, part.sampler_log_probs, part.mask, part.advantages, config)
    weights = grpo_utils.compute_rho_correction(*given).weights
    reference = part.reference_log_probs if "kl_estimator" in options else None
    ratio = torch.exp(part.log_probs - part.old_log_probs)
    values, _, kl = grpo_utils.compute_grpo_loss(
        part.log_probs, ratio, part.advantages, ref_logprobs=reference, config=config, rho_weights=weights
    )
    return masked_mean(values + config.beta * kl, part.mask, None, part.whole.tokens) * part.whole.ranks
