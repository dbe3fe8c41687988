#include "../run.h"

namespace stpn::STPN_ISA {
STPN_COMPILE(ModPlast, kNormNone)
}  // namespace stpn::STPN_ISA
