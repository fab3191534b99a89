"""Reading YAML files of plain values."""

import re
from pathlib import Path
from typing import Any

import yaml

from evals.core.errors import UserError
from evals.core.files import reading

_MOST_VALUES = 1_000_000
"""Values that a file may stand for, aliases written out; a few lines of aliases of aliases can stand for billions."""

_DEEPEST = 100


class _Loader(yaml.CSafeLoader):
    """The C loader, as safe as ``safe_load`` and ten times as fast, which also refuses a key that stands twice."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _values(node, {}) > _MOST_VALUES:
            problem = f"its aliases stand for more than {_MOST_VALUES} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} is no text", problem_mark=key.start_mark)
            if key.value in lines:
                problem = f"the key {key.value} stands twice, first in line {lines[key.value]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML reads, takes 1e-6 for text; YAML 1.2 and everybody who writes a learning rate mean a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """The number of values of a node with every alias written out; RecursionError if it holds itself."""
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ()
        nodes = (inner for part in parts for inner in (part if isinstance(part, tuple) else (part,)))
        known[id(node)] = 1 + sum(_values(inner, known) for inner in nodes)
    return known[id(node)]


def _check_depth(text: str) -> None:
    """Refuse what is nested too deeply for the C loader, which overflows the stack and ends the process."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise RecursionError


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values; no tag of the file can run code, and a mistake is named with its line."""
    with reading(path):
        text = path.read_text(encoding="utf-8")
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Read the YAML text of ``source``, errors as for :func:`read_yaml`."""
    try:
        _check_depth(text)
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise UserError(f"{source}: is nested too deeply, or holds itself by an alias") from None
    except (yaml.YAMLError, ValueError) as error:  # such as a date that is none, or a number of too many digits
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}: is not valid YAML{line} ({getattr(error, 'problem', None) or error})") from None
