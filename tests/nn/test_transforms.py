"""What records or transforms a call, on every core: the table of docs/transforms.md, by its rows.

Values and derivatives are compared with those of plain eager calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

import stpn

pytestmark = pytest.mark.filterwarnings(  # torch's own
    "ignore:.*torch.jit.script:DeprecationWarning"
)
BATCH, STEPS, INPUTS, HIDDEN = 2, 4, 3, 4
every_core = pytest.mark.parametrize("name", stpn.models())


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(name: str, **options: Any) -> Any:
    core = stpn.build(name, INPUTS, HIDDEN, batch_first=True, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def sequence() -> tuple[Tensor, Tensor]:
    reset = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    reset[0, 2] = True
    return torch.randn(BATCH, STEPS, INPUTS, dtype=torch.float64), reset


def gradient(core: nn.Module, x: Tensor, reset: Tensor | None = None) -> dict[str, Tensor]:
    """Of the sum of squares of y, by plain autograd on the kernels."""
    loss = core(x, None, reset)[0].square().sum()
    names, leaves = zip(*core.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, leaves), strict=True))


@every_core
def test_functional_call_and_grad(name: str) -> None:
    core, (x, reset) = build(name), sequence()
    own = dict(core.named_parameters())
    torch.testing.assert_close(functional_call(core, own, (x,))[0], core(x)[0])
    found = grad(lambda p: functional_call(core, p, (x, None, reset))[0].square().sum())(own)
    torch.testing.assert_close(found, gradient(core, x, reset))


@every_core
def test_vmap(name: str) -> None:
    """Over batches, with a mask; over models; and the gradients of each sample."""
    core, (_, reset) = build(name), sequence()
    many = torch.randn(3, BATCH, STEPS, INPUTS, dtype=torch.float64)
    expected = torch.stack([core(x, None, reset)[0] for x in many])
    torch.testing.assert_close(vmap(lambda x: core(x, None, reset)[0])(many), expected)

    cores = [build(name) for _ in range(3)]
    parameters, buffers = stack_module_state(cores)
    found = vmap(lambda p, b: functional_call(core, (p, b), (many[0],))[0])(parameters, buffers)
    torch.testing.assert_close(found, torch.stack([other(many[0])[0] for other in cores]))

    own = dict(core.named_parameters())
    each = vmap(
        grad(lambda p, x: functional_call(core, p, (x.unsqueeze(0),))[0].square().sum()),
        in_dims=(None, 0),
    )(own, many[0])
    for k in range(BATCH):
        one = {key: value[k] for key, value in each.items()}
        torch.testing.assert_close(one, gradient(core, many[0, k : k + 1]))


@every_core
def test_forward_mode_and_jacobians(name: str) -> None:
    core, (x, reset) = build(name), sequence()

    def run(x: Tensor) -> Tensor:
        return core(x, None, reset)[0]

    jacobian = torch.autograd.functional.jacobian(run, x)  # plain autograd
    torch.testing.assert_close(jacrev(run)(x), jacobian)
    torch.testing.assert_close(jacfwd(run)(x), jacobian)
    tangent = torch.randn_like(x)
    y, slope = jvp(run, (x,), (tangent,))
    torch.testing.assert_close(y, run(x))
    torch.testing.assert_close(slope, torch.einsum("bthcsi,csi->bth", jacobian, tangent))


@every_core
def test_second_derivatives(name: str) -> None:
    core, (x, reset) = build(name), sequence()
    leaf = x.clone().requires_grad_()
    loss = core(leaf, None, reset)[0].square().sum()
    (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), leaf)
    curvature = hessian(lambda x: core(x, None, reset)[0].square().sum())(x)
    expected = 2 * torch.einsum("btiasj,bti->asj", curvature, first.detach())
    torch.testing.assert_close(second, expected)


def test_what_the_kernels_do_not_do_is_said() -> None:
    core, (x, _) = build("stpnr"), sequence()
    with stpn.use_backend("native"), pytest.raises(ValueError, match=r"torch\.func"):
        vmap(lambda x: core(x.unsqueeze(0))[0])(x)


def test_vmap_of_a_step_that_overwrites_its_state_is_refused() -> None:
    core, (x, _) = build("stpnr"), sequence()
    state = core.initial_state(BATCH)
    with torch.no_grad(), pytest.raises(RuntimeError, match="vmap"):
        vmap(lambda x: core.step(x, state, inplace=True)[0])(x.transpose(0, 1))


class Net(nn.Module):
    """A model of one's own around a core."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.encoder = nn.Linear(INPUTS, INPUTS, dtype=torch.float64)
        self.core = build(name, **options)
        self.readout = nn.Linear(HIDDEN, 2, dtype=torch.float64)

    def forward(self, x: Tensor, reset: Tensor | None = None) -> Tensor:
        y, _ = self.core(self.encoder(x).relu(), None, reset)
        return self.readout(y)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "name",
    [n if n == "stpnr" else pytest.param(n, marks=pytest.mark.slow) for n in stpn.models()],
)
def test_a_compiled_model_takes_any_batch_with_two_graphs(name: str) -> None:
    """One for the first batch size, one for all others; values and gradients stay."""
    counters.clear()
    net = Net(name)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    costs = []
    for batch in (2, 3, 5, 4, 7):
        x, reset = (
            torch.randn(batch, STEPS, INPUTS, dtype=torch.float64),
            torch.rand(batch, STEPS) < 0.3,
        )
        start = time.process_time()
        y = compiled(x, reset)
        found = torch.autograd.grad(y.square().sum(), list(net.parameters()))
        costs.append(time.process_time() - start)
        expected = net(x, reset)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(
            found, torch.autograd.grad(expected.square().sum(), list(net.parameters()))
        )
    assert counters["stats"]["unique_graphs"] == 2
    # of the first call, which compiles, a small part is left
    assert min(costs[2:]) < 0.2 * costs[0]
