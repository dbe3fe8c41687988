"""Options that make comparisons fair, each against its definition in plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import stpn
from stpn.energy import EnergyMeter

B, T, I, H = 3, 5, 4, 3  # noqa: E741


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(1)
    core = stpn.build(name, I, H, batch_first=True, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def draw() -> Tensor:
    torch.manual_seed(2)
    return torch.randn(B, T, I, dtype=torch.float64)


def loop(core: Any, x: Tensor, gamma_of: Any, norm_f: bool = False) -> tuple[Tensor, Tensor]:
    """STPNr by its steps: all y, the last F."""
    p = core.layer_parameters("_l0")
    h, f = x.new_zeros(B, H), x.new_zeros(B, H, p["weight"].shape[1])
    ys = []
    for t in range(T):
        one = [x.new_ones(B, 1)] if core.plastic_bias else []
        u = torch.cat([x[:, t], *one, h], 1)
        g = p["weight"] + f
        n = 1.0 if norm_f else g.norm(dim=2, keepdim=True)
        a = torch.einsum("bij,bj->bi", g / n, u)
        if core.layer_norm:
            deviation = a.var(1, correction=0, keepdim=True).add(1e-5).sqrt()
            a = p["ln_weight"] * (a - a.mean(1, keepdim=True)) / deviation
        h = torch.tanh(a if p["bias"] is None else a + p["bias"])
        f = gamma_of(p) * torch.einsum("bi,bj->bij", h, u) + p["lambda"] * f / n
        if norm_f:
            f = f / f.norm(dim=2, keepdim=True)
        ys.append(h)
    return torch.stack(ys, 1), f


@pytest.mark.parametrize(
    "options", [{"decay": "after"}, {"plastic_bias": True}, {"layer_norm": True}, {"norm": "f"}]
)
def test_options_of_stpnr_are_their_definitions(options: dict[str, Any]) -> None:
    core, x = make("stpnr", **options), draw()
    after, norm_f = options.get("decay") == "after", options.get("norm") == "f"
    y, f = loop(core, x, lambda p: p["gamma"] * (p["lambda"] if after else 1), norm_f)
    actual, (state,) = core(x)
    assert_close(actual, y)
    assert_close(state.f, f)


def test_a_plastic_bias_costs_no_power() -> None:
    core, x = make("stpnr", plastic_bias=True), draw()
    with EnergyMeter(core) as meter:
        core(x)
    assert core.state_shapes(I)[1] == (H, I + 1 + H)
    total, (h, f) = 0.0, (torch.zeros(B, H).double(), torch.zeros(B, H, I + 1 + H).double())
    for t in range(T):
        g = core.weight_l0 + f
        g = (g / g.norm(dim=2, keepdim=True)).abs()
        total += (g[:, :, :I] * x[:, t].square().unsqueeze(1)).sum()
        total += (g[:, :, I + 1 :] * h.square().unsqueeze(1)).sum()
        _, (state,) = core(x[:, : t + 1])
        h, f = state.h, state.f
    assert meter.power == pytest.approx(total.item() / (B * T))


def test_rates_that_are_not_trained_stay_as_they_start() -> None:
    options = {"lambda_min": 0.9, "lambda_max": 0.9, "gamma_min": 0.02, "gamma_max": 0.03}
    core = stpn.STPNr(I, H, train_lambda=False, train_gamma=False, **options)
    assert (core.lambda_l0 == 0.9).all()
    assert 0.02 <= core.gamma_l0.min() < core.gamma_l0.max() <= 0.03
    assert {n for n, p in core.named_parameters() if p.requires_grad} == {"weight_l0", "bias_l0"}
    optimizer = torch.optim.Adam(core.parameters(), lr=0.1)
    core(torch.randn(T, B, I))[0].sum().backward()
    optimizer.step()
    assert (core.lambda_l0 == 0.9).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma_min": 0.1}, "gamma_max beside it"),
        ({"lambda_min": 0.9, "lambda_max": 0.1}, "at most lambda_max"),
        ({"plastic_bias": True, "bias": False}, "expected False with bias=False"),
        ({"norm": "f", "norm_scale": True}, "expected False with norm='f'"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stpn.STPNr(I, H, **options)


TORCH = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@pytest.mark.parametrize("name", TORCH)
def test_normalised_weights_are_torchs_own_with_rows_of_norm_one(name: str) -> None:
    core, x = make(name, normalize=True), draw()
    plain = TORCH[name](I, H, batch_first=True, dtype=torch.float64)
    weights = torch.cat([core.weight_ih_l0, core.weight_hh_l0], 1).detach()
    weights = weights / weights.square().sum(1, keepdim=True).sqrt()
    own = {k: v for k, v in core.state_dict().items() if k.startswith("bias")}
    plain.load_state_dict({"weight_ih_l0": weights[:, :I], "weight_hh_l0": weights[:, I:], **own})
    y, _ = core(x)
    assert_close(y, plain(x)[0])
    with EnergyMeter(core) as meter:
        core(x)
    u = torch.cat([x, torch.cat([torch.zeros(B, 1, H), y[:, :-1]], 1)], 2)
    power = torch.einsum("btj,ij->bt", u.square(), weights.abs()).mean()
    assert meter.power == pytest.approx(power.item())


@pytest.mark.parametrize("name", ["modplast", "fastweights", "hebbff", "mlp"])
def test_normalised_baselines_are_the_plain_ones_with_rows_of_norm_one(name: str) -> None:
    core, plain, x = make(name, normalize=True), make(name), draw()
    with torch.no_grad():
        names = [n for n in ("weight_ih_l0", "weight_hh_l0", "weight_l0") if hasattr(plain, n)]
        rows = torch.cat([getattr(core, n) for n in names], 1).norm(dim=1, keepdim=True)
        for n in names:
            getattr(plain, n).copy_(getattr(core, n) / rows)
    assert_close(core(x)[0], plain(x)[0])
    with EnergyMeter(core) as meter:
        core(x)
    with EnergyMeter(plain) as expected:
        plain(x)
    assert meter.power == pytest.approx(expected.power)


@pytest.mark.parametrize("name", TORCH)
def test_layer_norm_in_cells_is_its_definition(name: str) -> None:
    core, x = make(name, layer_norm=True), draw()
    p = core.layer_parameters("_l0")

    def ln(a: Tensor, bias: Tensor) -> list[Tensor]:
        parts = [(v - v.mean(1, True)) / (v.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
                 for v in a.split(H, 1)]  # fmt: skip
        return list((p["ln_weight"] * torch.cat(parts, 1) + bias).split(H, 1))

    h = c = torch.zeros(B, H, dtype=torch.float64)
    for t in range(T):
        from_x, from_h = x[:, t] @ p["weight_ih"].T, h @ p["weight_hh"].T
        gates = ln(from_x + from_h, p["bias_ih"] + p["bias_hh"])
        if name == "rnn":
            h = gates[0].tanh()
        elif name == "lstm":
            i, f, g, o = gates
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        else:
            r, z = gates[0].sigmoid(), gates[1].sigmoid()
            n = (ln(from_x, p["bias_ih"])[2] + r * ln(from_h, p["bias_hh"])[2]).tanh()
            h = (1 - z) * n + z * h
    assert_close(core(x)[0][:, -1], h)


@pytest.mark.parametrize(
    ("constraint", "free", "rates"),
    [
        ("anti-hebbian", (0.0, 0.0), (0.5, -1.0)),
        ("hebbian", (0.0, 0.0), (0.5, 1.0)),
        ("clipped", (1.2, -0.3), (1.0, -0.3)),
        ("time-constant", (20.0, 0.3), (0.95, 0.3)),
    ],
)
def test_forms_of_hebbff(constraint: str, free: tuple[float, float], rates: Any) -> None:
    core = stpn.HebbFF(I, 10, constraint=constraint)
    ((lambda_, eta),) = core.plasticity()
    forced = constraint.endswith("hebbian")
    expected = (5 / 10 if constraint == "hebbian" else -5 / 10) if forced else -5 / I
    assert [lambda_.item(), eta.item()] == pytest.approx([0.99, expected])
    with torch.no_grad():
        core.lambda_l0.fill_(free[0])
        core.eta_l0.fill_(free[1])
    assert [v.item() for v in core.plasticity()[0]] == pytest.approx(rates)


def test_retroactive_modulation_is_its_definition() -> None:
    core, x = make("modul"), draw()
    p = core.layer_parameters("_l0")
    h, hebb = torch.zeros(B, H).double(), torch.zeros(B, H, H).double()
    trace = torch.zeros_like(hebb)
    for t in range(T):
        before = h
        g = p["weight_hh"] + p["alpha"] * hebb
        h = torch.tanh(x[:, t] @ p["weight_ih"].T + p["bias"] + (g @ h.unsqueeze(2)).squeeze(2))
        m = torch.tanh((h * p["modulator_weight"]).sum(1) + p["modulator_bias"])
        hebb = (hebb + m[:, None, None] * trace).clamp(-1, 1)
        trace = (1 - p["eta"]) * trace + p["eta"] * h[:, :, None] * before[:, None, :]
    y, (state,) = core(x)
    assert_close((y[:, -1], state.hebb, state.trace), (h, hebb, trace))
    assert hebb.abs().max() > 0.01
