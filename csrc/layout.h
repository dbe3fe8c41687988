// How synapses lie in memory, and what a plan says about them at compile time.
//
// Notation: R rows (neurons, or gates of neurons), D synapses per row.
//
// A vector lies either along a row, L synapses of one sequence, or across sequences, one synapse of
// each of L. Along is for few sequences and long rows. Across needs no sums over the elements of a
// vector, which cost as much as the synapses of a short row do. A lane is what goes through time
// together: one sequence, or L of them across. All its arrays are its own, the parameters are
// shared:
//     along   u (Dp): D padded to whole vectors    of rows (Rp): R padded     F (R, Dp)
//     across  u (Dp): D x L                        of rows (Rp): R x L        F (R, D x L)
#pragma once

#include "call.h"
#include "simd.h"

namespace stpn::STPN_ISA {

// What a model needs of the sweeps.
struct Options {
  Norm norm = kNormNone;
  bool clamp = false;
  bool power = false;
  bool alpha = false;    // G = W + alpha * F
  bool own_pre = false;  // the update's pre-synaptic vector is not u
  bool rates = true;     // synapses have lambda and gamma; else all share two constants
  bool across = false;   // sequences lie side by side in a vector
};

template <class T_, Options O> struct Plan {
  using T = T_;
  static constexpr Norm norm = O.norm;
  static constexpr bool clamp = O.clamp, power = O.power, alpha = O.alpha, own_pre = O.own_pre;
  static constexpr bool rates = O.rates, across = O.across;
  static constexpr int wide = across ? kLanes<T> : 1;  // sequences in a lane
  static_assert(!(own_pre && rates));
};

template <class P> using Scalar = typename P::T;

// A number of a row, for each sequence of a lane.
template <class P, bool ACROSS = P::across> struct EachOf {
  using type = V<Scalar<P>>;
};
template <class P> struct EachOf<P, false> {
  using type = Scalar<P>;
};
template <class P> using Each = typename EachOf<P>::type;

template <class P> STPN_INLINE Each<P> get(const Scalar<P>* of_rows, idx i) {
  if constexpr (P::across) return load(of_rows + i * P::wide);
  else return of_rows[i];
}
template <class P> STPN_INLINE void set(Scalar<P>* of_rows, idx i, Each<P> value) {
  if constexpr (P::across) store(of_rows + i * P::wide, value);
  else of_rows[i] = value;
}
template <class P> STPN_INLINE V<Scalar<P>> spread(Each<P> value) {
  if constexpr (P::across) return value;
  else return splat(value);
}
template <class P> STPN_INLINE Each<P> unspread(V<Scalar<P>> v) {
  if constexpr (P::across) return v;
  else return v[0];
}
template <class P> STPN_INLINE Each<P> total(V<Scalar<P>> v) {
  if constexpr (P::across) return v;
  else return sum(v);
}

// Parameters of a synapse, and the gradients of them. Gradients are stored vector by vector, so
// that a sweep follows one pointer: (R, Dp / lanes, slots, lanes), padding zero. So are parameters
// along; across they are the same for a whole vector: (R, D, slots).
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
  constexpr idx L = kLanes<Scalar<P>>;
  const idx d = j * P::wide;
  return (i * Dp + d / L * L) * kSlots<P> + which * L + d % L;
}
template <class P> STPN_INLINE idx parameter_index(idx Dp, idx i, idx j, int which) {
  if constexpr (P::across) return (i * (Dp / P::wide) + j) * kSlots<P> + which;
  else return gradient_index<P>(Dp, i, j, which);
}

// The vector of one slot at element d (a multiple of lanes) of a row of gradients.
template <class P, class T> STPN_INLINE T* slot(T* row, idx d, int which) {
  return row + d * kSlots<P> + which * kLanes<Scalar<P>>;
}
template <class P> STPN_INLINE const Scalar<P>* parameter_row(const Synapses<Scalar<P>>& s, idx i) {
  return s.parameters + i * (s.Dp / P::wide) * kSlots<P>;
}
template <class P> STPN_INLINE V<Scalar<P>> parameter(const Scalar<P>* row, idx d, int which) {
  if constexpr (P::across) return splat(row[idx(size_t(d) / P::wide) * kSlots<P> + which]);
  else return load(slot<P>(row, d, which));
}

}  // namespace stpn::STPN_ISA
