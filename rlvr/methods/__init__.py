"""RLVR methods as pure tensor functions: reward shaping, advantage, token weights, policy loss and batching.

``method.compose`` builds a method from a resolved catalogue entry. ``components`` lists what exists, with all
hyper-parameters; torch is loaded when something is computed.
"""
