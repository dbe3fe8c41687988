"""The little Markdown that notes are written in, as HTML: nothing that could carry a script.

Headings, paragraphs, lists with "-", **bold**, *emphasis*, `code` and [links](https://...).
"""

from __future__ import annotations

import re
from html import escape
from itertools import groupby

_INLINE = (
    (r"\*\*(.+?)\*\*", r"<b>\1</b>"),
    (r"\*([^*\s][^*]*)\*", r"<em>\1</em>"),
    (r"\[([^\]]+)\]\((https?://[^)\s]+|#[\w-]+)\)", r'<a href="\2">\1</a>'),
)


def to_html(text: str) -> str:
    blocks = re.split(r"\n\s*\n", text.strip())
    return "\n".join(_block(block) for block in blocks if block.strip())


def _block(block: str) -> str:
    parts = []
    for kind, lines in groupby(block.splitlines(), _kind):
        if kind == "heading":
            # The page has h1 and h2 itself, so notes begin below them.
            parts += [f"<h3>{_inline(line.lstrip('# '))}</h3>" for line in lines]
        elif kind == "item":
            parts.append(_list(list(lines)))
        else:
            parts.append(f"<p>{_inline(' '.join(lines))}</p>")
    return "\n".join(parts)


def _kind(line: str) -> str:
    if line.startswith("#"):
        return "heading"
    return "item" if re.match(r"\s*- |\s{2,}\S", line) else "text"


def _list(lines: list[str]) -> str:
    items: list[str] = []
    for line in lines:
        if line.lstrip().startswith("- ") or not items:
            items.append(line.strip().removeprefix("- "))
        else:  # an indented line goes on with its item
            items[-1] += f" {line.strip()}"
    return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>"


def _inline(text: str) -> str:
    """Marks outside of `code` become elements; inside, everything stays as it is."""
    pieces = re.split(r"`([^`]+)`", escape(text))  # text, code, text, ...
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = f"<code>{piece}</code>"
            continue
        for pattern, replacement in _INLINE:
            pieces[i] = re.sub(pattern, replacement, pieces[i])
    return "".join(pieces)
