"""Cores by name, and hidden sizes by parameter count."""

from __future__ import annotations

import inspect

import pytest
import torch

import stpn
from stpn import cores, plugins
from stpn.experiments import default_config
from stpn.nn.hebbff import HebbFF
from stpn.nn.modulated import ModPlast
from stpn.nn.registry import build, hidden_size_for, models
from stpn.nn.stpn import STPNf, STPNl, STPNr
from stpn.report.style import model_rank, model_style

NAMES = [
    "stpnr", "stpnf", "stpnl", "ustpnr", "ustpnf", "hebbff", "lstm", "gru", "rnn", "modplast",
    "plastic", "modul", "fastweights", "gradplast", "fwp", "gla", "deltanet", "gateddeltanet",
    "mlp",
]  # fmt: skip

# Hidden sizes of the paper, by task: inputs, outputs of the readout, the model whose size was
# given (the others were chosen to have its number of parameters), and all sizes.
# The sizes of the maze's ablation fit a readout of 6 outputs, one more than policy and value have.
PAPER = {
    "art": (37, 37, "fastweights", {
        "stpnr": 11, "stpnf": 13, "ustpnr": 20, "ustpnf": 26, "lstm": 9, "rnn": 20,
        "fastweights": 20, "modplast": 17, "hebbff": 26,
    }),
    "familiarity": (100, 1, "hebbff", {
        "stpnr": 27, "stpnf": 34, "ustpnr": 62, "ustpnf": 100, "lstm": 21, "hebbff": 100,
    }),
    "maze": (17, 5, "rnn", {"stpnr": 55, "lstm": 47, "rnn": 100, "modplast": 73}),
    "maze-ablation": (17, 6, "hebbff", {
        "stpnr": 30, "stpnf": 76, "ustpnr": 55, "ustpnf": 181, "hebbff": 181,
    }),
    "pong": (2592, 7, "stpnr", {"stpnr": 64, "lstm": 48}),
}  # fmt: skip


@pytest.mark.parametrize("name", models())
def test_nn_exports_every_core_and_its_cell(name: str) -> None:
    core = cores.get(name).load()
    assert getattr(stpn.nn, core.__name__) is core
    assert issubclass(getattr(stpn.nn, f"{core.__name__}Cell"), stpn.nn.RecurrentCell)


def count(model: str, inputs: int, hidden: int, outputs: int) -> int:
    core = build(model, inputs, hidden, device="meta")
    return sum(p.numel() for p in core.parameters()) + outputs * (hidden + 1)


def test_names() -> None:
    assert models() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_build(name: str) -> None:
    core = build(name, 5, 4, batch_first=True, num_layers=2)
    y, state = core(torch.randn(3, 7, 5))
    assert y.shape == (3, 7, 4)
    assert len(state) == 2


def test_what_names_stand_for() -> None:
    assert type(build("stpnr", 3, 2)) is type(build("ustpnr", 3, 2)) is STPNr
    assert type(build("stpnf", 3, 2)) is type(build("ustpnf", 3, 2)) is STPNf
    assert type(build("stpnl", 3, 2)) is STPNl
    assert build("ustpnr", 3, 2).lambda_l0.shape == (1, 1)
    modplast, plastic = build("modplast", 3, 2), build("plastic", 3, 2)
    assert type(modplast) is type(plastic) is ModPlast
    assert (modplast.modulated, plastic.modulated) == (True, False)
    core = build("hebbff", 3, 2, constraint="clipped")
    assert isinstance(core, HebbFF)
    assert core.constraint == "clipped"


def test_what_a_name_stands_for_cannot_be_undone() -> None:
    assert build("ustpnr", 3, 2, stp="uniform").stp == "uniform"
    with pytest.raises(ValueError, match="stp: 'ustpnr' stands for stp='uniform', got 'synapse'"):
        build("ustpnr", 3, 2, stp="synapse")
    with pytest.raises(TypeError, match="nonsense"):
        build("rnn", 3, 2, nonsense=1)


@pytest.mark.parametrize(
    ("name", "near"), [("stpn", "stpnr"), ("LSTM", "lstm"), ("fast_weights", "fastweights")]
)
def test_unknown_names_list_the_known(name: str, near: str) -> None:
    with pytest.raises(ValueError) as caught:
        build(name, 3, 2)
    assert all(known in str(caught.value) for known in NAMES)
    assert f"unknown model {name!r} (did you mean {near!r}?)" in str(caught.value)
    with pytest.raises(ValueError) as caught:
        build("zzz", 3, 2)
    assert "did you mean" not in str(caught.value)
    with pytest.raises(TypeError, match=r"model: expected one of .*, got NoneType"):
        build(None, 3, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("task", "model"), [(task, model) for task in PAPER for model in PAPER[task][3]]
)
def test_hidden_sizes_of_the_paper(task: str, model: str) -> None:
    inputs, outputs, anchor, sizes = PAPER[task]
    parameters = count(anchor, inputs, sizes[anchor], outputs)
    found = hidden_size_for(model, parameters=parameters, input_size=inputs, output_size=outputs)
    assert abs(found - sizes[model]) <= 1
    if task in ("art", "familiarity", "pong"):
        assert found == sizes[model]


@pytest.mark.parametrize(
    ("task", "anchor"), [("familiarity", "hebbff"), ("maze", "rnn"), ("pong", "stpnr")]
)
def test_hidden_sizes_of_the_paper_by_the_core_alone(task: str, anchor: str) -> None:
    """Where readouts are small, the cores' own counts are equal too."""
    inputs, _, _, sizes = PAPER[task]
    parameters = count(anchor, inputs, sizes[anchor], 0)
    for model, size in sizes.items():
        assert abs(hidden_size_for(model, parameters=parameters, input_size=inputs) - size) <= 1


