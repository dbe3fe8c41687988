"""Cores on devices: parameters as cells hold them, and one step with all that happens inside it.

A converted core keeps its class as a base. `Analog` changes what the computation sees of the
parameters, and leaves it to the kernels; the classes after it replace the step by a plain one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn.analog import lines
from stpn.analog.cells import Cells, row_scale, straight_through
from stpn.energy import DeviceProfile
from stpn.nn.base import Parameters, Recurrence
from stpn.nn.state import (
    FastWeightsState,
    LSTMState,
    ModPlastState,
    RNNState,
    STPNlState,
    STPNState,
)
from stpn.ops.power import synaptic_power
from stpn.ops.stpn import reference
from stpn.ops.stpn.reference import STPNOptions


class Analog(Recurrence):
    """Faults that change parameters alone: any kernel runs on the result."""

    rates_in_step: ClassVar[bool] = False
    """Whether the spread of rates acts inside the step, as the kernel takes no rate per synapse."""
    profile: DeviceProfile
    devices: nn.ModuleDict
    """By layer: the cells of W."""
    _held: dict[str, tuple[Any, dict[str, Any]]]

    def set_up(self, profile: DeviceProfile, generator: torch.Generator, time: float) -> None:
        """Draw the devices."""
        self.profile, self._held = profile, {}
        self.devices = nn.ModuleDict()
        for input_size, suffix in self.layers:
            shapes = self.parameter_shapes(input_size)
            layer = nn.ModuleDict()
            rows = [shapes[name] for name in self._matrices(shapes)]
            layer["weight"] = Cells(profile, _joint(rows), generator, time)
            for name in ("modulator_weight",):
                if shapes.get(name):
                    size = (1, *shapes[name])  # type: ignore[misc]
                    layer[name] = Cells(profile, size, generator, time)
            layer["rates"] = Rates(profile, self._plastic_shape(input_size), generator)
            self.devices[suffix or "cell"] = layer
        self.devices.to(self.like.device)

    def _matrices(self, shapes: Mapping[str, Any]) -> list[str]:
        """The parameters that share their rows, and so the scale of each."""
        return [n for n, s in shapes.items() if s and len(s) == 2 and n.startswith("weight")]

    def _plastic_shape(self, input_size: int) -> tuple[int, ...]:
        """Of the short-term part of the synapses, if there is any."""
        return next((s for s in self.state_shapes(input_size) if len(s) == 2), (0, 0))

    def layer_parameters(self, suffix: str) -> dict[str, Any]:
        p = super().layer_parameters(suffix)
        keep = not (self.training or torch.is_grad_enabled())
        key = tuple((id(v), v._version) for v in p.values() if v is not None)
        if keep and suffix in self._held and self._held[suffix][0] == key:
            return self._held[suffix][1]
        layer: Any = self.devices[suffix or "cell"]
        names = [n for n in p if n.startswith("weight") and p[n] is not None and p[n].dim() == 2]
        joint = torch.cat([p[name] for name in names], dim=1)
        held = layer["weight"](joint)
        sizes = [p[name].shape[1] for name in names]
        changed = dict(zip(names, held.split(sizes, dim=1), strict=True))
        if "modulator_weight" in layer:
            vector = p["modulator_weight"].unsqueeze(0)
            changed["modulator_weight"] = layer["modulator_weight"](vector).squeeze(0)
        p = {
            **p,
            **changed,
            "joint": held,
            "scale": row_scale(joint).squeeze(1),
            "rates": layer["rates"].factors(),
        }
        if keep:
            self._held[suffix] = (key, p)
        return p


class Rates(nn.Module):
    """The spread of lambda and gamma from device to device."""

    draws: Tensor  # (2, R, D)

    def __init__(
        self, profile: DeviceProfile, shape: tuple[int, ...], generator: torch.Generator
    ) -> None:
        super().__init__()
        self.profile = profile
        draws = torch.randn(2, *shape, generator=generator)
        self.register_buffer("draws", draws, persistent=False)

    def factors(self) -> tuple[Tensor | None, Tensor | None]:
        """Of lambda and gamma (R, D), at least 0; None: they are as they should be."""
        draws = torch.randn_like(self.draws) if self.training else self.draws
        spreads = self.profile.lambda_spread, self.profile.gamma_spread
        lambda_, gamma = (
            (1 + spread * z).clamp_min(0.0) if spread else None
            for spread, z in zip(spreads, draws, strict=True)
        )
        return lambda_, gamma


class AnalogSynapses(Analog):
    """STPNs and HebbFF: rates of each synapse are operands of their kernels."""

    def operands(self, p: Parameters) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        core: Any = super()
        weight, bias, *rates = core.operands(p)
        lambda_, gamma = (
            rate if factor is None else rate * factor.to(rate.dtype)
            for rate, factor in zip(rates, p["rates"], strict=True)
        )
        return weight, bias, lambda_, gamma


class _Stepwise(Analog):
    """Plain steps, one after the other."""

    run = Recurrence.run
    run_in_place = Recurrence.run_in_place
    bind = Recurrence.bind

    def advance(self, x: Tensor, state: Any, p: Parameters) -> tuple[Tensor, Any]:
        return self._advance(x, state, p)

    def _advance(self, x: Tensor, state: Any, p: Parameters) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def _read(self, u: Tensor, p: Parameters) -> Tensor:
        """All rows of W on u."""
        return lines.read(p["joint"], u, p["scale"], self.profile)

    @torch.no_grad()
    def _updates(self, association: Tensor) -> Tensor:
        """What an update is multiplied by: noise of each, and less where F is lowered."""
        p = self.profile
        factor = torch.ones_like(association)
        if p.update_noise:
            factor = torch.randn_like(association).mul_(p.update_noise).add_(1)
        if p.update_asymmetry:
            half = p.update_asymmetry / 2  # where the association is 0, any factor does
            factor.mul_(association.sign().mul_(half).add_(1 - half))
        return factor

    def _kept(self, f: Tensor, scale: Tensor) -> Tensor:
        """F (B, R, D) within the range of its cells, in their levels."""
        p = self.profile
        if p.f_range is None:
            return f
        bound = (p.f_range * scale).unsqueeze(-1)  # (R, 1)
        f = torch.maximum(torch.minimum(f, bound), -bound)
        if p.f_bits is None:
            return f
        levels = 2 ** (p.f_bits - 1) - 1
        return straight_through(f, (f.detach() / bound * levels).round() / levels * bound)


class _PlasticStep(_Stepwise, AnalogSynapses):
    """What STPNs share: sums of W + F, divided by a norm that digital circuits compute."""

    def _options(self) -> STPNOptions:
        core: Any = self
        return core.options_in_use()

    def _sums(self, x: Tensor, state: Any, p: Parameters) -> tuple[Tensor, Tensor, Tensor | None]:
        """a (B, R) with bias, u (B, D) and the divisor n."""
        options = self._options()
        u = torch.cat([x, state.h], dim=-1) if options.recurrent else x
        total = p["weight"] + state.f
        a = lines.read(total, u, p["scale"], self.profile)
        n = None
        if options.norm is not None:
            n = reference.divisor(total, options)
            a = a / n.squeeze(-1)
            if p.get("norm_scale") is not None:
                a = a * p["norm_scale"]
        return (a if p["bias"] is None else a + p["bias"]), u, n

    def _update(
        self,
        x: Tensor,
        h: Tensor,
        u: Tensor,
        post: Tensor,  # (B, R)
        n: Tensor | None,
        f: Tensor,
        p: Parameters,
    ) -> Tensor:
        options = self._options()
        if options.frozen:
            return f
        weight, _, lambda_, gamma = self.operands(p)
        pre = reference.associated(x, h, u, options)
        if self.profile.update_noise or self.profile.update_asymmetry:
            gamma = gamma * self._updates(gamma * post.unsqueeze(-1) * pre.unsqueeze(-2))
        f = reference.plasticity(f, post, pre, n, weight, lambda_, gamma, options)
        return self._kept(f, p["scale"])


class NeuronStep(_PlasticStep):
    """STPNf and STPNr."""

    def _advance(self, x: Tensor, state: STPNState, p: Parameters) -> tuple[Tensor, STPNState]:
        a, u, n = self._sums(x, state, p)
        h = _NONLINEARITIES[self._options().nonlinearity](a)
        return h, STPNState(h, self._update(x, h, u, h, n, state.f, p))


class HebbFFStep(NeuronStep):
    def _options(self) -> STPNOptions:
        core: Any = self
        return core.stpn_options


class GatedStep(_PlasticStep):
    """STPNl."""

    def _advance(self, x: Tensor, state: STPNlState, p: Parameters) -> tuple[Tensor, STPNlState]:
        a, u, n = self._sums(x, state, p)
        a_i, a_f, a_g, a_o = a.chunk(4, dim=-1)
        gates = a_i.sigmoid(), a_f.sigmoid(), a_g.tanh(), a_o.sigmoid()
        c = gates[1] * state.c + gates[0] * gates[2]
        h = gates[3] * c.tanh()
        post = torch.cat(gates, dim=-1)
        return h, STPNlState(h, c, self._update(x, h, u, post, n, state.f, p))


class _FixedStep(_Stepwise):
    """Synapses that do not change; all gates see [x ; h_prev]."""

    def synapses(self, state: Any, p: Parameters) -> tuple[Tensor, Tensor]:
        g = p["joint"]
        return torch.zeros_like(g), g

    def _biases(self, a: Tensor, p: Parameters) -> Tensor:
        return a if p["bias_ih"] is None else a + (p["bias_ih"] + p["bias_hh"])


class RNNStep(_FixedStep):
    def _advance(self, x: Tensor, state: RNNState, p: Parameters) -> tuple[Tensor, RNNState]:
        core: Any = self
        a = self._biases(self._read(torch.cat([x, state.h], dim=-1), p), p)
        h = torch.tanh(a) if core.nonlinearity == "tanh" else torch.relu(a)
        return h, RNNState(h)


class LSTMStep(_FixedStep):
    def _advance(self, x: Tensor, state: LSTMState, p: Parameters) -> tuple[Tensor, LSTMState]:
        a = self._biases(self._read(torch.cat([x, state.h], dim=-1), p), p)
        i, f, g, o = a.chunk(4, dim=-1)
        c = f.sigmoid() * state.c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, LSTMState(h, c)


class GRUStep(_FixedStep):
    def _advance(self, x: Tensor, state: RNNState, p: Parameters) -> tuple[Tensor, RNNState]:
        """The candidate is two sums, of x and of h_prev: four rows of blocks in one array."""
        joint, scale, inputs = p["joint"], p["scale"], x.shape[-1]
        hidden = self.hidden_size
        candidate = joint[2 * hidden :]
        zeros = torch.zeros_like(candidate)
        from_x = torch.cat([candidate[:, :inputs], zeros[:, inputs:]], dim=1)
        from_h = torch.cat([zeros[:, :inputs], candidate[:, inputs:]], dim=1)
        blocks = torch.cat([joint[: 2 * hidden], from_x, from_h])
        scales = torch.cat([scale, scale[2 * hidden :]])
        a = lines.read(blocks, torch.cat([x, state.h], dim=-1), scales, self.profile)
        if p["bias_ih"] is not None:
            b_x, b_h = p["bias_ih"], p["bias_hh"]
            both = b_x[: 2 * hidden] + b_h[: 2 * hidden]
            a = a + torch.cat([both, b_x[2 * hidden :], b_h[2 * hidden :]])
        r, z, n_x, n_h = a.chunk(4, dim=-1)
        z = z.sigmoid()
        h = (1 - z) * torch.tanh(n_x + r.sigmoid() * n_h) + z * state.h
        return h, RNNState(h)


class MLPStep(_Stepwise):
    def _advance(self, x: Tensor, state: Any, p: Parameters) -> tuple[Tensor, Any]:
        a = self._read(x, p)
        return torch.tanh(a if p["bias"] is None else a + p["bias"]), state

    def synapses(self, state: Any, p: Parameters) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(p["joint"]), p["joint"]


class ModPlastStep(_Stepwise):
    """Modulated plasticity: the trace adds alpha * hebb to the recurrent half of each row."""

    rates_in_step = True

    def _advance(self, x: Tensor, state: ModPlastState, p: Parameters) -> tuple[Tensor, Any]:
        _, g = self.synapses(state, p)
        a = lines.read(g, torch.cat([x, state.h], dim=-1), p["scale"], self.profile)
        h = torch.tanh(a if p["bias"] is None else a + p["bias"])
        if self.frozen:
            return h, ModPlastState(h, state.hebb)
        if p["modulator_weight"] is not None:
            v = p["modulator_weight"].unsqueeze(0)
            signal = lines.read(v, h, row_scale(v).squeeze(1), self.profile)
            rate = torch.tanh(signal + p["modulator_bias"])  # (B, 1)
        else:
            rate = p["eta"].expand(len(h), 1)
        association = (rate * h).unsqueeze(-1) * state.h.unsqueeze(-2)
        association = association * self._updates(association)
        if p["rates"][1] is not None:
            association = association * p["rates"][1]
        hebb = (state.hebb + association).clamp(-1.0, 1.0)
        if self.profile.f_bits is not None:  # the trace has a range of its own, [-1, 1]
            levels = 2 ** (self.profile.f_bits - 1) - 1
            hebb = straight_through(hebb, (hebb.detach() * levels).round() / levels)
        return h, ModPlastState(h, hebb)


class FastWeightsStep(_Stepwise):
    """Fast weights: slow rows are read once, fast ones at each turn of the inner loop."""

    rates_in_step = True

    def _advance(self, x: Tensor, state: FastWeightsState, p: Parameters) -> tuple[Tensor, Any]:
        core: Any = self
        a = self._advanced(state, p)
        slow = self._read(torch.cat([x, state.h], dim=-1), p)
        slow = slow if p["bias"] is None else slow + p["bias"]
        h = self._activated(slow, p)
        for _ in range(core.steps):
            h = self._activated(slow + lines.read(a, h, p["scale"], self.profile), p)
        return h, FastWeightsState(h, a)

    def _advanced(self, state: FastWeightsState, p: Parameters) -> Tensor:
        core: Any = self
        if self.frozen:
            return state.a
        association = core.rate * state.h.unsqueeze(-1) * state.h.unsqueeze(-2)
        association = association * self._updates(association)
        decay, rate = p["rates"]
        a = core.decay * state.a if decay is None else core.decay * decay * state.a
        a = a + (association if rate is None else association * rate)
        return self._kept(a, p["scale"])

    def _activated(self, z: Tensor, p: Parameters) -> Tensor:
        core: Any = self
        normed = functional.layer_norm(z, z.shape[-1:], p["ln_weight"], p["ln_bias"], core.eps)
        return torch.tanh(normed)

    def _power_of_a_step(
        self, x: Tensor, state: FastWeightsState, p: Parameters, power_weight: Tensor
    ) -> Tensor:
        """Slow and fast synapses see different u; noise of this step is drawn apart."""
        core: Any = self
        u = torch.cat([x, state.h], dim=-1)
        power = (power_weight * u.square()) @ p["joint"].abs().sum(0)
        slow = u @ p["joint"].t()
        slow = slow if p["bias"] is None else slow + p["bias"]
        a, h = self._advanced(state, p), self._activated(slow, p)
        for _ in range(core.steps):
            inner = synaptic_power(h, a, power_weight[x.shape[-1] :])
            assert inner is not None
            power = power + inner
            h = self._activated(slow + (a @ h.unsqueeze(-1)).squeeze(-1), p)
        return power


_NONLINEARITIES = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu}


def _joint(shapes: list[Any]) -> tuple[int, int]:
    return shapes[0][0], sum(shape[1] for shape in shapes)
