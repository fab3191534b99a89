"""Pages beside the report, in its look: the claims of the papers, and decoding with two models."""
