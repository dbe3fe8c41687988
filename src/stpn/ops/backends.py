"""Which implementation of the recurrences runs."""

from stpn.ops.reference import stpn, stpn_lstm, stpn_step_

__all__ = ["stpn", "stpn_lstm", "stpn_step_"]
