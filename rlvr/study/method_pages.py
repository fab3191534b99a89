"""The catalogue for people: a list of its methods, and a page for each with its equations in words."""

import difflib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evals.core.errors import NotAccepted, UserError
from rlvr.methods.component_file import components_in
from rlvr.methods.components import AGGREGATION, component_of, defaults, part_with
from rlvr.methods.parameters import Component
from rlvr.study.catalogue import Entry, resolve_method

_WIDTH = 110
_PAGES = Path(__file__).resolve().parents[2] / "docs" / "methods"
_LABELS = (  # of each kind of component, with what a method does that has none
    ("reward_shaping", "Reward shaping", "rewards as they are"),
    ("advantage", "Advantage", ""),
    ("token_weights", "Token weights", "1 for every token"),
    ("loss", "Policy loss", ""),
    ("correction", "Correction of the sampler", "the sampler's probabilities are not looked at"),
    ("kl", "KL to a reference policy", "no term"),
    ("entropy_bonus", "Entropy bonus", "no term"),
    ("assignment", "Mini-batches", ""),
    ("selection", "Batch selection", "every rollout that is sampled"),
)


def list_methods(catalogue: Mapping[str, Entry]) -> Iterator[str]:
    """List the methods, one line each: name, title, paper."""
    names = max(map(len, catalogue))
    titles = max(len(entry["title"]) for entry in catalogue.values())
    for name, entry in catalogue.items():
        yield f"{name:<{names}}  {entry['title']:<{titles}}  arXiv {entry['paper']}"
    yield f"{len(catalogue)} methods; rlvr-bench methods show NAME explains one."


def show_method(name: str, catalogue: Mapping[str, Entry]) -> Iterator[str]:
    """Describe a method: its components, each with its equation in words and its hyper-parameters, and its choices."""
    if name not in catalogue:
        near = [other for other in catalogue if name in other] or difflib.get_close_matches(name, catalogue, n=4)
        hint = f"nearest: {', '.join(near)}" if near else "rlvr-bench methods lists them"
        raise UserError(f"{name!r} is no method of the catalogue; {hint}")
    entry = resolve_method(name, {}, catalogue, name)
    yield f"{name}: {entry['title']} (arXiv {entry['paper']})"
    lineage = [name]
    while "extends" in catalogue[lineage[-1]]:
        lineage.append(catalogue[lineage[-1]]["extends"])
    if len(lineage) > 1:
        yield f"  from {', which extends '.join(lineage[1:])}"
    for kind, label, without in _LABELS:
        component = entry["batching"][kind] if kind in entry["batching"] else entry[kind]
        yield ""
        if component is None or (declared := component_of(kind, component)) is None:
            yield f"{label}: none"
            yield from _wrapped(without, "  ")
        else:
            yield from _component(label, declared, component)
    yield ""
    yield "Choices, where paper and code differ or are silent"
    yield from _wrapped(entry["choices"], "  ")
    for page in sorted(_PAGES.glob("*.md")):
        if page.name != "README.md" and f"`{name}`" in page.read_text(encoding="utf-8"):
            yield f"Explained in docs/methods/{page.name}"


def declared_in(file: Path) -> Mapping[str, Mapping[str, type[Component]]]:
    """Find the components of a file of the user's by kind and name; what is wrong with it is a :class:`UserError`."""
    try:
        return components_in(file)
    except NotAccepted as error:
        raise UserError(str(error).removeprefix("is ")) from None


def show_file(file: Path) -> Iterator[str]:
    """Describe the components that a file of the user's declares, as an entry of a study names them."""
    if not (declared := declared_in(file)):
        raise UserError(f"{file}: declares no component; accepted: a class with @component(NAME) (docs/your_method.md)")
    yield str(file)
    for kind, label, _ in (*_LABELS, (AGGREGATION, "Aggregation of token losses", "")):
        for name, component in declared.get(kind, {}).items():
            yield ""
            yield from _component(label, component, defaults(component))
            part, within = f"{kind}: {{file: {file}, name: {name}}}", part_with(kind)
            # In one line, however long the path, to be copied.
            yield "    in a study: " + (f"{within}: {{{part}}}" if within else part)


def _component(label: str, declared: type[Component], values: Mapping[str, Any]) -> Iterator[str]:
    yield f"{label}: {declared.name}"
    equation = inspect.cleandoc(declared.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    yield from _wrapped(equation, "  ")
    for key, parameter in declared.parameters().items():
        yield from _wrapped(f"{key} = {_word(values[key])}: {parameter.description}", "    ")


def _word(value: object) -> str:
    """Write a value for people."""
    return {"None": "none", "True": "yes", "False": "no"}.get(str(value), str(value))


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
