"""The docstrings of the package, as Sphinx wants them, and pages for all public names.

They are written to be read in an editor: an indented block is an example, single backticks are
code, and nothing else is markup.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import stpn

OTHERS = "<!-- public names that no page has -->"
_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
_NAME = re.compile(r"`[A-Za-z_][\w.]*`")


def converted(lines: list[str]) -> list[str]:
    """Lines of a docstring as reStructuredText."""
    result: list[str] = []
    prose: list[str] = []
    literal = False
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        after_blank = number == 0 or not lines[number - 1].strip()
        if indented and after_blank and not literal:
            language = "text" if _is_table(line) else "python"
            result += [*_escaped(prose), f".. code-block:: {language}", ""]
            literal = True
            prose = []
        elif line.strip() and not indented:
            literal = False
        (result if literal else prose).append(line)
    return result + _escaped(prose)


def _is_table(line: str) -> bool:
    """Names and what they mean, in two columns, rather than code."""
    return re.match(r" {4}[\w ]+? {2,}[a-z\"]", line) is not None and "=" not in line


def _escaped(lines: list[str]) -> list[str]:
    parts = _CODE.split("\n".join(lines))
    for k, part in enumerate(parts):
        if k % 2:  # code; a name may become a link
            if not part.startswith("``") and not _NAME.fullmatch(part):
                parts[k] = f"`{part}`"
        else:
            part = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part).replace("|", r"\|")
            parts[k] = re.sub(r"\*(?=\S)(?![^*]*\S\*)", r"\\*", part)
    return "".join(parts).split("\n")


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = converted(lines)


def undocumented(pages: Path) -> list[str]:
    """Public names of the package that no page of the reference mentions."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(pages.glob("*.md")))
    return [
        name
        for name in stpn.__all__
        if not name.startswith("__") and not re.search(rf":: stpn\.{name}\b", text)
    ]


def _add_others(app: Any, docname: str, source: list[str]) -> None:
    """What others added to the package has its place in the reference without being listed."""
    if OTHERS not in source[0]:
        return
    names = undocumented(Path(app.srcdir) / "api")
    directives = [f".. {_directive(name)}:: stpn.{name}\n" for name in names]
    text = "\n".join(["## More", "", "```{eval-rst}", *directives, "```"]) if names else ""
    source[0] = source[0].replace(OTHERS, text)


def _directive(name: str) -> str:
    """The kind of entry; of modules and classes that have no page, the docstring is enough."""
    value = getattr(stpn, name)
    if inspect.ismodule(value):
        return "automodule"
    if inspect.isclass(value):
        return "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("source-read", _add_others)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
