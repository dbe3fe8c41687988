"""The power that the synapses of a model draw: one instrument for all models.

    P = sum over synapses of u_j^2 |g_ij|        (the paper's measure)

u is what a synapse sees, as a voltage, g its efficacy, as a conductance. Plastic cores report the
power of each step out of their recurrences; that of other layers is worked out from what goes into
and comes out of them.

On a device there is more: converters, the writing of F, norms. `EnergyMeter.energy(profile)`
estimates all of it, in joules per time step by named terms (`stpn.energy.terms`), from what a
`DeviceProfile` assumes; `stpn.energy.profile("pcm")` reads one.
"""

from stpn.energy.balance import Balance as Balance
from stpn.energy.balance import balance as balance
from stpn.energy.device import Assumption as Assumption
from stpn.energy.device import DeviceProfile as DeviceProfile
from stpn.energy.meter import EnergyMeter as EnergyMeter
from stpn.energy.profiles import profile as profile
from stpn.energy.profiles import profiles as profiles
from stpn.energy.terms import Energy as Energy
from stpn.energy.terms import Terms as Terms
