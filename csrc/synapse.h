// Sweeps over synapses: everything that costs one operation per synapse and time step.
//
// Notation: R rows (neurons, or gates of neurons), D synapses per row, padded to Dp.
// A lane is one batch element; all its arrays are its own, the parameters are shared.
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
// The update that ends step t-1 is carried out at the start of step t, in the same sweep as the sums
// of step t: F is read and written once per step.
#pragma once

#include "simd.h"

namespace stpn::STPN_ISA {

enum Norm { kNormNone, kNormPre, kNormPost };

// What a model needs of the sweeps, fixed at compile time.
template <class T_, int NORM, bool CLAMP, bool POWER, bool ALPHA = false, bool OWN_PRE = false, bool RATES = true>
struct Plan {
  using T = T_;
  static constexpr int norm = NORM;
  static constexpr bool clamp = CLAMP;
  static constexpr bool power = POWER;
  static constexpr bool alpha = ALPHA;      // G = W + alpha * F
  static constexpr bool own_pre = OWN_PRE;  // the update's pre-synaptic vector is not u
  static constexpr bool rates = RATES;      // gradients of lambda and gamma are wanted
  static_assert(!(OWN_PRE && RATES));
};

// What a row is divided by: its norm plus a tiny number, or 1 where all its synapses are zero.
template <class T> STPN_INLINE T divisor(T square) {
  if (!(square > T(0))) return square == T(0) ? T(1) : square;  // a NaN stays one
  return (sizeof(T) == 4 ? T(__builtin_sqrtf(float(square))) : T(__builtin_sqrt(double(square)))) + T(1e-16);
}

template <class T> struct Synapses {  // (R, Dp) each, padding zero
  idx R, D, Dp, Rp;
  const T *w, *lambda, *gamma, *alpha;
  T clamp;
};

template <class T> struct SynapseGradients {  // (R, Dp) each, of one thread
  T *w, *lambda, *gamma, *alpha;
};

template <class T> struct Lane {
  idx b;    // batch element
  idx len;  // its number of steps

  // Forward.
  const T* f_src;  // (R, Dp) F_{t-1}, or F_t where there is no update to make
  T* f_dst;        // (R, Dp) F_t
  T *u, *u_prev;   // (Dp)
  T *pre_prev;     // (Dp) what the pending update associates with; u_prev unless own_pre
  T* u2;           // (Dp) weighted squares of u, for power
  T *post, *kept, *eff;  // (Rp) of the pending update; eff of the present F
  T *gu, *gg, *gp;       // (Rp) row sums

  // Backward, at step t. D is dL/dF_{t+1} on entry of a sweep and dL/dF_t on leaving it, already
  // masked where F was clamped.
  T* dF;                     // (R, Dp)
  const T *F, *F_prev;       // (R, Dp) F_t, F_{t-1}
  T *u2_prev, *u_w;          // (Dp) u_w: weight * u, for power
  T *post_prev, *eff_prev;   // (Rp)
  T *c1, *c2, *c3, *c4;      // (Rp) dG = c1 u + c2 G + c4 u2 sign(G), and c3 (W + F) from norm post
  T *s1, *s2, *s3, *s4, *s5; // (Rp) sums for the step before
  T *du, *dpre;              // (Dp) of u_t; of pre_{t-1} where the model has its own
  bool masked;               // F_t came out of a clamp: not so for an initial state
};

template <class P> using Row = typename P::T;

// F_t and the row sums. UPDATE = false where F_src is F_t already (the first step).
template <class P, bool UPDATE, int NR, int NB>
STPN_INLINE void forward_tile(const Synapses<Row<P>>& s, Lane<Row<P>>* const* lanes, idx i) {
  using T = Row<P>;
  constexpr int L = kLanes<T>;
  V<T> gu[NR][NB]{}, gg[NR][NB]{}, gp[NR][NB]{};
  V<T> post[NR][NB], kept[NR][NB], eff[NR][NB];
  const V<T> limit = splat(s.clamp);
  for (int r = 0; r < NR; ++r)
    for (int b = 0; b < NB; ++b) {
      post[r][b] = splat(lanes[b]->post[i + r]);
      kept[r][b] = splat(lanes[b]->kept[i + r]);
      eff[r][b] = splat(lanes[b]->eff[i + r]);
    }
  auto updated = [&](int r, int b, idx d) STPN_LAMBDA -> V<T> {
    const idx k = (i + r) * s.Dp + d;
    V<T> f = load(lanes[b]->f_src + k);
    if constexpr (UPDATE) {
      const T* pre = P::own_pre ? lanes[b]->pre_prev : lanes[b]->u_prev;
      f = (load(s.lambda + k) * f) * kept[r][b] + (load(s.gamma + k) * load(pre + d)) * post[r][b];
      if constexpr (P::clamp) f = clamp<T>(f, limit);
    }
    return f;
  };
  if constexpr (UPDATE && P::norm == kNormPost) {
    V<T> mm[NR][NB]{};
    for (idx d = 0; d < s.Dp; d += L)
      for (int r = 0; r < NR; ++r)
        for (int b = 0; b < NB; ++b) {
          const V<T> f = updated(r, b, d);
          store(lanes[b]->f_dst + (i + r) * s.Dp + d, f);
          const V<T> g = load(s.w + (i + r) * s.Dp + d) + f;
          mm[r][b] += g * g;
        }
    for (int r = 0; r < NR; ++r)
      for (int b = 0; b < NB; ++b) {
        lanes[b]->eff[i + r] = T(1) / divisor<T>(sum(mm[r][b]));
        eff[r][b] = splat(lanes[b]->eff[i + r]);
      }
  }
  for (idx d = 0; d < s.Dp; d += L) {
    for (int r = 0; r < NR; ++r) {
      const idx k = (i + r) * s.Dp + d;
      const V<T> w = load(s.w + k);
      for (int b = 0; b < NB; ++b) {
        const Lane<T>& lane = *lanes[b];
        V<T> f, g;
        if constexpr (UPDATE && P::norm == kNormPost) {
          f = load(lane.f_dst + k);
        } else {
          f = updated(r, b, d);
          if constexpr (UPDATE) store(lane.f_dst + k, f);
        }
        if constexpr (P::alpha) g = w + load(s.alpha + k) * f;
        else if constexpr (P::norm == kNormPost) g = w + eff[r][b] * f;
        else g = w + f;
        gu[r][b] += g * load(lane.u + d);
        if constexpr (P::norm != kNormNone) gg[r][b] += g * g;
        if constexpr (P::power) gp[r][b] += abs(g) * load(lane.u2 + d);
      }
    }
  }
  for (int r = 0; r < NR; ++r)
    for (int b = 0; b < NB; ++b) {
      lanes[b]->gu[i + r] = sum(gu[r][b]);
      if constexpr (P::norm != kNormNone) lanes[b]->gg[i + r] = sum(gg[r][b]);
      if constexpr (P::power) lanes[b]->gp[i + r] = sum(gp[r][b]);
    }
}

// Only the update: F_t again from what the forward pass saved (no sums; eff is known), or, with
// MEASURE, at the end of a sequence, where norm post must still find its eff.
template <class P, bool MEASURE>
STPN_INLINE void update_row(const Synapses<Row<P>>& s, Lane<Row<P>>& lane, idx i) {
  using T = Row<P>;
  const V<T> post = splat(lane.post[i]), kept = splat(lane.kept[i]), limit = splat(s.clamp);
  const T* pre = P::own_pre ? lane.pre_prev : lane.u_prev;
  const idx row = i * s.Dp;
  V<T> mm{};
  for (idx d = 0; d < s.Dp; d += kLanes<T>) {
    V<T> f = (load(s.lambda + row + d) * load(lane.f_src + row + d)) * kept +
             (load(s.gamma + row + d) * load(pre + d)) * post;
    if constexpr (P::clamp) f = clamp<T>(f, limit);
    if constexpr (MEASURE && P::norm == kNormPost) {
      const V<T> g = load(s.w + row + d) + f;
      mm += g * g;
    }
    store(lane.f_dst + row + d, f);
  }
  if constexpr (MEASURE && P::norm == kNormPost) lane.eff[i] = T(1) / divisor<T>(sum(mm));
}

// The sums that step t-1 needs before its own sweep, of D = dL/dF_t and of F_{t-1}; "prev" is t-1.
template <class P> struct StepSums {
  using T = Row<P>;
  V<T> s1{}, s2{}, s3{}, s4{}, s5{};
  STPN_INLINE void add(const Synapses<T>& s, const Lane<T>& lane, idx k, idx d, V<T> D, V<T> f_prev,
                       V<T> post_prev, V<T> eff_prev) {
    const V<T> gD = load(s.gamma + k) * D;
    if constexpr (P::own_pre) {
      s1 += gD * load(lane.pre_prev + d);
      store(lane.dpre + d, load(lane.dpre + d) + post_prev * gD);
    } else {
      s1 += gD * load(lane.u_prev + d);
    }
    if constexpr (P::norm != kNormNone) s2 += (load(s.lambda + k) * D) * f_prev;
    if constexpr (P::norm == kNormPost) {
      const V<T> g = load(s.w + k) + eff_prev * f_prev;
      s3 += load(lane.u_prev + d) * f_prev;
      s4 += g * f_prev;
      if constexpr (P::power) s5 += load(lane.u2_prev + d) * sign<T>(g) * f_prev;
    }
  }
  STPN_INLINE void put(Lane<T>& lane, idx i) const {
    lane.s1[i] = sum(s1);
    if constexpr (P::norm != kNormNone) lane.s2[i] = sum(s2);
    if constexpr (P::norm == kNormPost) {
      lane.s3[i] = sum(s3);
      lane.s4[i] = sum(s4);
      if constexpr (P::power) lane.s5[i] = sum(s5);
    }
  }
};

// Step t backward, and with NEXT also the sums of step t-1, in one sweep. Columns below `du_from`
// belong to inputs that want no gradient.
template <class P, bool NEXT, int NB>
STPN_INLINE void backward_tile(const Synapses<Row<P>>& s, const SynapseGradients<Row<P>>& grads,
                               Lane<Row<P>>* const* lanes, idx i, idx du_from) {
  using T = Row<P>;
  constexpr int L = kLanes<T>;
  StepSums<P> sums[NB];
  const V<T> limit = splat(s.clamp);
  V<T> post[NB], kept[NB], eff[NB], post_prev[NB], eff_prev[NB], c1[NB], c2[NB], c3[NB], c4[NB];
  for (int b = 0; b < NB; ++b) {
    const Lane<T>& lane = *lanes[b];
    post[b] = splat(lane.post[i]);
    kept[b] = splat(lane.kept[i]);
    c1[b] = splat(lane.c1[i]);
    if constexpr (P::own_pre && NEXT) post_prev[b] = splat(lane.post_prev[i]);
    if constexpr (P::norm != kNormNone) c2[b] = splat(lane.c2[i]);
    if constexpr (P::norm == kNormPost) {
      eff[b] = splat(lane.eff[i]);
      eff_prev[b] = splat(lane.eff_prev[i]);
      c3[b] = splat(lane.c3[i]);
    }
    if constexpr (P::power) c4[b] = splat(lane.c4[i]);
  }
  const idx row = i * s.Dp;
  auto column = [&](idx d, auto wants_du) STPN_LAMBDA {
    constexpr bool DU = decltype(wants_du)::value;
    const idx k = row + d;
    const V<T> w = load(s.w + k), lambda = load(s.lambda + k), gamma = load(s.gamma + k);
    V<T> dw = load(grads.w + k), dlambda{}, dgamma{}, alpha{}, dalpha{};
    if constexpr (P::rates) {
      dlambda = load(grads.lambda + k);
      dgamma = load(grads.gamma + k);
    }
    if constexpr (P::alpha) {
      alpha = load(s.alpha + k);
      dalpha = load(grads.alpha + k);
    }
    for (int b = 0; b < NB; ++b) {
      const Lane<T>& lane = *lanes[b];
      V<T> D = load(lane.dF + k);
      const V<T> f = load(lane.F + k), u = load(lane.u + d);
      V<T> g;
      if constexpr (P::alpha) g = w + alpha * f;
      else if constexpr (P::norm == kNormPost) g = w + eff[b] * f;
      else g = w + f;
      if constexpr (P::rates) {
        dlambda += D * (kept[b] * f);
        dgamma += D * (post[b] * u);
      }
      V<T> dg = c1[b] * u;
      if constexpr (P::norm != kNormNone) dg += c2[b] * g;
      if constexpr (P::power) dg += c4[b] * (load(lane.u2 + d) * sign<T>(g));
      if constexpr (DU) {
        V<T> du = load(lane.du + d) + c1[b] * g;
        if constexpr (P::power) du += (c4[b] + c4[b]) * (load(lane.u_w + d) * abs(g));
        if constexpr (!P::own_pre) du += post[b] * (gamma * D);
        store(lane.du + d, du);
      }
      dw += dg;
      D = kept[b] * (lambda * D);
      if constexpr (P::alpha) {
        dalpha += dg * f;
        D += alpha * dg;
      } else if constexpr (P::norm == kNormPost) {
        const V<T> dm = c3[b] * (w + f);
        dw += dm;
        D += eff[b] * dg + dm;
      } else {
        D += dg;
      }
      if constexpr (P::clamp) {
        if (lane.masked) D = abs(f) < limit ? D : V<T>{};
      }
      store(lane.dF + k, D);
      if constexpr (NEXT) {
        sums[b].add(s, lane, k, d, D, load(lane.F_prev + k), post_prev[b], eff_prev[b]);
      }
    }
    store(grads.w + k, dw);
    if constexpr (P::rates) {
      store(grads.lambda + k, dlambda);
      store(grads.gamma + k, dgamma);
    }
    if constexpr (P::alpha) store(grads.alpha + k, dalpha);
  };
  idx d = 0;
  for (; d < du_from; d += L) column(d, Flag<false>{});
  for (; d < s.Dp; d += L) column(d, Flag<true>{});
  if constexpr (NEXT)
    for (int b = 0; b < NB; ++b) sums[b].put(*lanes[b], i);
}

// One step of all lanes that run; compiled once per plan, whatever the cell.
template <class P, bool UPDATE>
__attribute__((noinline)) void forward_sweep(const Synapses<Row<P>>& s, Lane<Row<P>>* const* lanes, int n) {
  for (idx i = 0; i < s.R; ++i)
    for (int b = 0; b + 1 < n; b += 2) forward_tile<P, UPDATE, 1, 2>(s, lanes + b, i);
  if (n % 2) {
    idx i = 0;
    for (; i + 1 < s.R; i += 2) forward_tile<P, UPDATE, 2, 1>(s, lanes + n - 1, i);
    if (i < s.R) forward_tile<P, UPDATE, 1, 1>(s, lanes + n - 1, i);
  }
}

template <class P, bool NEXT>
__attribute__((noinline)) void backward_sweep(const Synapses<Row<P>>& s, const SynapseGradients<Row<P>>& grads,
                                              Lane<Row<P>>* const* lanes, int n, idx du_from) {
  for (idx i = 0; i < s.R; ++i) {
    int b = 0;
    for (; b + 1 < n; b += 2) backward_tile<P, NEXT, 2>(s, grads, lanes + b, i, du_from);
    if (b < n) backward_tile<P, NEXT, 1>(s, grads, lanes + b, i, du_from);
  }
}

template <class P, bool MEASURE>
__attribute__((noinline)) void update_sweep(const Synapses<Row<P>>& s, Lane<Row<P>>& lane) {
  for (idx i = 0; i < s.R; ++i) update_row<P, MEASURE>(s, lane, i);
}

// The sums of step t alone, where no backward sweep of step t+1 could take them along.
template <class P> __attribute__((noinline)) void sums_sweep(const Synapses<Row<P>>& s, Lane<Row<P>>& lane, const Row<P>* F) {
  using T = Row<P>;
  for (idx i = 0; i < s.R; ++i) {
    StepSums<P> sums;
    const V<T> post = splat(lane.post_prev[i]), eff = splat(lane.eff_prev[i]);
    for (idx d = 0; d < s.Dp; d += kLanes<T>) {
      const idx k = i * s.Dp + d;
      sums.add(s, lane, k, d, load(lane.dF + k), load(F + k), post, eff);
    }
    sums.put(lane, i);
  }
}

}  // namespace stpn::STPN_ISA
