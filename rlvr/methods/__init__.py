"""RLVR methods as four pure pieces each: advantage, token weights, policy loss, batching; needs torch and nothing else.

``rlvr.methods.method.compose`` builds a method from a resolved catalogue entry; ``rlvr.methods.seams`` says what an
engine may call on it; ``rlvr.methods.aggregation`` turns token losses into the loss of a mini-batch.
"""
