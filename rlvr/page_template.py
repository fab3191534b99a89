"""Templates of HTML pages: text of data is escaped, and a name that a page was not given is an error."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template


def page_template(name: str, *packages: str) -> Template:
    """Load a template and those that it includes from the first of these packages whose ``templates`` has it."""
    loader = ChoiceLoader([PackageLoader(package) for package in packages])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)
