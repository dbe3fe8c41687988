#include "../run.h"

namespace stpn::STPN_ISA {
STPN_COMPILE(Plain, kNormNone)
STPN_COMPILE(Lstm, kNormNone)
}  // namespace stpn::STPN_ISA
