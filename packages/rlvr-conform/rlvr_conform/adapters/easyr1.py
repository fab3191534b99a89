"""EasyR1: its policy loss, averaged over each micro-batch and weighted as its actor weighs micro-batches."""

PACKAGE = "easyr1"
TRAINER = "verl"
LOSSES = {"gspo": "gspo", "gspo_token": "gspo_token", "cispo": "cispo", "sapo": "sapo"}
LOSSES |= dict.fromkeys(("grpo", "dapo", "dual_clip"), "default")
NAMES = {"epsilon_low": "clip_ratio_low", "epsilon_high": "clip_ratio_high", "dual_clip": "clip_ratio_dual"}
NAMES |= {"tau_positive": "tau_positive", "tau_negative": "tau_negative"}


def options(case):
    """Spell a case in EasyR1's options."""
    if case["loss"] not in LOSSES or not case["aggregation"].endswith("token-mean"):
        raise NotImplementedError
    known = {NAMES[key]: value for key, value in case.items() if key in NAMES}
    mode = "token" if case["aggregation"] == "token-mean" else "seq"
    return {"loss_type": LOSSES[case["loss"]], "loss_avg_mode": mode, **known}


def loss(part, options):
    """Compute the loss of a micro-batch; the actor weighs it by its tokens."""
    from verl.trainer.core_algos import compute_policy_loss

    defaults = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_dual": 3.0}
    defaults |= {"tau_positive": 1.0, "tau_negative": 1.05}
    given = {**defaults, **options}
    value, _ = compute_policy_loss(part.old_log_probs, part.log_probs, part.advantages, part.mask.double(), **given)
    return value * part.mask.sum() / part.whole.tokens * part.whole.ranks
