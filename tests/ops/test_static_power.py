"""The kernel that adds the power of static synapses, against its definition in torch."""

import pytest
import torch

from stpn.ops import backends
from stpn.ops.power import static_power

pytest.importorskip("stpn._native", reason="the kernels are not built")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inputs", [1, 3, 8, 37])
def test_adds_what_the_definition_says(dtype, inputs):
    torch.manual_seed(inputs)
    weight = torch.randn(5, inputs + 4, dtype=dtype)[:, :inputs]  # rows with gaps, as of W_x
    u = torch.randn(7, 3, inputs, dtype=dtype).transpose(0, 1)  # (B, T, D) in another order
    counted = (torch.arange(2 * inputs) % 3 > 0).to(dtype)[::2]  # not in one piece
    power = torch.rand(3, 7, dtype=dtype)
    with backends.use_backend("native"):
        for before in (power, power.t().contiguous().t()):  # it may be overwritten
            added = backends.plus_static_power(before.clone(), u, weight, counted, graph=False)
            torch.testing.assert_close(added, power + static_power(u, weight, counted))


def test_graph_on_demand():
    weight = torch.randn(5, 4, requires_grad=True)
    arguments = torch.rand(2, 3), torch.randn(2, 3, 4), weight, torch.ones(4)
    assert not backends.plus_static_power(*arguments, graph=False).requires_grad
    backends.plus_static_power(*arguments, graph=True).sum().backward()
    assert weight.grad.abs().sum() > 0


def test_refuses_other_dtypes():
    with backends.use_backend("native"), pytest.raises(TypeError, match="weight"):
        backends.plus_static_power(
            torch.rand(2, 3), torch.randn(2, 3, 4), torch.randn(5, 4).double(), torch.ones(4),
            graph=False,
        )  # fmt: skip


def test_refuses_other_shapes():
    with backends.use_backend("native"), pytest.raises(ValueError, match="power_weight"):
        backends.plus_static_power(
            torch.rand(2, 3), torch.randn(2, 3, 4), torch.randn(5, 4), torch.ones(3), graph=False
        )
