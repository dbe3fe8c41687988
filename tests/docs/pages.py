"""The Markdown pages of the repository and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
NAMES = sorted(page.relative_to(ROOT).as_posix() for page in PAGES)

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>.+?) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code; `why` says why it is not run, if it is not."""

    page: str
    line: int
    language: str
    code: str
    why: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, language: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, text[: m.start("code")].count("\n") + 1, m["language"], m["code"], m["why"])
        for m in _BLOCK.finditer(text)
        if m["language"] == language
    ]


def prose(page: str) -> str:
    """A page without comments and code, of which single backticks stay as a placeholder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "code", text)
