"""RLVR methods as pure tensor functions: reward shaping, advantage, token weights, policy loss and batching.

``method.compose`` builds a method from a resolved catalogue entry. ``declarations`` lists the components and their
hyper-parameters without importing torch; everything else needs torch.
"""
