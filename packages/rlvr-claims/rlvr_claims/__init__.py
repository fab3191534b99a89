"""Looking inside: what an update does to single tokens, with one table for all methods (README.md)."""

VERSION = 2  # raised when the same run would give other token tables or moments
CONTRAST_VERSION = 3  # the same of the contrast of methods
TABLE_VERSIONS = {"float32": VERSION, "bfloat16": 3, "float16": 3}  # by the type of the run's passes
