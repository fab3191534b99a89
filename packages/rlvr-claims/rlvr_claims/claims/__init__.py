"""The papers' claims as measurements on a study's runs: one module a claim, which says what it needs."""
