"""The audit beside every score: how often grading had nothing to judge, and where a second grader disagrees."""
