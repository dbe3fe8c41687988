"""Exported steps compute what the networks compute, in onnxruntime and as graphs of torch."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stpn
from stpn import cores, exports
from stpn.cli import main
from stpn.training.agent import Agent, Bytes, Frames, OneHot, Vector
from stpn.training.policies import Categorical

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

EXAMPLE = Path(__file__).parents[1] / "examples" / "export_table.py"
BASELINES: dict[str, dict[str, Any]] = {
    "hebbff": {"constraint": "clipped", "normalize": True},
    "lstm": {"normalize": True, "layer_norm": True},
    **{name: {"normalize": True} for name in ("gru", "rnn", "modplast", "mlp")},
}
"""Options of which the export has more to do than without."""
OPTIONS: list[Any] = [
    ("stpnr", {"norm": "pre", "clamp": 0.3, "num_layers": 2}),
    ("ustpnr", {"norm": "post", "norm_over": "layer", "norm_scale": True, "clamp": 0.1}),
    ("stpnf", {"norm": None, "rule": "oja"}),
    ("ustpnf", {}),
    ("stpnl", {"norm": "post", "clamp": 0.2, "associate": "new"}),
    ("lstm", BASELINES["lstm"]),
    *(
        pytest.param(name, BASELINES.get(name, {}), marks=pytest.mark.slow)
        for name in stpn.models()
        if "stpn" not in name and name != "lstm"
    ),
]


def lively(network: nn.Module, factor: float = 2.0) -> nn.Module:
    """Weights large enough that norms and clamps have something to do."""
    with torch.no_grad():
        for value in network.parameters():
            value.mul_(factor)
    return network


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_core_in_onnxruntime_over_a_stream(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """A thousand steps from its own state, in double precision: so the rule tells and not how
    rounding grows."""
    core, path = stpn.build(name, 5, 6, dtype=torch.float64, **options), tmp_path / "core.onnx"
    entries = exports.onnx(lively(core), path)
    # Fast Weights amplify any difference, as between two backends of torch: step by step then.
    assert exports.largest_difference(core, path, stream=name != "fastweights") < 1e-5
    assert entries["model"] == name
    assert json.loads(entries["options"]) == core.configuration


def test_the_check_sees_another_network(tmp_path: Path) -> None:
    core, path = stpn.build("stpnr", 5, 6), tmp_path / "core.onnx"
    exports.onnx(core, path)
    with torch.no_grad():
        core.weight_l0[0, 0] += 1e-3
    assert exports.largest_difference(core, path, steps=20) > 1e-5
    with pytest.raises(exports.NotExported, match="not a step of this network"):
        exports.largest_difference(stpn.build("lstm", 5, 6), path)


def agents() -> list[tuple[str, Any]]:
    low, high = np.zeros((2, 3), np.uint8), np.full((2, 3), 9, np.uint8)
    normalised = Vector((4,), normalize=True)
    normalised.observe(3 + 2 * torch.randn(50, 4))
    frames = Frames((1, 36, 44), channels_last=True, normalize=True)
    frames.observe(torch.randint(256, (16, 36, 44, 1), dtype=torch.uint8))
    return [
        ("vector", normalised), ("bytes", Bytes(low, high)), ("symbols", OneHot(5, 2)),
        ("frames", frames),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "encoder"), agents())
def test_a_whole_agent(kind: str, encoder: Any, tmp_path: Path) -> None:
    core = stpn.build("stpnr", encoder.output_size, 6, batch_first=True, norm="post", clamp=0.5)
    agent, path = Agent(encoder, core, Categorical(3)), tmp_path / "agent.onnx"
    lively(agent.core)
    agent.train()
    exports.onnx(agent, path)
    assert agent.training  # exporting leaves the network as it is
    assert exports.largest_difference(agent, path, steps=100 if kind == "frames" else 1000) < 1e-5
    session = onnxruntime.InferenceSession(path)
    assert [given.name for given in session.get_inputs()] == [
        "observation", "reset", "h_l0", "f_l0"
    ]  # fmt: skip
    names = [found.name for found in session.get_outputs()]
    assert names == ["policy", "value", "power", "h_l0_next", "f_l0_next"]


def test_resets_and_power_are_those_of_the_network(tmp_path: Path) -> None:
    """Against the network's own calls, not against the step that was exported."""
    network, path = stpn.pretrained("maze-stpnr"), tmp_path / "agent.onnx"
    exports.onnx(network, path)
    session = onnxruntime.InferenceSession(path)
    x = torch.randn(4, 30, 17)
    reset = torch.rand(4, 30) < 0.1
    with torch.no_grad(), stpn.EnergyMeter(network.core) as meter:
        policy, value, _ = network(x, None, reset)
    state = {"h_l0": np.zeros((4, 55), np.float32), "f_l0": np.zeros((4, 55, 72), np.float32)}
    powers = []
    for t in range(30):
        given = {"observation": x[:, t].numpy(), "reset": reset[:, t].numpy(), **state}
        p, v, power, h, f = session.run(None, given)
        torch.testing.assert_close(torch.from_numpy(p), policy[:, t], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.from_numpy(v), value[:, t], atol=1e-4, rtol=1e-4)
        state = {"h_l0": h, "f_l0": f}
        powers.append(power)
    assert np.mean(powers) == pytest.approx(float(meter.power), rel=1e-4)


