// From the options of a call to the plan that runs it.
#pragma once

#include "cells/fast_weights.h"
#include "cells/lstm.h"
#include "cells/modplast.h"
#include "cells/plain.h"
#include "job.h"
#include "kernels.h"

namespace stpn::STPN_ISA {

// A sequence of a lane across takes about `kAcross` of the time of a lane of its own, if F of all
// of the lane still fits a cache. A short one does not repay the way of its F into the lane and
// back.
constexpr double kAcross = 0.75;
constexpr idx kAcrossBytes = idx(1) << 20, kAcrossSteps = 8;

// Compiled only where it was measured, and where the sanitizers look; everywhere else along does as
// well.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kTriedAcross = true;
#else
constexpr bool kTriedAcross = kVectorBytes == 32;
#endif

// A reset of one sequence across is an update that makes zero of zeros, which takes rates that are
// finite.
template <class P> bool resets_across(const Call& c, idx R, idx D) {
  using T = Scalar<P>;
  if (!P::rates || !c.reset) return true;
  const auto rest = [&](int64_t address, bool per_row, bool per_column) {
    T sum = 0;
    for (idx k = 0; k < (per_row ? R : 1) * (per_column ? D : 1); ++k)
      sum += at<T>(address)[k] * T(0);
    return sum;
  };
  return rest(c.lambda, c.lambda_sr, c.lambda_sc) + rest(c.gamma, c.gamma_sr, c.gamma_sc) == T(0);
}

template <bool BACKWARD, class P, class C> bool goes_across(const Call& c) {
  using T = Scalar<P>;
  constexpr idx L = kLanes<T>;
  const bool possible = c.B % L == 0 && !c.lengths;
  if (BACKWARD && c.saved)
    return *at<T>(c.saved) == T(L) && possible;  // as the forward pass, by its heading
  const idx threads = threads_of(c), D = columns<C>(c);
  const double along = double(ceil_div(c.B, threads));
  const double across = kAcross * double(L * ceil_div(c.B / L, threads));
  const bool fits = c.H * D * idx(sizeof(T)) * L <= kAcrossBytes;
  return c.B && possible && c.T >= kAcrossSteps && fits && across < along &&
         resets_across<P>(c, c.H, D);
}

template <bool BACKWARD, class P, class C> void run_as(const Call& c) {
  using T = Scalar<P>;
  T* heading = at<T>(c.saved);
  if constexpr (BACKWARD) {
    if (heading && *heading != T(P::wide)) other_instruction_set();
    backward<P, C>(c);
  } else {
    if (heading) {
      clear(heading, c.saved_size);
      *heading = T(P::wide);
    }
    forward<P, C>(c);
  }
}

template <bool BACKWARD, class T, class C, Options O> void run_plan(const Call& c) {
  using P = Plan<T, O>;
  if (c.saved && c.saved_size < record_layout<P, C>(c.H, c.power_weight).size)
    invalid("saved: too small for the records of this call");
  if constexpr (kTriedAcross && C::across) {
    constexpr Options across{O.norm, O.clamp, O.power, O.alpha, O.own_pre, O.rates, true};
    if (goes_across<BACKWARD, P, C>(c)) return run_as<BACKWARD, Plan<T, across>, C>(c);
  }
  run_as<BACKWARD, P, C>(c);
}

// A backward pass runs as if there were no power where none has a gradient: a meter that only
// watches changes no bit of the gradients.
template <bool BACKWARD, class T, class C, Norm NORM, bool CLAMP> void run_clamped(const Call& c) {
  const bool power = BACKWARD ? c.dpower : c.power_weight;
  if constexpr (kEveryPlan<T, C>)
    if (!power) return run_plan<BACKWARD, T, C, options<C>(NORM, CLAMP, false)>(c);
  run_plan<BACKWARD, T, C, options<C>(NORM, CLAMP, true)>(c);
}

template <bool BACKWARD, class T, class C, Norm NORM> void run(const Call& c) {
  constexpr bool asked = C::clamp == Clamp::kAsked;
  if constexpr (asked && kEveryPlan<T, C>)
    if (!(c.clamp < __builtin_inf())) return run_clamped<BACKWARD, T, C, NORM, false>(c);
  run_clamped<BACKWARD, T, C, NORM, C::clamp != Clamp::kNever>(c);
}

// What a translation unit compiles: a cell with a norm, in both directions and precisions.
#define STPN_COMPILE_AS(T, cell, norm)                  \
  template void run<false, T, cell, norm>(const Call&); \
  template void run<true, T, cell, norm>(const Call&);
#if defined(STPN_FLOAT_ONLY)
#define STPN_COMPILE(cell, norm) STPN_COMPILE_AS(float, cell, norm)
#else
#define STPN_COMPILE(cell, norm) \
  STPN_COMPILE_AS(float, cell, norm) STPN_COMPILE_AS(double, cell, norm)
#endif

}  // namespace stpn::STPN_ISA
