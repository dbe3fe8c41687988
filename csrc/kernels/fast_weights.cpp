#include "../run.h"

namespace stpn::STPN_ISA {
STPN_COMPILE(FastWeights, kNormNone)
}  // namespace stpn::STPN_ISA
