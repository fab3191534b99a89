"""A study: from configuration to resolved runs, and from results back to whether they are current.

Imports no torch, so that Snakemake plans in a moment.
"""
