"""The page in a real browser: the network in it computes what Python computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import OPTIONS, Network
from test_page import page_of

from stpn.report.grid import Grid
from stpn.tasks import art

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow

SEQUENCES = 25
TOLERANCE = 1e-6  # what Python derives from a weight in double precision is exported in single


@pytest.fixture(scope="module")
def networks() -> dict[str, Network]:
    return {name: Network(name) for name in OPTIONS}


@pytest.fixture(scope="module")
def address(
    tmp_path_factory: pytest.TempPathFactory, full_grid: Grid, networks: dict[str, Network]
) -> str:
    path = tmp_path_factory.mktemp("page") / "index.html"
    exported = [network.exported(name) for name, network in networks.items()]
    path.write_text(page_of(full_grid, exported), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def open_page(open_address: Callable[..., Any], address: str) -> Callable[..., Any]:
    return partial(open_address, address)


def random_sequences(count: int) -> list[str]:
    return [art.decode(row) for row in art.sequences(count, seed=7).symbols]


RUN = """([k, texts]) => {
  const read = (text) => Network.run(Page.viewer.networks[k], text);
  return texts.map((text) => read(text).map((step) => ({
    h: Array.from(step.layers.at(-1).h), power: step.power,
    probabilities: step.probabilities, answer: step.answer })));
}"""

EFFICACIES = """([k, text]) => Network.run(Page.viewer.networks[k], text)
  .map((step) => step.layers.map((layer) => Array.from(layer.g)))"""


def test_the_page_computes_what_python_computes(
    open_page: Any, networks: dict[str, Network]
) -> None:
    """Answers, activations, power and probabilities, for all options, at each step."""
    page = open_page()
    for k, (name, network) in enumerate(networks.items()):
        for texts in (random_sequences(SEQUENCES), ["?"], ["9z" * 12], ["c9k8j3??k"]):
            expected, found = network.read(texts), page.evaluate(RUN, [k, texts])
            values = {
                key: np.array([[step[key] for step in steps] for steps in found])
                for key in ("h", "power", "probabilities")
            }
            values["power"] = values["power"].mean(axis=0)
            for key, value in values.items():
                what = f"{key} of {name}"
                np.testing.assert_allclose(
                    value, expected[key], rtol=TOLERANCE, atol=TOLERANCE, err_msg=what
                )
            answers = ["".join(step["answer"] for step in steps) for steps in found]
            assert answers == expected["answers"], name


def test_the_page_has_the_synapses_that_python_has(
    open_page: Any, networks: dict[str, Network]
) -> None:
    page = open_page()
    text = "c9k8j3??k"
    for k, (name, network) in enumerate(networks.items()):
        found = page.evaluate(EFFICACIES, [k, text])
        for layer, expected in enumerate(network.efficacies(text)):
            values = np.array([step[layer] for step in found]).reshape(expected.shape)
            np.testing.assert_allclose(
                values, expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
            )


def test_networks_of_the_test_are_not_all_alike(networks: dict[str, Network]) -> None:
    """Else the comparison above would prove little."""
    answers = {network.read(["c9k8j3??k"])["answers"][0] for network in networks.values()}
    assert len(answers) > len(networks) / 2
    for name, network in networks.items():
        (moved, *_) = [np.ptp(g, axis=0).max() for g in network.efficacies("c9k8j3??k")]
        assert (moved == 0) == (name in ("rnn", "lstm", "normalised lstm", "mlp"))


def test_right_answers_are_known(open_page: Any) -> None:
    page = open_page()
    texts = [*random_sequences(50), "c9k8j3??x", "c9c8j3??c", "c9k8j3?k", "", "ab??a", "a1??a"]
    found = page.evaluate("(texts) => texts.map((text) => Network.solve(text))", texts)
    for text, answer in zip(texts, found, strict=True):
        try:
            assert answer == art.solve(text)
        except ValueError:
            assert answer is None, text


def test_stepping_through_a_typed_sequence(open_page: Any, networks: dict[str, Network]) -> None:
    page = open_page()
    found = networks["stpnr"].read(["z4q7m0??q"])
    expected = {**{key: value[0] for key, value in found.items()}, "power": found["power"]}
    page.get_by_label("Sequence", exact=True).fill("Z4Q7M0??Q")
    assert "right answer is 7" in page.locator("#viewer-message").inner_text()
    answer = page.locator("#viewer-answer .verdict")
    top = f"{100 * max(expected['probabilities'][-1]):.1f}"
    assert f"Answer {expected['answers'][-1]} with {top}" in " ".join(answer.inner_text().split())
    verdict = "right" if expected["answers"][-1] == "7" else "wrong, 7 is asked for"
    assert verdict in answer.inner_text()

    page.get_by_role("button", name="First step").click()
    for step, symbol in enumerate("z4q7m0??q"):
        text = " ".join(answer.inner_text().split())
        assert expected["answers"][step] in text.split(":")[-1]
        current = page.locator(".tile[aria-current=step]")
        assert current.locator(".symbol").inner_text() == symbol
        shown = float(current.locator(".power").inner_text())
        assert shown == pytest.approx(expected["power"][step], rel=5e-3)
        if step < 8:
            page.get_by_role("button", name="Next step").click()
    assert page.get_by_role("button", name="Next step").is_disabled()


def pixels(page: Any, row: int) -> np.ndarray:
    """The colours of one map, (D, T, 4)."""
    data, width, height = page.evaluate(
        """(row) => { const canvas = document.querySelectorAll(".map canvas")[row];
        const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return [Array.from(image.data), canvas.width, canvas.height]; }""",
        row,
    )
    return np.array(data).reshape(height, width, 4)


def test_the_map_fills_as_the_sequence_is_read(
    open_page: Any, networks: dict[str, Network]
) -> None:
    page = open_page()
    page.locator("#viewer-step").fill("4")
    for row in (0, 5):
        image = pixels(page, row)
        assert image.shape == (43, 9, 4)
        assert (image[:, :4, 3] == 255).all()
        assert (image[:, 4:, 3] == 0).all()
        g = networks["stpnr"].efficacies("c9k8j3??k")[0][:4, row].T  # (D, 4)
        strong = np.abs(g) > 0.15
        warmth = image[:, :4, 0] - image[:, :4, 2]  # red over blue
        assert strong.any()
        assert (np.sign(warmth[strong]) == np.sign(g[strong])).all()
    page.get_by_label("change since the first step").check()
    first = pixels(page, 0)[:, 0]
    assert (first == first[0]).all()  # nothing has changed yet at the first step


def test_what_is_not_a_sequence_is_explained(open_page: Any) -> None:
    page = open_page()
    entry, message = page.get_by_label("Sequence", exact=True), page.locator("#viewer-message")
    entry.fill("c9k8!")
    assert "Not a symbol of the task: !" in message.inner_text()
    assert entry.get_attribute("aria-invalid") == "true"
    assert page.locator(".tile").count() == 9  # the last good sequence stays
    entry.fill("")
    assert "such as c9k8j3??k" in message.inner_text()
    entry.fill("c9k")
    assert "Not a whole ART sequence" in message.inner_text()
    assert page.locator(".tile").count() == 3
    assert entry.get_attribute("aria-invalid") is None


def test_networks_and_layers_can_be_chosen(open_page: Any, networks: dict[str, Network]) -> None:
    page = open_page()
    for name in ("stpnl", "three layers", "lstm"):
        page.get_by_label("Network").select_option(name)
        assert f"Test network {name}." in page.locator(".viewer").inner_text()
        expected = networks[name].read(["c9k8j3??k"])["answers"][0][-1]
        assert page.locator("#viewer-answer strong").inner_text() == expected
        core = networks[name].core
        rows = core.hidden_size * (4 if name in ("stpnl", "lstm") else 1)
        assert page.locator(".map").count() == rows
    assert "constant" in page.locator(".changes").inner_text()  # an LSTM's synapses
    assert "no plastic synapses" in page.locator(".rates").inner_text()
    page.get_by_label("Network").select_option("three layers")
    page.locator("#viewer-layer").select_option("2")
    assert pixels(page, 0).shape == (12, 9, 4)


def test_random_and_picked_sequences_and_play(open_page: Any) -> None:
    page = open_page()
    page.get_by_role("button", name="Random").click()
    text = page.get_by_label("Sequence", exact=True).input_value()
    assert art.solve(text) in art.DIGITS
    page.get_by_role("button", name="x5y5z5??y").click()
    assert page.get_by_label("Sequence", exact=True).input_value() == "x5y5z5??y"
    page.get_by_role("button", name="Play or pause").click()
    sync_api.expect(page.locator("#viewer-step")).to_have_value("3")
    page.get_by_role("button", name="Play or pause").click()
    assert page.locator("#viewer-play").inner_text() == "Play"


def test_a_click_hides_a_model(open_page: Any) -> None:
    page = open_page()
    figure = page.locator("#figure-proficiency")
    before = figure.locator("path[data-model=lstm]").count()
    assert before == 4
    button = figure.get_by_role("button", name="LSTM")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert figure.locator("path[data-model=lstm]").count() == 0
    assert figure.locator("path[data-model=stpnr]").count() > 0
    button.click()
    assert figure.locator("path[data-model=lstm]").count() == before


def test_pointing_and_arrow_keys_read_values(open_page: Any, full_grid: Grid) -> None:
    page = open_page()
    panel = page.locator("#figure-proficiency .panel").first
    plot = panel.locator("svg")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    tip = panel.locator(".tip")
    assert "epoch" in tip.inner_text()
    assert "STPNr:" in tip.inner_text()
    plot.focus()
    plot.press("End")
    from stpn.report.plots import plots

    art_panel = plots(full_grid)[0].panels[0]
    for curve in art_panel.curves:
        assert f"{curve.label}: {float(f'{curve.y[-1]:.4g}'):g} [" in tip.inner_text()
    plot.press("ArrowLeft")
    assert "epoch 200" not in tip.inner_text()
    plot.press("Escape")
    assert not tip.is_visible()


def test_points_of_the_front_can_be_read(open_page: Any) -> None:
    page = open_page()
    panel = page.locator("#figure-power-proficiency .panel").nth(1)
    panel.locator("svg").focus()
    panel.locator("svg").press("End")
    assert "STPNr, final network" in panel.locator(".tip").inner_text()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_hangs_over_the_edge(open_page: Any, width: int, scheme: str) -> None:
    page = open_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 18, 22)")
    overflowing = page.evaluate(
        """(width) => [...document.querySelectorAll("main *")]
        .filter((e) => !e.closest(".scroll, .tape") && e.getBoundingClientRect().right > width + 1)
        .map((e) => e.className || e.tagName)""",
        width,
    )
    assert overflowing == []


def test_the_theme_can_be_switched_and_is_kept(open_page: Any) -> None:
    page = open_page(color_scheme="dark")
    before = pixels(page, 0)[0, 0].tolist()
    page.get_by_role("button", name="Switch between light and dark").click()
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.wait_for_timeout(50)
    assert pixels(page, 0)[0, 0].tolist() != before  # the maps follow
    page.reload()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"


def test_everything_that_can_be_used_has_a_name(open_page: Any) -> None:
    page = open_page()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, [tabindex], canvas, [role]")]
        .filter((e) => !e.closest("label") && !e.matches("[role=status]"))
        .filter((e) => !e.getAttribute("aria-label") && !e.textContent.trim())
        .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    assert page.locator("h1").count() == 1
    skipped = page.evaluate(
        """() => {
        const levels = [...document.querySelectorAll("h1,h2,h3,h4")].map((h) => +h.tagName[1]);
        return levels.filter((level, i) => i && level > levels[i - 1] + 1).length; }"""
    )
    assert skipped == 0


def test_the_page_is_quick(open_page: Any) -> None:
    page = open_page()
    milliseconds = page.evaluate(
        "() => { const [n] = performance.getEntriesByType('navigation'); return n.domComplete; }"
    )
    assert milliseconds < 3000


def test_the_page_works_from_a_path_with_spaces(browser: Any, address: str, tmp_path: Path) -> None:
    copy = tmp_path / "a b #1.html"
    copy.write_bytes(Path(address.removeprefix("file://")).read_bytes())
    page = browser.new_page()
    page.goto(copy.as_uri())
    assert page.locator(".tile").count() == 9
    page.close()
