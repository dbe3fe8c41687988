#include "../run.h"

namespace stpn::STPN_ISA {
STPN_COMPILE(Plain, kNormPre)
STPN_COMPILE(Lstm, kNormPre)
}  // namespace stpn::STPN_ISA