@pytest.mark.parametrize("model", NAMES)
def test_hidden_size_is_the_nearest(model: str) -> None:
    for parameters in (1, 57, 1000, 12345):
        found = hidden_size_for(model, parameters=parameters, input_size=7, output_size=3)
        distances = {
            size: abs(count(model, 7, size, 3) - parameters)
            for size in (found - 1, found, found + 1)
            if size
        }
        assert distances[found] == min(distances.values())


def test_hidden_size_with_options() -> None:
    for size in (3, 10):
        core = build("lstm", 6, size, num_layers=2, bidirectional=True)
        parameters = sum(p.numel() for p in core.parameters()) + 4 * (2 * size + 1)
        assert size == hidden_size_for(
            "lstm",
            parameters=parameters,
            input_size=6,
            output_size=4,
            num_layers=2,
            bidirectional=True,
        )


def test_bad_parameter_counts() -> None:
    with pytest.raises(ValueError, match="parameters: expected a positive int, got 0"):
        hidden_size_for("rnn", parameters=0, input_size=3)
    with pytest.raises(ValueError, match="output_size: expected a positive int, got -1"):
        hidden_size_for("rnn", parameters=10, input_size=3, output_size=-1)


class Slow(STPNr):
    """An STPNr under another name.

    With more to say.
    """


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_cores", dict(cores._cores))
    stpn.register_core("slow", Slow, title="Slow one", colour="#123456", options={"clamp": 0.5})


@pytest.mark.usefixtures("registered")
def test_a_core_of_ones_own_is_known_everywhere() -> None:
    core = stpn.build("slow", 5, 4, norm="post")
    assert type(core) is Slow
    assert core.stpn_options.clamp == 0.5
    assert "slow" in stpn.models()
    assert "slow" in cores.STPN
    style = model_style("slow")
    assert (style.name, style.colour) == ("Slow one", "#123456")
    assert model_rank("slow") < model_rank("nobody registered this")
    assert cores.get("slow").description == "An STPNr under another name."
    assert "clamp" not in stpn.core_options("slow")
    assert default_config("art", "slow", norm="post").model == "slow"


@pytest.mark.usefixtures("registered")
def test_a_name_has_one_meaning() -> None:
    stpn.register_core("slow", Slow)  # a module that is loaded again
    assert model_style("slow").name == "Slow"
    with pytest.raises(ValueError, match="name: 'slow' is taken by Slow"):
        stpn.register_core("slow", STPNf)
    with pytest.raises(ValueError, match="name: 'lstm' is taken by LSTM"):
        stpn.register_core("lstm", Slow)


@pytest.mark.parametrize(
    ("name", "cls", "more", "words"),
    [
        ("../up", STPNr, {}, "name: expected lower-case letters"),
        ("Mine", STPNr, {}, "name: expected lower-case letters"),
        ("mine", torch.nn.LSTM, {}, "cls: expected a subclass of stpn.nn.RecurrentCore"),
        ("mine", stpn.STPNrCell, {}, "cls: expected a subclass"),
        ("mine", STPNr(2, 2), {}, "cls: expected a subclass"),
        ("mine", STPNr, {"colour": "red"}, "colour: expected '#rrggbb', got 'red'"),
        ("mine", STPNr, {"options": {"clam": 1}}, "STPNr has no option 'clam'.*mean 'clamp'"),
    ],
)
def test_what_cannot_be_registered(name: str, cls: type, more: dict, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        stpn.register_core(name, cls, **more)
    assert models() == NAMES


def test_options_are_listed_with_type_default_and_text() -> None:
    options = stpn.core_options("fastweights")
    assert list(options) == ["decay", "rate", "steps", "eps", "normalize"]
    steps = options["steps"]
    assert (steps.type, steps.default, steps.doc) == (
        int, 1, "turns of the inner loop per time step",
    )  # fmt: skip
    assert stpn.core_options("stpnr")["clamp"].type == (float | None)
    assert "stp" in stpn.core_options("stpnr")
    assert "stp" not in stpn.core_options("ustpnr")
    assert "modulated" not in stpn.core_options("plastic")
    assert list(stpn.core_options("lstm")) == ["normalize", "layer_norm"]
    for name in models():
        for option in stpn.core_options(name).values():
            assert option.doc
            core = build(name, 3, 2, **{option.name: option.default})
            assert core.configuration[option.name] == option.default


@pytest.mark.parametrize("name", NAMES)
def test_signatures_show_the_options(name: str) -> None:
    parameters = inspect.signature(cores.get(name).load()).parameters
    assert list(parameters)[:3] == ["input_size", "hidden_size", "num_layers"]
    for option in stpn.core_options(name).values():
        shown = parameters[option.name]
        assert (shown.kind, shown.default) == (shown.KEYWORD_ONLY, option.default)


def test_a_package_names_its_cores_in_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "from-a-package", "somewhere:Slow"

        def load(self) -> type:
            return Slow

    def points(*, group: str) -> list[Point]:
        return [Point()] if group == "stpn.cores" else []

    monkeypatch.setattr(cores, "_cores", dict(cores._cores))
    monkeypatch.setattr(plugins, "_loaded", False)
    monkeypatch.setattr(plugins.metadata, "entry_points", points)
    assert isinstance(build("from-a-package", 5, 4), Slow)
    assert models() == [*NAMES, "from-a-package"]
