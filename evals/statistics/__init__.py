"""Estimates of a model's accuracy, their uncertainty, and tests of whether two methods differ.

Everything here is numpy and scipy on arrays of counts and accuracies. Leading dimensions are batch dimensions unless a
docstring says otherwise: simulations in ``tests/statistics`` check the very functions that write the tables.
"""
