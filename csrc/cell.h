// What the recurrence asks of a kind of cell; each has a header of its own in cells/.
//
// Beside its traits a cell has five functions:
//     input      of an inner cell that makes u itself: u from its drive p and h
//     forward    row sums of a step -> activations h, and post and kept of its update; saves a
//     record recall     post, kept and eff of a step from its record and output backward   dL/dh
//     and the sums of the step after -> coefficients of the backward sweep propagate  after that
//     sweep: the gradient of the input
#pragma once

#include "call.h"
#include "simd.h"

namespace stpn::STPN_ISA {

enum class Clamp { kAsked, kAlways, kNever };

struct CellTraits {
  static constexpr idx rows = 1;        // rows of synapses per unit
  static constexpr bool inner = false;  // synapses lie between units, and x is added to their sums
  static constexpr bool own_u = false;  // u is not [x ; h]: the cell makes it
  static constexpr bool has_c = false;  // a cell state beside h
  static constexpr bool reads_y = false;  // `backward` wants the output of the step
  static constexpr bool updates_first =
      false;  // F is updated at the start of a step, by the state it gets
  static constexpr bool weight_apart = false;  // the weight is not the synapses': they are F alone
  static constexpr bool alpha = false, own_pre = false, rates = true;  // as in Options
  static constexpr Clamp clamp = Clamp::kAsked;
  static constexpr bool norms = true;       // rows may be normalised
  static constexpr bool strips = false;     // without recurrence, rows need nothing of each other
  static constexpr bool across = true;      // sequences may lie side by side
  static constexpr bool every_plan = true;  // also those without clamp or power (kernels.h)
  static constexpr idx saved_per_unit = 0, saved_per_step = 0;  // beside what norms and power save
  static double lambda(const Call&) { return 1; }               // of all synapses, without rates
  static double gamma(const Call&) { return 1; }
};

// Synapses per row.
template <class C> idx columns(const Call& c) {
  return C::inner ? c.H : c.I + (c.recurrent ? c.H : 0);
}

struct Plain;
struct Lstm;
struct ModPlast;
struct FastWeights;

}  // namespace stpn::STPN_ISA
