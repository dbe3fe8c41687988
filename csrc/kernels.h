// The kernels of one instruction set, as its table sees them: each is compiled apart (kernels/).
#pragma once

#include "cell.h"
#include "layout.h"

namespace stpn::STPN_ISA {

// Plans without a clamp or without power are compiled only where the experiments spend their time:
// elsewhere an infinite limit and weights of zero do the same. It keeps the build short.
#if defined(__x86_64__) && !defined(__AVX2__)
constexpr bool kSeldomUsed = true;  // the baseline where nearly every machine has more
#else
constexpr bool kSeldomUsed = false;
#endif
template <class T, class C>
constexpr bool kEveryPlan = sizeof(T) == sizeof(float) && C::every_plan && !kSeldomUsed;

template <class C> constexpr Options options(Norm norm, bool clamp, bool power) {
  return {.norm = norm,
          .clamp = clamp,
          .power = power,
          .alpha = C::alpha,
          .own_pre = C::own_pre,
          .rates = C::rates};
}

template <bool BACKWARD, class T, class C, Norm NORM> void run(const Call& c);

}  // namespace stpn::STPN_ISA
