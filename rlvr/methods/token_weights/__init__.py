"""Token weights: how much the advantage counts at each token, fixed for one rollout batch."""
