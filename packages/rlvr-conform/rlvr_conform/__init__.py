"""The losses of other trainers, held to the papers' by slow float64 references."""
