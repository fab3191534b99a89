"""Templates of HTML pages: text of data is escaped, and a name that a page was not given is an error."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template


def page_template(name: str, *packages: str) -> Template:
    """The template ``name``, and what it includes, from the first of ``packages`` whose ``templates/`` has it."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
