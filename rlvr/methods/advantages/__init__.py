"""Advantages: from the rewards of a group to what each rollout is worth."""
