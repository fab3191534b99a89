"""Scores of graded samples and comparisons of scores, of a study or of any files."""