QUICK = ("stpnl", "modplast", "deltanet", "lstm", "mlp")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in stpn.models()]
)
def test_the_program_of_torch_export(name: str, tmp_path: Path) -> None:
    core, path = stpn.build(name, 5, 6, num_layers=2), tmp_path / "step.pt2"
    program = exports.program(core)
    own = [str(node.target) for node in program.graph.nodes if str(node.target).startswith("stpn")]
    assert own == []  # where it is loaded the package need not be there
    torch.export.save(program, path)
    step, loaded = exports.Step(core), torch.export.load(path).module()
    for batch in (1, 7):
        inputs: list[Tensor] = step.example(batch)
        for _ in range(3):
            with torch.no_grad():
                expected, found = step(*inputs), loaded(*inputs)
            torch.testing.assert_close(found, expected)
            kept = len(step.state)
            inputs[2:] = expected[-kept:] if kept else []


def test_what_cannot_be_exported_says_why() -> None:
    with pytest.raises(exports.NotExported, match="one direction"):
        exports.Step(stpn.STPNr(3, 4, bidirectional=True))
    with pytest.raises(exports.NotExported, match="export its core"):
        exports.Step(nn.Linear(3, 4))
    core = stpn.STPNr(3, 4)
    with stpn.EnergyMeter(core), pytest.raises(exports.NotExported, match="outside"):
        exports.Step(core)


def test_the_table_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines for two cores, and that it leaves out no core, variant or network."""
    table = runpy.run_path(str(EXAMPLE))
    table["main"](["--only", "mlp", "stpnr-public"])
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[2] for line in lines] == ["equal", "equal"]
    differences = [float(cell) for line in lines for cell in line.strip("| ").split(" | ")[3:]]
    assert len(differences) == 4
    assert max(differences) < 1e-5
    listed = re.findall(
        r"^\| `(\S+)` \|", (EXAMPLE.parents[1] / "docs/exports.md").read_text(), re.M
    )
    assert set(listed) >= {*stpn.models(), *cores.variants()}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.onnx"
    assert main(["export-onnx", "art-ustpnr", "--out", str(path)]) == 0
    said = capsys.readouterr().out
    assert "ustpnr for art" in said
    assert "x, reset, h_l0, f_l0" in said
    assert "1000 steps in onnxruntime" in said
    entries = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert entries["task"] == "art"
    assert json.loads(entries["state"])["f_l0"][0] == "batch"
    assert main(["export-onnx", "art-ustpnr", "--out", str(path), "--tolerance", "1e-12"]) == 1
    assert "more than the tolerance" in capsys.readouterr().err
