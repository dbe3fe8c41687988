"""Notes in Markdown on the page, and text that stays text."""

from __future__ import annotations

import pytest

from stpn.report.templates import markdown_text, markdown_to_html, without_html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("", ""),
        ("one\ntwo\n\nthree", "<p>one\ntwo</p>\n<p>three</p>\n"),
        ("# Why\ntext", "<h3>Why</h3>\n<p>text</p>\n"),
        ("- one\n- two\n  goes on", "<ul>\n<li>one</li>\n<li>two\ngoes on</li>\n</ul>\n"),
        ("**a** *e*", "<p><strong>a</strong> <em>e</em></p>\n"),
        ("`b*c*d`", "<p><code>b*c*d</code></p>\n"),
        ("[x](https://a.b/c)", '<p><a href="https://a.b/c">x</a></p>\n'),
    ],
)  # fmt: skip
def test_what_notes_can_hold(text: str, html: str) -> None:
    assert markdown_to_html(text) == html


@pytest.mark.parametrize(
    "text",
    ["<script>x</script>", "[x](javascript:alert(1))", '[x](https://a"onclick=b)', "`<b>`",
     "<img src=x onerror=y>", "![x](javascript:y)"],
)  # fmt: skip
def test_notes_cannot_carry_a_script(text: str) -> None:
    html = markdown_to_html(text)
    assert "<script" not in html
    assert 'href="javascript' not in html
    assert 'src="javascript' not in html
    assert '"onclick' not in html
    assert "<b>" not in html
    assert "<img src=x" not in html


def test_names_in_markdown_are_text() -> None:
    assert markdown_text("<b>|x\n& y") == r"&lt;b&gt;\|x &amp; y"


def test_raw_html_in_notes_is_text_in_markdown_too() -> None:
    notes = "a <script>x</script> b `<code>` 1 < 2\n\n```\n<pre>\n```\n"
    expected = "a &lt;script>x&lt;/script> b `<code>` 1 < 2\n\n```\n<pre>\n```\n"
    assert without_html(notes) == expected
