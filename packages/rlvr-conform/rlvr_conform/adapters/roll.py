"""ROLL: the loss function of ActorPGWorker, on a worker that was not set up."""

from types import SimpleNamespace

PACKAGE = "roll"
TRAINER = "roll"
VARIANTS = {"cispo": "cispo", "topr": "topr", "reinforce": "vanilla"}
PPO = ("grpo", "dapo", "dr_grpo", "grpo_kl")
NAMES = {"epsilon_low": "pg_clip_low", "epsilon_high": "pg_clip_high", "kl": "kl_loss_coef"}


def options(case):
    """Spell a case in ROLL's options."""
    if case["loss"] not in (*PPO, *VARIANTS) or "dual_clip" in case or case["aggregation"] == "prompt-mean":
        raise NotImplementedError
    names = NAMES
    if case["loss"] == "cispo":
        names = {"epsilon_low": "cispo_epsilon_low", "epsilon_high": "cispo_epsilon_high"}
    known = {names[key]: value for key, value in case.items() if key in names}
    known |= {"use_kl_loss": True} if "kl" in case else {}
    return {"pg_variant": VARIANTS.get(case["loss"], "ppo"), "loss_agg_mode": case["aggregation"], **known}


def loss(part, options):
    """Compute the loss of a micro-batch, by the counts of the global batch."""
    import torch
    from roll.pipeline.rlvr.actor_pg_worker import ActorPGWorker

    off = {
        "use_pg_clip_range": True,
        "pg_clip": 0.2,
        "dual_clip_loss": False,
        "use_kl_loss": False,
        "rl_loss_coef": 1.0,
    }
    off |= {"entropy_loss_coef": 0.0, "enable_old_logprobs_recompute": True, "kl_loss_coef": 0.0}
    correction = SimpleNamespace(is_weight=SimpleNamespace(enabled=False))
    config = SimpleNamespace(**{**off, "train_infer_correction": correction, **options})
    config.actor_train = SimpleNamespace(**options)
    worker = ActorPGWorker.__new__(ActorPGWorker)
    worker.pipeline_config, worker._pg_config_cache = config, {}
    worker._pg_variant_logged = worker._topr_sample_logged = worker._cispo_config_logged = True
    worker.strategy = SimpleNamespace(
        op_compute_log_probs=lambda **_: part.log_probs, op_compute_entropy=lambda **_: torch.zeros_like(part.log_probs)
    )
    worker.get_old_log_probs_with_cache = lambda *_: part.old_log_probs
    worker.compute_sample_weights = lambda *_: torch.ones(len(part.mask))
    shifted = torch.cat([part.mask[:, :1], part.mask], dim=1)
    batch = {"response_mask": shifted, "ref_log_probs": part.reference_log_probs, "advantages": part.advantages}
    batch |= {"input_ids": None, "train_infer_is_weight": 1.0, "scores": part.advantages[:, 0]}
    counts = {"batch_num_tokens": {"response_mask": part.whole.tokens}}
    counts["global_valid_samples"] = {"response_mask": part.whole.rows}
    return worker.loss_func(SimpleNamespace(batch=batch, meta_info=counts), None)[0] * part.whole.ranks
