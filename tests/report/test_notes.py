"""Notes in Markdown on the page."""

from __future__ import annotations

import pytest

from stpn.report.notes import to_html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("", ""),
        ("one\ntwo\n\nthree", "<p>one two</p>\n<p>three</p>"),
        ("# Why\ntext", "<h3>Why</h3>\n<p>text</p>"),
        ("- one\n- two\n  goes on", "<ul><li>one</li><li>two goes on</li></ul>"),
        ("so:\n- **a** *e*", "<p>so:</p>\n<ul><li><b>a</b> <em>e</em></li></ul>"),
        ("`b*c*d`", "<p><code>b*c*d</code></p>"),
        ("2 * 3 * 4", "<p>2 * 3 * 4</p>"),
        ("[x](https://a.b/c)", '<p><a href="https://a.b/c">x</a></p>'),
    ],
)  # fmt: skip
def test_what_notes_can_hold(text: str, html: str) -> None:
    assert to_html(text) == html


@pytest.mark.parametrize(
    "text",
    ["<script>x</script>", "[x](javascript:alert(1))", '[x](https://a"onclick=b)', "`<b>`"],
)
def test_notes_cannot_carry_a_script(text: str) -> None:
    html = to_html(text)
    assert "<script" not in html
    assert 'href="javascript' not in html
    assert '"onclick' not in html
    assert "<b>" not in html
