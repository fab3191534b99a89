"""The stages of a study: each is declared once, with what it reads, what it is told, what it writes, and how."""

from rlvr.stages import evaluate, figures, models, pages, problems, shown, tables, train

__all__ = ["decode", "diagnose", "evaluate", "figures", "models", "pages", "problems", "shown", "tables", "train"]
