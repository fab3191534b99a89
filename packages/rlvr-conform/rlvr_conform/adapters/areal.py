"""AReaL: grpo_loss_fn of a micro-batch, weighted by its share of the mini-batch's tokens."""

from types import SimpleNamespace

PACKAGE = "areal"
TRAINER = "areal"
STAND_INS = ("areal.utils.logging", "areal.utils.stats_tracker")
PPO = ("grpo", "dapo", "dual_clip", "gspo", "sapo", "m2po")
NAMES = {"epsilon_low": "eps_clip", "epsilon_high": "eps_clip_higher", "dual_clip": "c_clip", "tau": "m2_threshold"}
NAMES |= {"tau_positive": "sapo_tau_pos", "tau_negative": "sapo_tau_neg"}


def options(case):
    """Spell a case in AReaL's options; it aggregates by tokens alone."""
    if case["loss"] not in PPO:
        raise NotImplementedError
    known = {NAMES[key]: value for key, value in case.items() if key in NAMES}
    known |= {"use_sapo_loss": True} if case["loss"] == "sapo" else {}
    # M2PO's mask is added to the clipped loss; a clip of 1e9 leaves the mask alone.
    known |= {"eps_clip": 1.0, "eps_clip_higher": 1e9} if case["loss"] == "m2po" else {}
    return {"importance_sampling_level": "sequence" if case["loss"] == "gspo" else "token", **known}


def loss(part, options):
    """Compute the loss of a micro-batch."""
    import torch
    from areal.trainer.ppo import actor

    given = {"eps_clip": 0.2, "eps_clip_higher": None, "c_clip": None, **options}
    proximal = part.old_log_probs
    if "m2_threshold" in options:  # between the policy that drew the tokens and the one before the update
        proximal, unlimited = part.log_probs.detach(), {"level": "token", "action": "clamp", "metric": "ratio"}
        given["rejection_sampling"] = SimpleNamespace(**unlimited, lower=None, upper=1e9)
    data = {"logprobs": part.old_log_probs, "prox_logp": proximal}
    data |= {"advantages": part.advantages, "loss_mask": part.mask}
    entropy = torch.zeros_like(part.log_probs)
    value = actor.grpo_loss_fn(part.log_probs, entropy, data, **given)
    return value * part.mask.sum() / part.whole.tokens * part.whole.ranks
