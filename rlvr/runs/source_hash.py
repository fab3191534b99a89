"""Hashes of the project's own source that ignore comments, docstrings and layout.

They are recorded with every run, so that a report can say that code was edited since. An edit alone makes no run out of
date: whoever changes results raises the VERSION of what was edited.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("evals/problems", "evals/generation", "evals/grading", "rlvr/base_model", "rlvr/methods", "rlvr/engines")
_HASH_LENGTH = 16


@cache
def source_hashes() -> dict[str, str]:
    """Path of every module that results depend on -> hash of its syntax tree."""
    files = sorted(path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py"))
    return {path.relative_to(_ROOT).as_posix(): _hash_source(path.read_text(encoding="utf-8")) for path in files}


def _hash_source(text: str) -> str:
    tree = ast.parse(text)
    _drop_docstrings(tree)
    return hashlib.sha256(ast.dump(tree).encode("utf-8")).hexdigest()[:_HASH_LENGTH]


def _drop_docstrings(node: ast.AST) -> None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
        ast.get_docstring(node, clean=False) is not None
    ):
        node.body = node.body[1:]
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # most of a tree, and no docstring is in it
            _drop_docstrings(child)


def edited_since(recorded: dict[str, str]) -> list[str]:
    """Modules whose meaning differs from what was recorded, or that came or went."""
    current = source_hashes()
    return sorted(path for path in recorded.keys() | current.keys() if recorded.get(path) != current.get(path))
