"""Text into HTML and Markdown: whatever a run is called, it stays text.

HTML is made by Jinja2, which escapes every value; notes are Markdown, read by markdown-it without
raw HTML.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from stpn._extras import need

if TYPE_CHECKING:
    from jinja2 import Environment


def asset(name: str) -> str:
    return resources.files("stpn.report").joinpath(f"assets/{name}").read_text(encoding="utf-8")


def render(name: str, **values: Any) -> str:
    """The template of that name in assets/, filled in."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> Environment:
    jinja2 = need("jinja2", extra="report")
    environment: Environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    markup = need("markupsafe", extra="report").Markup
    environment.filters["markdown"] = lambda text: markup(markdown_to_html(text))
    environment.filters["embedded"] = lambda data: markup(_embedded(data))
    environment.filters["counted"] = lambda n, unit: f"{n:,} {unit}{'' if n == 1 else 's'}"
    environment.globals["asset"] = lambda name: markup(asset(name))
    return environment


def _embedded(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def markdown_to_html(text: str) -> str:
    """Notes on the page, whose own headings go down to the second level."""
    markdown_it = need("markdown_it", extra="report")
    parser = markdown_it.MarkdownIt("commonmark", {"html": False})
    tokens = parser.parse(text)
    for token in tokens:
        if token.type.startswith("heading_"):
            token.tag = "h3"
    return str(parser.renderer.render(tokens, parser.options, {}))


def markdown_text(text: str) -> str:
    """A name or sentence in Markdown: no element, and no end of a table's cell."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", r"\|").replace("\n", " ")


def without_html(markdown: str) -> str:
    """Markdown of somebody else with its raw HTML as text; code, where it is text, stays."""
    pieces = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.S)
    return "".join(
        piece if index % 2 else re.sub(r"<(?=[A-Za-z/!?])", "&lt;", piece)
        for index, piece in enumerate(pieces)
    )
