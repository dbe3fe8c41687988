"""Pages from files that stand elsewhere in the repository, and links that lead there.

A page with the line `<!-- the file CONTRIBUTING.md -->` shows that file; one with
`<!-- all examples -->` the folder of examples. Links to such files, which are right on a code
host, lead to these pages on the site.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "docs": "index.md",
    "examples": "project/examples.md",
}
_FILE = re.compile(r"<!-- the file (\S+) -->")
_EXAMPLES = "<!-- all examples -->"
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def _read(app: Any, docname: str, source: list[str]) -> None:
    here = (DOCS / docname).parent
    text, base = source[0], here
    if found := _FILE.search(text):
        file = ROOT / found[1]
        text, base = file.read_text(encoding="utf-8"), file.parent
        app.env.note_dependency(str(file))
    if _EXAMPLES in text:
        text = text.replace(
            _EXAMPLES, "\n".join(map(_example, sorted(ROOT.glob("examples/**/*.py"))))
        )
    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(lambda m: f"]({_target(m, base, here)})", part) for part in parts[::2]]
    source[0] = "".join(parts)


def _target(link: re.Match[str], base: Path, here: Path) -> str:
    """Where a link leads on the site."""
    path = Path(os.path.normpath(base / link[1]))
    anchor = link[2] or ""
    if path.is_relative_to(ROOT):
        inside = path.relative_to(ROOT).as_posix()
        if inside in PAGES:
            path = DOCS / PAGES[inside]
        elif inside.startswith("examples/"):
            anchor = f"#{path.name.replace('.', '').lower()}" if path.is_file() else ""
            path = DOCS / PAGES["examples"]
    if not path.is_relative_to(DOCS):
        return link[1] + anchor  # Sphinx says that it cannot find it
    return Path(os.path.relpath(path, here)).as_posix() + anchor


def _example(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    about = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    fence = (
        f"```{{literalinclude}} ../../{path.relative_to(ROOT).as_posix()}\n:language: python\n```"
    )
    return f"## {path.name}\n\n{about}\n\n{fence}\n"


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
