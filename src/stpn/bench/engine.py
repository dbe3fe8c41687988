"""The kernels against their baselines: the plain PyTorch loop, the same compiled, nn.LSTM.

Nothing is timed whose outputs and gradients do not equal the specification's. The baselines of a
case take turns, on the same number of threads; every number is the median of at least five.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import stpn
from stpn.bench import machine
from stpn.bench.contenders import Contender, medians_in_turns
from stpn.bench.machine import median_seconds

# Arithmetic of one synapse in one step: update and sums forward; twice the update (to checkpoints,
# then inside a segment) and the backward sweep. A fused multiply-add counts as two. ART's sequences
# are one segment, updated once: their share of the limit is somewhat less than it says.
FORWARD_FLOPS, BACKWARD_FLOPS = 10, 2 * 5 + 26


@dataclass(frozen=True)
class Case:
    """A core at the size of an experiment, with the speed it should reach over each baseline."""

    name: str
    model: str
    batch: int
    steps: int
    inputs: int
    hidden: int
    lstm: int | None = None
    """Hidden size of an LSTM with as many parameters."""
    targets: dict[str, float] = field(default_factory=dict)
    memory: bool = False
    """Compare the memory of forward and backward too."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.steps, self.inputs, self.hidden


CASES = (
    Case("art", "stpnr", 128, 9, 37, 11, 9, {"loop": 8, "compiled": 3, "lstm": 1}),
    Case("familiarity", "stpnr", 1, 5000, 100, 27, 21, {"loop": 140, "compiled": 60, "lstm": 1}),
    Case("maze", "stpnr", 512, 200, 17, 55, 47, {"loop": 45, "compiled": 5, "lstm": 1}, True),
    Case("pong", "stpnr", 64, 50, 2592, 64, 48, {"loop": 80}, True),
    Case("familiarity-hebbff", "hebbff", 1, 5000, 100, 100, None, {"loop": 40}),
    Case("maze-modplast", "modplast", 512, 200, 17, 73, None, {"loop": 15}),
    Case("art-fastweights", "fastweights", 128, 9, 37, 20, None, {"loop": 4}),
)


def names() -> list[str]:
    return [case.name for case in CASES]


def _forward_backward(core: Callable[..., Any], x: Tensor) -> Callable[[], None]:
    parameters = list(core.parameters()) if isinstance(core, nn.Module) else []

    def run() -> None:
        for parameter in parameters:
            parameter.grad = None
        y = core(x)[0]
        y.sum().backward()

    return run


def contender(case: Case, name: str) -> Callable[[], None]:
    """Forward and backward of the case by "native", "loop", "compiled" or "lstm"."""
    torch.manual_seed(0)
    core = _core(case)
    x = torch.randn(case.batch, case.steps, case.inputs)
    if name == "lstm":
        assert case.lstm
        return _forward_backward(nn.LSTM(case.inputs, case.lstm, batch_first=True), x)
    warnings.filterwarnings("error", "torch.compile")  # to fall back would be to time the loop
    stpn.use_backend({"loop": "reference"}.get(name, name))
    return _forward_backward(core, x)


def _core(case: Case) -> Any:
    return stpn.build(case.model, case.inputs, case.hidden, batch_first=True)


def parity(case: Case) -> float:
    """Largest difference of outputs and gradients from the specification in double precision, as a
    share of the largest entry; at full width, on few steps and sequences of the case."""
    torch.manual_seed(0)
    core = _core(case)
    exact = stpn.build(case.model, case.inputs, case.hidden, batch_first=True, dtype=torch.float64)
    exact.load_state_dict(core.state_dict())
    # as many sequences as let every thread take eight side by side, as at the full size
    sequences = min(case.batch, 8 * torch.get_num_threads())
    x = torch.randn(sequences, min(case.steps, 12), case.inputs)
    with stpn.use_backend("native"):
        y = core(x)[0]
        y.square().sum().backward()
    with stpn.use_backend("reference"):
        expected = exact(x.double())[0]
        expected.square().sum().backward()
    pairs = [(y.detach(), expected.detach())]
    pairs += [
        (a.grad, b.grad)
        for a, b in zip(core.parameters(), exact.parameters(), strict=True)
        if a.grad is not None and b.grad is not None
    ]
    return max(float((a - b).abs().max() / (1e-3 + b.abs().max())) for a, b in pairs)


@torch.no_grad()
def _metered(case: Case, repeats: int) -> dict[str, float]:
    """The forward pass with and without a meter, in turn: a machine's speed may drift."""
    core, x = _core(case), torch.randn(case.batch, case.steps, case.inputs)
    plain, metered = [], []
    for _ in range(repeats):
        plain.append(median_seconds(lambda: core(x), 1, 0, 0.03))
        with stpn.EnergyMeter(core):
            metered.append(median_seconds(lambda: core(x), 1, 0, 0.03))
    medians = statistics.median(plain), statistics.median(metered)
    return dict(zip(("native forward", "metered forward"), medians, strict=True))


