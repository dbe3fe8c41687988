"""The site builds without a warning, has every public name, and asks nothing of the network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import ROOT

import stpn

pytest.importorskip("sphinx")

import docstrings

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]


class Loaded(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found += [values.get("src") or ""]
        elif tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon"):
            self.found += [values.get("href") or ""]


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        for address in filter(None, Loaded(page).found):
            assert "//" not in address, f"{page.name} loads {address}"
            file = page.parent / address.partition("?")[0]
            assert file.is_file(), f"{page.name} loads {address}, which is not there"


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in site.glob("api/*.html"))
    names = set(re.findall(r'id="(?:module-)?(stpn[\w.]*)"', text))
    missing = [n for n in stpn.__all__ if not n.startswith("__") and f"stpn.{n}" not in names]
    assert missing == []


def test_every_page_of_docs_is_reached(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/*.md"):
        assert f'href="{page.stem}.html"' in start or page.stem == "index", page.name


def test_formulas_are_mathml(site: Path) -> None:
    text = (site / "tutorials/power.html").read_text(encoding="utf-8")
    assert text.count("<math") >= 3
    assert "mathjax" not in text.lower().replace("mathjax_ignore", "")


def test_docstrings_become_markup() -> None:
    lines = [
        "On `x` and",
        "`a * b +",
        "c`, of |g| in h_.",
        "",
        "    y = f(x)",
        "",
        "End.",
    ]
    assert docstrings.converted(lines) == [
        "On `x` and", "``a * b +", r"c``, of \|g\| in h\_.", "",
        ".. code-block:: python", "", "    y = f(x)", "", "End.",
    ]  # fmt: skip
