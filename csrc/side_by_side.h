// Whether the sequences of a call lie side by side in vectors (layout.h: across).
#pragma once

#include "job.h"

namespace stpn::STPN_ISA {

// A sequence of a lane across takes about `kAcross` of the time of a lane of its own, if F of all
// of the lane still fits a cache. A short one does not repay the way of its F into the lane and
// back.
constexpr double kAcross = 0.75;
constexpr idx kAcrossBytes = idx(1) << 20, kAcrossSteps = 8;

// Compiled for AVX2, which also serves where there is AVX-512 (module.cpp), and where the
// sanitizers look. The baseline does as well without.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kTriedAcross = true;
#else
constexpr bool kTriedAcross = kVectorBytes == 32;
#endif

// A reset of one sequence across is an update that makes zero of zeros, which takes rates that are
// finite.
template <class T, class C> bool resets_across(const Call& c) {
  if (!C::rates || !c.reset) return true;
  const auto rest = [&](int64_t address, bool per_row, bool per_column) {
    const idx n = (per_row ? c.H : 1) * (per_column ? columns<C>(c) : 1);
    T sum = 0;
    for (idx k = 0; k < n; ++k) sum += at<T>(address)[k] * T(0);
    return sum;
  };
  return rest(c.lambda, c.lambda_sr, c.lambda_sc) + rest(c.gamma, c.gamma_sr, c.gamma_sc) == T(0);
}

// A backward pass does as the forward pass did, by the heading of its records.
template <class T, class C> bool goes_across(const Call& c, bool backward) {
  constexpr idx L = kLanes<T>;
  if (!kTriedAcross || !C::across || c.B < 1 || c.B % L != 0 || c.lengths) return false;
  if (backward && c.saved) return *at<T>(c.saved) == T(L);
  const idx threads = threads_of(c);
  const double along = double(ceil_div(c.B, threads));
  const double across = kAcross * double(L * ceil_div(c.B / L, threads));
  const bool fits = c.H * columns<C>(c) * idx(sizeof(T)) * L <= kAcrossBytes;
  return c.T >= kAcrossSteps && fits && across < along && resets_across<T, C>(c);
}

}  // namespace stpn::STPN_ISA
