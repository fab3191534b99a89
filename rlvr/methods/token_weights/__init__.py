"""Token weights: factors on the advantage of each token, computed once per rollout batch."""
