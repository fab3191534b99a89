"""Policy losses: per-token objectives of the current policy against the policy that sampled."""
