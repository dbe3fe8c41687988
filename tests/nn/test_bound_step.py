"""A step bound to its tensors is `step` in place, bit for bit, for every core and option."""

from __future__ import annotations

import pytest
import torch
import torch.nn.utils.parametrize

from stpn import EnergyMeter, frozen_plasticity
from stpn.nn import STPNf, STPNr
from stpn.nn.registry import build, models

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BATCH, STEPS, INPUTS, HIDDEN = 3, 6, 4, 5
OPTIONS = [
    {},
    {"norm": "post", "clamp": 0.5, "plastic": "input"},
    {"norm": None, "clamp": 0.1, "stp": "neuron"},
    {"norm_scale": True, "rule": "oja", "stp": "uniform"},
    {"num_layers": 2},
    {"dtype": torch.float64},
    {"dtype": torch.bfloat16},
]


def compare(core: torch.nn.Module) -> None:
    dtype = next(core.parameters()).dtype
    inputs = torch.randn(STEPS, BATCH, INPUTS).to(dtype)
    reset = torch.rand(STEPS, BATCH) > 0.6
    x = torch.zeros(BATCH, INPUTS, dtype=dtype)
    state, bound_state = core.initial_state(BATCH), core.initial_state(BATCH)
    bound = core.bound_step(x, bound_state)
    with torch.no_grad():
        for t in range(STEPS):
            if t == 3:  # learning between two steps, in place
                for parameter in core.parameters():
                    parameter.mul_(1.5)
            mask = reset[t] if t % 2 else None
            y, state = core.step(inputs[t], state, mask, inplace=True)
            x.copy_(inputs[t])
            torch.testing.assert_close(bound(mask), y, rtol=0, atol=0)
            for layer, bound_layer in zip(state, bound_state, strict=True):
                torch.testing.assert_close(tuple(bound_layer), tuple(layer), rtol=0, atol=0)


@pytest.mark.parametrize("name", models())
def test_every_core(name: str) -> None:
    compare(build(name, INPUTS, HIDDEN, batch_first=True))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layer_type", [STPNf, STPNr])
def test_every_option(layer_type: type, options: dict) -> None:
    core = layer_type(INPUTS, HIDDEN, **options)
    with torch.no_grad():
        core.gamma_l0.mul_(1000)
    compare(core)


def test_a_meter_sees_bound_steps() -> None:
    core = STPNr(INPUTS, HIDDEN)
    x = torch.randn(BATCH, INPUTS)
    bound = core.bound_step(x, core.initial_state(BATCH))
    with EnergyMeter(core) as meter:
        bound()
    with EnergyMeter(core) as expected, torch.no_grad():
        core.step(x)
    assert meter.power == expected.power > 0


def test_frozen_synapses_stay_frozen_in_bound_steps() -> None:
    core = STPNr(INPUTS, HIDDEN)
    state = core.initial_state(BATCH)
    bound = core.bound_step(torch.randn(BATCH, INPUTS), state)
    bound()
    before = state[0].f.clone()
    with frozen_plasticity(core):
        bound()
    assert state[0].f.equal(before)
    bound()
    assert not state[0].f.equal(before)


