"""prime-rl: its loss functions of one sample, summed by its compute_loss over the tokens of the whole batch."""

from types import SimpleNamespace

PACKAGE = "prime-rl"
TRAINER = "prime_rl"
STAND_INS = ("prime_rl.configs",)
LOSSES = {"ipo": "ipo", "dppo_tv": "default"}
NAMES = {"epsilon": "ipo_threshold", "kl_coefficient": "kl_tau"}
NAMES |= {"delta_low": "dppo_mask_low", "delta_high": "dppo_mask_high"}


def options(case):
    """Spell a case in the options of trainer.loss."""
    if case["loss"] not in LOSSES or case["aggregation"] != "token-mean":
        raise NotImplementedError
    known = {NAMES[key]: value for key, value in case.items() if key in NAMES}
    return {"type": LOSSES[case["loss"]], **known}


def loss(part, options):
    """Compute the loss of a micro-batch of samples, each by itself."""
    from prime_rl.trainer.rl import loss as module

    function = {"ipo": module.ipo_loss_fn, "default": module.default_loss_fn}[options["type"]]
    config = SimpleNamespace(**{"adv_tau": 1.0, "kl_tau": 1e-3, **options})
    lengths = part.mask.sum(dim=1).tolist()
    # Its ratio is to the policy that drew the tokens, which here is the one before the update.
    tensors = (part.log_probs, part.old_log_probs, part.advantages, part.mask)
    given = [[row[:n] for row, n in zip(values, lengths, strict=True)] for values in tensors]
    value, _ = module.compute_loss(
        trainer_logprobs=given[0],
        inference_logprobs=given[1],
        ref_logprobs=None,
        advantages=given[2],
        loss_mask=given[3],
        rl_weights=None,
        ce_weights=None,
        ref_kl_weights=None,
        rl_loss_fn=lambda inputs: function(inputs, config),
        rl_scale=part.whole.tokens,
        ce_scale=1,
        ref_kl_scale=1,
    )
    return value * part.whole.ranks
