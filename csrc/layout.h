// How synapses lie in memory, and what a plan says about them at compile time.
//
// Notation: R rows (neurons, or gates of neurons), D synapses per row.
//
// A vector lies either along a row, L synapses of one sequence, or across sequences, one synapse of
// each of L. Along is for few sequences and long rows. Across needs no sums over the elements of a
// vector, which cost as much as the synapses of a short row do. A lane is what goes through time
// together: one sequence, or L of them across. All its arrays are its own, the parameters are shared:
//     along   u (Dp): D padded to whole vectors    of rows (Rp): R padded     F (R, Dp)
//     across  u (Dp): D x L                        of rows (Rp): R x L        F (R, D x L)
#pragma once

#include "call.h"
#include "simd.h"

namespace stpn::STPN_ISA {

// What a model needs of the sweeps, fixed at compile time.
template <class T_, bool ACROSS, int NORM, bool CLAMP, bool POWER, bool ALPHA = false, bool OWN_PRE = false, bool RATES = true>
struct Plan {
  using T = T_;
  static constexpr bool across = ACROSS;
  static constexpr int wide = ACROSS ? kLanes<T> : 1;  // sequences in a lane
  using Across = Plan<T, true, NORM, CLAMP, POWER, ALPHA, OWN_PRE, RATES>;
  static constexpr int norm = NORM;
  static constexpr bool clamp = CLAMP;
  static constexpr bool power = POWER;
  static constexpr bool alpha = ALPHA;      // G = W + alpha * F
  static constexpr bool own_pre = OWN_PRE;  // the update's pre-synaptic vector is not u
  static constexpr bool rates = RATES;      // synapses have lambda and gamma; else all share two constants
  static_assert(!(OWN_PRE && RATES));
};

template <class P> using Row = typename P::T;

// A number of a row, for each sequence of a lane.
template <class P, bool ACROSS = P::across> struct EachOf { using type = V<Row<P>>; };
template <class P> struct EachOf<P, false> { using type = Row<P>; };
template <class P> using Each = typename EachOf<P>::type;

template <class P> STPN_INLINE Each<P> get(const Row<P>* of_rows, idx i) {
  if constexpr (P::across) return load(of_rows + i * P::wide);
  else return of_rows[i];
}
template <class P> STPN_INLINE void set(Row<P>* of_rows, idx i, Each<P> value) {
  if constexpr (P::across) store(of_rows + i * P::wide, value);
  else of_rows[i] = value;
}
template <class P> STPN_INLINE V<Row<P>> spread(Each<P> value) {
  if constexpr (P::across) return value;
  else return splat(value);
}
template <class P> STPN_INLINE Each<P> unspread(V<Row<P>> v) {
  if constexpr (P::across) return v;
  else return v[0];
}
template <class P> STPN_INLINE Each<P> total(V<Row<P>> v) {
  if constexpr (P::across) return v;
  else return sum(v);
}

// Parameters of a synapse, and the gradients of them. Gradients are stored vector by vector, so that
// a sweep follows one pointer: (R, Dp / lanes, slots, lanes), padding zero. So are parameters along;
// across they are the same for a whole vector: (R, D, slots).
enum Slot { kW, kLambda, kGamma };
template <class P> constexpr int kAlpha = P::rates ? 3 : 1;
template <class P> constexpr int kSlots = kAlpha<P> + (P::alpha ? 1 : 0);

template <class T> struct Synapses {
  idx R, D, Dp, Rp;
  const T* parameters;
  const T* squares;  // (R) sums of W^2, for norm post
  T clamp;
  T lambda, gamma;  // of all synapses, in plans without rates
};

// Of synapse j of row i, and of the first sequence across.
template <class P> STPN_INLINE idx gradient_index(idx Dp, idx i, idx j, int which) {
  constexpr idx L = kLanes<typename P::T>;
  const idx d = j * P::wide;
  return (i * Dp + d / L * L) * kSlots<P> + which * L + d % L;
}
template <class P> STPN_INLINE idx parameter_index(idx Dp, idx i, idx j, int which) {
  if constexpr (P::across) return (i * (Dp / P::wide) + j) * kSlots<P> + which;
  else return gradient_index<P>(Dp, i, j, which);
}

// The vector of one slot at element d (a multiple of lanes) of a row of gradients.
template <class P, class T> STPN_INLINE T* slot(T* row, idx d, int which) {
  return row + d * kSlots<P> + which * kLanes<typename P::T>;
}
template <class P> STPN_INLINE const Row<P>* parameter_row(const Synapses<Row<P>>& s, idx i) {
  return s.parameters + i * (s.Dp / P::wide) * kSlots<P>;
}
template <class P> STPN_INLINE V<Row<P>> parameter(const Row<P>* row, idx d, int which) {
  if constexpr (P::across) return splat(row[idx(size_t(d) / P::wide) * kSlots<P> + which]);
  else return load(slot<P>(row, d, which));
}

}  // namespace stpn::STPN_ISA
