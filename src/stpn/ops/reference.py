"""The backend `reference`: the specification of every recurrence, in plain PyTorch."""

from __future__ import annotations

from stpn.ops.delta_rule.reference import delta_rule as delta_rule
from stpn.ops.fast_weights.reference import fast_weights as fast_weights
from stpn.ops.gla.reference import gated_linear_attention as gated_linear_attention
from stpn.ops.gradient_plasticity.reference import gradient_plasticity as gradient_plasticity
from stpn.ops.modplast.reference import modplast as modplast
from stpn.ops.power import plus_static_power as plus_static_power
from stpn.ops.registry import Backend
from stpn.ops.stpn.reference import STPNOptions as STPNOptions
from stpn.ops.stpn.reference import efficacies as efficacies
from stpn.ops.stpn.reference import stpn as stpn
from stpn.ops.stpn.reference import stpn_lstm as stpn_lstm
from stpn.ops.stpn.reference import stpn_lstm_step_ as stpn_lstm_step_
from stpn.ops.stpn.reference import stpn_step_ as stpn_step_

_SPECIFICATIONS = {
    function.__name__: function
    for function in (
        stpn, stpn_lstm, stpn_step_, stpn_lstm_step_, modplast, fast_weights, plus_static_power,
        delta_rule, gated_linear_attention, gradient_plasticity,
    )
}  # fmt: skip


class Reference(Backend):
    name = "reference"
    detail = "plain PyTorch, any device and option"
    recurrences = _SPECIFICATIONS
