"""Reading YAML files of plain values."""

import re
from pathlib import Path
from typing import Any

import yaml

from evals.core.errors import UserError


class _Loader(yaml.CSafeLoader):
    """The C loader, as safe as ``safe_load`` and ten times as fast, which also refuses a key that stands twice."""

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


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values; no tag of the file can run code, and a mistake is named with its line."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not valid YAML ({error})") from None


def parse_yaml(text: str, source: str) -> Any:
    """Read the YAML text of ``source``, errors as for :func:`read_yaml`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}: is not valid YAML{line} ({getattr(error, 'problem', None) or error})") from None