def measure(case: Case, repeats: int, baselines: bool, limits: dict[str, float]) -> dict[str, Any]:
    """One row: seconds of each, ratios, synapse steps a second and the share of the machine."""
    error = parity(case)
    row: dict[str, Any] = {
        "case": case.name,
        "model": case.model,
        "shape": case.shape,
        "parity": error,
    }
    if not error < 1e-3:
        return row | {"refused": f"differs from the specification by {error:.1e}: not timed"}
    racing = ["native", *["lstm"] * bool(case.lstm)]
    if baselines:
        racing += ["loop", *["compiled"] * ("compiled" in case.targets)]
    repeats = max(repeats, 5)
    with ExitStack() as stack:
        entered = {n: stack.enter_context(Contender(contender, case, n)) for n in racing}
        seconds = medians_in_turns(entered, repeats)
        seconds |= entered["native"].do(_metered, case, repeats * 3)
    (start,) = _core(case).initial_state(1)
    synapses = sum(f.shape[1] * f.shape[2] for f in start if f.dim() == 3)
    rate = case.batch * case.steps * synapses / seconds["native"]
    ratios = {
        baseline: seconds[baseline] / seconds["native"]
        for baseline in ("loop", "compiled", "lstm")
        if baseline in seconds
    }
    row |= {
        "seconds": seconds,
        "ratios": ratios,
        "targets": case.targets,
        "synapse_steps_per_second": rate,
        "share_of_fma_limit": rate * (FORWARD_FLOPS + BACKWARD_FLOPS) / limits["flops"],
        "metered_over_plain": seconds["metered forward"] / seconds["native forward"],
    }
    return row


_MEMORY = """
import sys, torch, stpn
from stpn.bench import engine
from stpn.bench.training import peak_memory
case = next(case for case in engine.CASES if case.name == sys.argv[1])
stpn.use_backend(sys.argv[2])
core = stpn.build(case.model, case.inputs, case.hidden, batch_first=True)
small = torch.randn(2, 2, case.inputs)
core(small)[0].sum().backward()
x = torch.randn(case.batch, case.steps, case.inputs)
before = peak_memory()
core(x)[0].sum().backward()
print(peak_memory() - before)
"""


def extra_memory(case: str, backend: str) -> int:
    """Bytes by which forward and backward raise the peak of a fresh process."""
    command = [sys.executable, "-c", _MEMORY, case, backend]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return max(int(result.stdout), 1)


def streaming(repeats: int = 200) -> dict[str, Any]:
    """One step of a cell at the size of the maze, in place."""
    cell = stpn.STPNrCell(17, 55)
    x, state = torch.randn(512, 17), cell.initial_state(512)
    with torch.no_grad():
        seconds = median_seconds(lambda: cell(x, state, inplace=True), max(repeats, 5), 10)
    return {"case": "streaming cell", "shape": (512, 17, 55), "seconds": seconds, "target": 1.2e-3}


def reset_cost() -> list[dict[str, Any]]:
    """What a reset mask costs RNN and LSTM, forward and backward."""
    rows = []
    for model, hidden in (("rnn", 100), ("lstm", 47)):
        with (
            Contender(_with_reset, model, hidden, False) as plain,
            Contender(_with_reset, model, hidden, True) as masked,
        ):
            seconds = medians_in_turns({"plain": plain, "reset": masked}, 5)
        ratio = seconds["reset"] / seconds["plain"]
        rows.append({"case": f"reset mask of {model}", "ratio": ratio, "target": 1.5})
    return rows


def _with_reset(model: str, hidden: int, masked: bool) -> Callable[[], None]:
    core = stpn.build(model, 17, hidden, batch_first=True)
    x, reset = torch.randn(512, 200, 17), torch.rand(512, 200) < 0.02
    return _forward_backward(lambda x: core(x, None, reset if masked else None), x)


def run(
    cases: list[str], repeats: int, baselines: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Everything, as one JSON-able result."""
    say("limits of the machine")
    found = machine.limits()
    rows = []
    for case in CASES:
        if case.name in cases:
            say(f"{case.name}: {case.model} {case.shape}")
            row = measure(case, repeats, baselines, found)
            if case.memory and baselines:
                loop, native = (extra_memory(case.name, name) for name in ("reference", "native"))
                row["memory"] = {"loop": loop, "native": native, "share": native / loop}
            rows.append(row)
    say("streaming and reset masks")
    return {
        "machine": machine.describe(),
        "limits": found,
        "repeats": repeats,
        "cases": rows,
        "streaming": streaming(),
        "resets": reset_cost(),
    }
