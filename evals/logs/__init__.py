"""Results that other evaluation tools wrote, as graded samples (docs/other_tools.md)."""
