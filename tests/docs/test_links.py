"""Links between the pages lead somewhere, down to the heading; addresses have the right form.

There is no network here, so nothing is fetched. That the site has no dead link either is told by
its own build, in which warnings are errors.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pages import NAMES, ROOT, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as code hosts and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", NAMES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall(prose(page)):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme == "https", f"{target}: only https"
            assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), target
            assert not re.search(r"[\s<>\"]", target), target
            continue
        file = (ROOT / page).parent / parts.path if parts.path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if parts.fragment:
            assert parts.fragment in anchors(file), f"{page}: {target}"


def test_the_readme_leads_to_the_paper_and_to_each_tutorial() -> None:
    text = prose("README.md")
    assert "https://proceedings.mlr.press/v162/rodriguez22b.html" in text
    for tutorial in sorted((ROOT / "docs/tutorials").glob("*.md")):
        assert f"docs/tutorials/{tutorial.name}" in text
