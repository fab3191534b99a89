"""Show the equations of methods and results as MathML, which browsers draw without a script (a hook of mkdocs)."""

import re
from typing import Any

from latex2mathml.converter import convert

CODE_OR_EQUATION = re.compile(r"```.*?```|`[^`]+`|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$]+)\$", re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Replace what stands between dollars, outside of code."""
    has_equations = page.file.src_uri.startswith(("docs/methods/", "docs/results/"))
    return CODE_OR_EQUATION.sub(drawn, markdown) if has_equations else markdown


def drawn(match: re.Match[str]) -> str:
    """Draw an equation; leave code as it is."""
    latex = match["block"] or match["inline"]
    if not latex:
        return match[0]
    latex = re.sub(r"\\mathbb (\w)", r"\\mathbb{\1}", latex.strip())
    equation = convert(latex, display="block" if match["block"] else "inline").replace("\n", " ")
    return f"<span>{equation}</span>"  # a line that begins with <math> would end its paragraph
