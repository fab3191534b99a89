"""Problems, generation, grading, statistics, tables and figures: everything that turns a checkpoint into a number."""