class Doubled(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


@pytest.mark.parametrize("name", ["weight_l0", "bias_l0", "lambda_l0", "gamma_l0"])
def test_parametrised_parameters_are_read_at_every_step(name: str) -> None:
    core = STPNr(INPUTS, HIDDEN)
    torch.nn.utils.parametrize.register_parametrization(core, name, Doubled())
    compare(core)


def test_autograd_notices_the_changed_state() -> None:
    core = STPNr(INPUTS, HIDDEN)
    state = core.initial_state(BATCH)
    product = state[0].f * torch.ones(1, requires_grad=True)
    core.bound_step(torch.randn(BATCH, INPUTS), state)()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_wrong_tensors_are_refused_when_bound() -> None:
    core = STPNr(INPUTS, HIDDEN)
    state = core.initial_state(BATCH)
    with pytest.raises(ValueError, match="x: expected"):
        core.bound_step(torch.zeros(BATCH, INPUTS + 1), state)
    with pytest.raises(ValueError, match=r"state\[0\]"):
        core.bound_step(torch.zeros(BATCH + 1, INPUTS), state)
    with pytest.raises(ValueError, match="x: expected a contiguous tensor"):
        core.bound_step(torch.zeros(INPUTS, BATCH).t(), state)


def vector(core: torch.nn.Module) -> None:
    values = torch.nn.utils.parameters_to_vector(core.parameters()).detach() * 1.1
    torch.nn.utils.vector_to_parameters(values, core.parameters())


def data(core: torch.nn.Module) -> None:
    for parameter in core.parameters():
        parameter.data = parameter.data * 1.1


def assigned(core: torch.nn.Module) -> None:
    core.load_state_dict({n: v * 1.1 for n, v in core.state_dict().items()}, assign=True)


def replaced(core: torch.nn.Module) -> None:
    core.weight_l0 = torch.nn.Parameter(core.weight_l0.detach() * 1.1)


def shared(core: torch.nn.Module) -> None:
    core.share_memory()


def transposed(core: torch.nn.Module) -> None:
    """The same memory and shape, read in another order."""
    core.weight_l0.data = core.weight_l0.data.t().contiguous().t()


@pytest.mark.parametrize("swap", [vector, data, assigned, replaced, shared])
def test_parameters_that_get_other_memory_are_followed(swap) -> None:
    core = STPNr(INPUTS, HIDDEN)
    x, state, expected = torch.randn(BATCH, INPUTS), core.initial_state(BATCH), None
    bound = core.bound_step(x, state)
    bound()
    for _ in range(3):
        swap(core)
        junk = [torch.full((BATCH, HIDDEN, INPUTS + HIDDEN), 7.0) for _ in range(20)]
        with torch.no_grad():
            expected, _ = core.step(x, tuple(s.clone() for s in state))
        torch.testing.assert_close(bound(), expected, rtol=0, atol=0)
        del junk


@pytest.mark.parametrize("name", ["x", "h", "f"])
def test_tensors_that_get_other_memory_are_followed(name: str) -> None:
    core = STPNr(INPUTS, HIDDEN)
    x, (state,) = torch.randn(BATCH, INPUTS), core.initial_state(BATCH)
    bound = core.bound_step(x, (state,))
    bound()
    tensor = {"x": x, "h": state.h, "f": state.f}[name]
    tensor.set_(torch.randn(tensor.shape))
    with torch.no_grad():
        expected, _ = core.step(x, (state.clone(),))
    torch.testing.assert_close(bound(), expected, rtol=0, atol=0)


def double(core: torch.nn.Module, x: torch.Tensor, state) -> None:
    core.double()


def smaller(core: torch.nn.Module, x: torch.Tensor, state) -> None:
    x.resize_(BATCH - 1, INPUTS)


def emptied(core: torch.nn.Module, x: torch.Tensor, state) -> None:
    state.f.set_()


def freed(core: torch.nn.Module, x: torch.Tensor, state) -> None:
    core.weight_l0.untyped_storage().resize_(0)


def gone(core: torch.nn.Module, x: torch.Tensor, state) -> None:
    core._parameters["weight_l0"] = None


@pytest.mark.parametrize("change", [double, smaller, emptied, freed, gone])
def test_tensors_that_do_not_fit_any_more_are_an_error(change) -> None:
    core = STPNr(INPUTS, HIDDEN)
    x, (state,) = torch.randn(BATCH, INPUTS), core.initial_state(BATCH)
    bound = core.bound_step(x, (state,))
    bound()
    change(core, x, state)
    with pytest.raises((ValueError, TypeError), match="expected"):
        bound()


def test_a_parameter_that_is_not_contiguous_is_read_as_it_is() -> None:
    core = STPNr(INPUTS, HIDDEN)
    transposed(core)
    compare(core)
