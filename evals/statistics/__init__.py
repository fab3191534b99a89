"""How good a model is, how well that is known, and whether two methods differ.

Everything here is numpy and scipy on arrays of counts and accuracies: no files, no torch. Every random function takes
a :class:`numpy.random.Generator`. Leading dimensions are batch dimensions unless a docstring says otherwise, which is
what lets the simulations in ``tests/statistics`` check the very functions that write the tables.
"""
