"""The picture of the start page shows what the network of the package does."""

from __future__ import annotations

from xml.etree import ElementTree

import moving_picture
import pytest


def test_it_is_up_to_date() -> None:
    """When this fails: python docs/_sphinx/moving_picture.py"""
    assert moving_picture.OUT.read_text(encoding="utf-8") == moving_picture.drawn()


def test_it_says_what_happens() -> None:
    reading = moving_picture.read()
    assert reading.answer == "8"
    seen = moving_picture.art.encode("ck98").tolist()
    first, last = reading.f[4][:, seen], reading.f[-1][:, seen]  # after c9k8, and at the end
    strength = last.abs().amax(0)  # of the columns c, k, 9, 8
    assert strength[:2].min() > 2 * strength[2:].max()  # letters stay, digits fade
    assert first[:, 2].abs().max() > 0  # 9 had its trace, too


def test_it_stands_still_for_who_wants_that() -> None:
    root = ElementTree.fromstring(moving_picture.OUT.read_text(encoding="utf-8"))
    text = root.findtext("{http://www.w3.org/2000/svg}style")
    assert text is not None
    assert "prefers-reduced-motion" in text
    assert root.get("role") == "img"


@pytest.mark.parametrize("word", ["http:", "https:", "url(", "<script"])
def test_it_loads_nothing(word: str) -> None:
    text = moving_picture.OUT.read_text(encoding="utf-8")
    assert word not in text.replace("http://www.w3.org/2000/svg", "")
