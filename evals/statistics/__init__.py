"""Estimates of a model's accuracy, their uncertainty, and tests of whether two methods differ.

Everything here is numpy and scipy on arrays of counts and accuracies: no files, no torch. Every random function takes
a :class:`numpy.random.Generator`. Leading dimensions are batch dimensions unless a docstring says otherwise, which is
what allows the simulations in ``tests/statistics`` to check the very functions that write the tables.
"""
