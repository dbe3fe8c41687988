// From the options of a call to the plan that runs it.
#pragma once

#include "cells/fast_weights.h"
#include "cells/lstm.h"
#include "cells/modplast.h"
#include "cells/plain.h"
#include "job.h"
#include "kernels.h"
#include "side_by_side.h"

namespace stpn::STPN_ISA {

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
    if (goes_across<T, C>(c, BACKWARD)) return run_as<BACKWARD, Plan<T, across>, C>(c);
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
