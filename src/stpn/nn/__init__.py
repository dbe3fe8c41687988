"""Layers and cells."""

from stpn.nn.state import STPNlState as STPNlState
from stpn.nn.state import STPNState as STPNState
from stpn.nn.stpn import STPNf as STPNf
from stpn.nn.stpn import STPNfCell as STPNfCell
from stpn.nn.stpn import STPNl as STPNl
from stpn.nn.stpn import STPNlCell as STPNlCell
from stpn.nn.stpn import STPNr as STPNr
from stpn.nn.stpn import STPNrCell as STPNrCell
