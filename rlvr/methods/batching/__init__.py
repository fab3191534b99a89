"""Batching: which rollouts make up the rollout batch, and which optimizer mini-batch each of them goes to."""
