"""Token tables: one row per response token, of a replayed run or of two checkpoints."""
