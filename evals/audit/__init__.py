"""The audit of a policy's grades: how often grading had nothing to judge, and where a second grader disagrees."""

VERSION = 2  # raised whenever the same samples and grades would give another audit
