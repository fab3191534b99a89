"""NeMo-RL: ClippedPGLossFn, whose two counts are those of the whole batch."""

PACKAGE = "nemo-rl"
TRAINER = "nemo_rl"
STAND_INS = ("nemo_rl.data", "nemo_rl.models", "nemo_rl.utils", "nemo_rl.algorithms.x_token")
PPO = ("grpo", "dapo", "dual_clip", "gspo", "cispo", "reinforce", "grpo_kl", "grpo_tis")
NAMES = {"epsilon_low": "ratio_clip_min", "epsilon_high": "ratio_clip_max", "dual_clip": "ratio_clip_c"}
NAMES |= {"kl": "reference_policy_kl_penalty", "cap": "truncated_importance_sampling_ratio"}


def options(case):
    """Spell a case in the options of the loss; its KL penalty, 0.01 by default, is switched off where there is none."""
    if case["loss"] not in PPO or not case["aggregation"].endswith("token-mean"):
        raise NotImplementedError
    known = {NAMES[key]: value for key, value in case.items() if key in NAMES}
    flags = {"gspo": "sequence_level_importance_ratios", "cispo": "use_cispo", "reinforce": "disable_ppo_ratio"}
    known |= {flags[case["loss"]]: True} if case["loss"] in flags else {}
    if "cap" in case:
        known |= {"use_importance_sampling_correction": True, "truncated_importance_sampling_type": "tis"}
    by_token = {"token_level_loss": case["aggregation"] == "token-mean"}
    return {"reference_policy_kl_penalty": 0.0, **by_token, **known}


def loss(part, options):
    """Compute the loss of a micro-batch; ranks are summed by the trainer."""
    import torch
    from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig, ClippedPGLossFn

    def with_prompt(values):
        return torch.cat([values[:, :1], values], dim=1)  # the first position has no prediction

    names = {"prev_logprobs": "old", "generation_logprobs": "sampler", "reference_policy_logprobs": "reference"}
    data = {name: with_prompt(getattr(part, f"{ours}_log_probs")) for name, ours in names.items()}
    data |= {"advantages": with_prompt(part.advantages), "token_mask": with_prompt(part.mask.double())}
    data["sample_mask"] = torch.ones(len(part.mask)).double()
    counts = torch.tensor(float(part.whole.rows)), torch.tensor(float(part.whole.tokens))
    value, _ = ClippedPGLossFn(ClippedPGLossConfig(**options))(part.log_probs, data, *counts)
    return value * part.whole.ranks
