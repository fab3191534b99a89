"""Templates of HTML pages: text of data is escaped, and a name that a page was not given is an error."""

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def page_template(name: str, package: str) -> Template:
    """Load the template ``name`` from the folder ``templates`` of a package, with the templates that it includes."""
    environment = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)
