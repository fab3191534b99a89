"""The way back from a table, figure or report to every byte that it was made from; ``rlvr-bench trace``."""
