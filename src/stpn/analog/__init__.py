"""The same network on devices with faults.

    pcm = stpn.energy.profile("pcm")
    broken = stpn.analog.convert(network, pcm, seed=3, time=3600)    # an hour after programming
    broken(x)

It is a torch module with the parameters, names and calls of the original: the meter reads it, an
optimizer trains it, its `state_dict` fits both ways. In evaluation mode it is one set of devices,
drawn by `seed`; noise of reading and of updates comes from torch's generator, as dropout does. In
training mode devices are drawn anew at each call and gradients pass straight through all faults:
that is hardware-aware training.

Two groups of faults. Those of W (programming noise, bits, drift, stuck cells) and, in STPNs and
HebbFF, the spread of lambda and gamma only change parameters: the kernels run as ever. What happens
inside a step (converters, noise of reading, bits and range of F, noise and asymmetry of its
updates; in Fast Weights and ModPlast the spread of rates too) needs the plain step of
`stpn.analog.cores`, one time step after the other in PyTorch; `stpn.analog.in_step(profile)` names
those of a profile.
"""

from stpn.analog.convert import convert as convert
from stpn.analog.lines import in_step as in_step
