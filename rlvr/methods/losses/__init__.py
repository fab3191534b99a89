"""Policy losses: objectives of each token, of the current policy against the policy that sampled."""
