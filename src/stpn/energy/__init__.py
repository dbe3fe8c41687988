"""The power that the synapses of a model draw: one instrument for all models.

    P = sum over synapses of u_j^2 |g_ij|        (the paper's measure)

u is what a synapse sees, as a voltage, g its efficacy, as a conductance. Plastic cores report the
power of each step out of their recurrences; that of other layers is worked out from what goes into
and comes out of them.
"""

from stpn.energy.device import DeviceProfile as DeviceProfile
from stpn.energy.meter import EnergyMeter as EnergyMeter
