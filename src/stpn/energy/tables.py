"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def table(lines: Sequence[tuple[str, ...]], left: int = 2) -> str:
    """The first `left` columns flush left, a rule below the head and above the last line."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = []
    for line in lines:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
    text.insert(1, "-" * max(map(len, text)))
    text.insert(-1, text[1])
    return "\n".join(text)
