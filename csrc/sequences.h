// Between the arrays of a call, where each sequence lies by itself, and those of a lane, where the
// sequences of a lane across lie side by side.
#pragma once

#include "lane.h"

namespace stpn::STPN_ISA {

// n values of each sequence, `stride` apart, into a lane's array, and back.
template <class P> void gather(Scalar<P>* to, const Scalar<P>* from, idx stride, idx n) {
  using T = Scalar<P>;
  if constexpr (!P::across) return copy(to, from, n);
  for (idx j = 0; j < n; ++j) {
    V<T> v{};
    for (int k = 0; k < kLanes<T>; ++k) v[k] = from[k * stride + j];
    store(to + j * P::wide, v);
  }
}
template <class P> void scatter(Scalar<P>* to, idx stride, const Scalar<P>* from, idx n) {
  if constexpr (!P::across) return copy(to, from, n);
  for (idx k = 0; k < P::wide; ++k)
    for (idx j = 0; j < n; ++j) to[k * stride + j] = from[j * P::wide + k];
}

// As gather, but the values stay where they are if a lane has only one sequence.
template <class P> const Scalar<P>* view(Scalar<P>* own, const Scalar<P>* from, idx stride, idx n) {
  if constexpr (!P::across) return from;
  gather<P>(own, from, stride, n);
  return own;
}

// A value for the sequence in place k of a lane, in all of one of the lane's arrays.
template <class P> STPN_INLINE void put(Scalar<P>* array, idx n, idx k, Scalar<P> value) {
  for (idx j = k; j < n; j += P::wide) array[j] = value;
}

}  // namespace stpn::STPN_ISA
