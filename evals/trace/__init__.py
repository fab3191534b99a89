"""From a table, figure or report back to every byte that it was made from; ``rlvr-bench trace``."""
