#include "../run.h"

namespace stpn::STPN_ISA {
STPN_COMPILE(Plain, kNormPost)
STPN_COMPILE(Lstm, kNormPost)
}  // namespace stpn::STPN_ISA
