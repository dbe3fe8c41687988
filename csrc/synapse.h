// The synapses of a lane, and one update of them: what the sweeps forward and backward share.
//
// One recurrence serves every plastic model here:
//     F_t = clamp(gamma * post_{t-1} pre_{t-1} + lambda * kept_{t-1} * F_{t-1})
//     G_t = W + eff_t * F_t            (W + alpha * F_t where a model has alpha)
//     row sums: G.u, G.G, |G|.(weighted u^2)
// with, per row, the post-synaptic factor `post`, the share of F that is `kept` beside lambda, and
// the scale `eff` of F inside G:
//     norm pre:  kept = 1/n, eff = 1
//     norm post: kept = eff = 1/||W + F||: F is stored before its division, so that the clamp and
//                its gradient stay exact
//     no norm:   kept = eff = 1
// The update that ends step t-1 is carried out at the start of step t, in the same sweep as the
// sums of step t: F is read and written once per step. (Norm post reads it again for power, and
// where W and F cancel.)
#pragma once

#include "layout.h"

namespace stpn::STPN_ISA {

// What a sweep sees of a lane.
template <class T> struct SweepLane {
  idx b;    // batch element, the first of them across
  idx len;  // number of steps

  // The present step; in the backward pass these are rows of the blocks of a segment.
  T *u, *u2;             // (Dp) u2: weighted squares of u, for power
  T *post, *kept, *eff;  // (Rp) of the update that the sweep makes; eff of the present F

  // Forward.
  const T* f_src;        // (R, Dp) F_{t-1}, or F_t where there is no update to make
  T* f_dst;              // (R, Dp) F_t
  T *u_prev, *pre_prev;  // (Dp) what the update associates with: u_prev ([x ; h_prev], or with the
                         // new h), unless a model has its own
  T *gu, *gg, *gp;       // (Rp) row sums; without a norm, gp's first vector holds all power
  T *fu, *fg, *fp;       // (Rp) row sums of F, which the backward pass of norm post needs

  // Backward, at step t. dF is dL/dF_{t+1} on entry of a sweep and dL/dF_t on leaving it, already
  // masked where F was clamped.
  T* dF;                           // (R, Dp)
  const T* F;                      // (R, Dp) F_t before its clamp
  T *post_prev, *kept_prev, *u_w;  // (Rp), (Rp), (Dp): of step t-1; u_w: weight * u, for power
  T* pre;                          // (Dp) what the update of step t associates with
  T *c1, *c2, *c3, *c4;  // (Rp) dG = c1 u + c2 G + c4 u2 sign(G), and c3 (W + F) from norm post
  T *s1, *s2;            // (Rp) sums for the step before
  T *du, *dpre;          // (Dp) of u_t; of pre_{t-1} where it is not u_{t-1}
  bool masked;           // F_t came out of a clamp: not so for an initial state
};

// What a row is divided by: its norm plus a tiny number, or 1 where all its synapses are zero. Or
// one is NaN, as in the specification: the others of its row are what they would be.
template <class T> STPN_INLINE V<T> divisor(V<T> square) {
  return square > V<T>{} ? sqrt<T>(square) + T(1e-16) : splat(T(1));
}
template <class P> STPN_INLINE Each<P> inverse_norm(Each<P> square) {
  return unspread<P>(Scalar<P>(1) / divisor<Scalar<P>>(spread<P>(square)));
}

// Factors of row i. Constants that all synapses share are multiplied into them.
template <class P> STPN_INLINE V<Scalar<P>> factor(const Scalar<P>* of_rows, idx i) {
  return spread<P>(get<P>(of_rows, i));
}
template <class P>
STPN_INLINE V<Scalar<P>> kept_of(const Synapses<Scalar<P>>& s, const Scalar<P>* kept, idx i) {
  return spread<P>(P::rates ? get<P>(kept, i) : get<P>(kept, i) * s.lambda);
}
template <class P>
STPN_INLINE V<Scalar<P>> post_of(const Synapses<Scalar<P>>& s, const Scalar<P>* post, idx i) {
  return spread<P>(P::rates ? get<P>(post, i) : get<P>(post, i) * s.gamma);
}
template <class P> STPN_INLINE V<Scalar<P>> lambda_at(const Scalar<P>* row, idx d) {
  if constexpr (P::rates) return parameter<P>(row, d, kLambda);
  else return V<Scalar<P>>{};
}
template <class P> STPN_INLINE V<Scalar<P>> gamma_at(const Scalar<P>* row, idx d) {
  if constexpr (P::rates) return parameter<P>(row, d, kGamma);
  else return V<Scalar<P>>{};
}

// F of the next step at column d of a row, before its clamp.
template <class P, class Vector = V<Scalar<P>>>
STPN_INLINE Vector updated(Vector f, Vector lambda, Vector gamma, Vector pre, Vector kept,
                           Vector post) {
  if constexpr (P::rates) return (lambda * f) * kept + (gamma * pre) * post;
  else return f * kept + pre * post;
}
template <class P> STPN_INLINE V<Scalar<P>> clamped(V<Scalar<P>> f, V<Scalar<P>> limit) {
  if constexpr (P::clamp) return clamp<Scalar<P>>(f, limit);
  else return f;
}

// Padding of a row of F is zero, but for an infinite `post`: 0 times infinity. A clamp makes finite
// numbers of the synapses, so their sums must not see it.
template <class P> STPN_INLINE void clear_padding(const Synapses<Scalar<P>>& s, Scalar<P>* row) {
  for (idx d = s.D * P::wide; d < s.Dp; ++d) row[d] = 0;
}

// The update that ends a sequence; norm post finds its last eff. The backward pass has and wants F
// as it is BEFORE its clamp.
template <class P, bool BEFORE>
STPN_INLINE void update_row(const Synapses<Scalar<P>>& s, SweepLane<Scalar<P>>& lane, idx i) {
  using T = Scalar<P>;
  const idx Dp = s.Dp;
  const V<T> post = post_of<P>(s, lane.post, i), kept = kept_of<P>(s, lane.kept, i);
  const V<T> limit = splat(s.clamp);
  const T *pre = P::own_pre ? lane.pre_prev : lane.u_prev, *row = parameter_row<P>(s, i);
  const T* src = lane.f_src + i * Dp;
  T* dst = lane.f_dst + i * Dp;
  for (idx d = 0; d < Dp; d += kLanes<T>) {
    const V<T> stored = load(src + d);
    const V<T> last = BEFORE && lane.masked ? clamped<P>(stored, limit) : stored;
    const V<T> f =
        updated<P>(last, lambda_at<P>(row, d), gamma_at<P>(row, d), load(pre + d), kept, post);
    store(dst + d, BEFORE ? f : clamped<P>(f, limit));
  }
  clear_padding<P>(s, dst);
  if constexpr (P::norm == kNormPost) {
    V<T> mm{};
    for (idx d = 0; d < Dp; d += kLanes<T>) {
      const V<T> g = parameter<P>(row, d, kW) + clamped<P>(load(dst + d), limit);
      mm += g * g;
    }
    set<P>(lane.eff, i, inverse_norm<P>(total<P>(mm)));
  }
}

template <class P, bool BEFORE>
__attribute__((noinline)) void update_sweep(const Synapses<Scalar<P>>& s,
                                            SweepLane<Scalar<P>>& lane) {
  for (idx i = 0; i < s.R; ++i) update_row<P, BEFORE>(s, lane, i);
}

}  // namespace stpn::STPN_ISA
