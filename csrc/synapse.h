// Sweeps over synapses: everything that costs one operation per synapse and time step.
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
// of step t: F is read and written once per step. (Norm post reads it again for power, and where W
// and F cancel.)
#pragma once

#include "layout.h"

namespace stpn::STPN_ISA {

// What a row is divided by: its norm plus a tiny number, or 1 where all its synapses are zero. Or one
// is NaN, as in the specification: the others of its row are what they would be.
template <class T> STPN_INLINE V<T> divisor(V<T> square) {
  return square > V<T>{} ? sqrt<T>(square) + T(1e-16) : splat(T(1));
}
template <class P> STPN_INLINE Each<P> inverse_norm(Each<P> square) {
  return unspread<P>(Row<P>(1) / divisor<Row<P>>(spread<P>(square)));
}

template <class T> struct Lane {
  idx b;    // batch element, the first of them across
  idx len;  // number of steps

  // The present step; in the backward pass these are rows of the blocks of a segment.
  T *u, *u2;             // (Dp) u2: weighted squares of u, for power
  T *post, *kept, *eff;  // (Rp) of the update that the sweep makes; eff of the present F

  // Forward.
  const T* f_src;     // (R, Dp) F_{t-1}, or F_t where there is no update to make
  T* f_dst;           // (R, Dp) F_t
  T *u_prev, *pre_prev;  // (Dp) what the update associates with: u_prev, unless a model has its own
  T *gu, *gg, *gp;       // (Rp) row sums; without a norm, gp's first vector holds all power
  T *fu, *fg, *fp;       // (Rp) row sums of F, which the backward pass of norm post needs

  // Backward, at step t. dF is dL/dF_{t+1} on entry of a sweep and dL/dF_t on leaving it, already
  // masked where F was clamped.
  T* dF;                            // (R, Dp)
  const T* F;                       // (R, Dp) F_t before its clamp
  T *post_prev, *kept_prev, *u_w;   // (Rp), (Rp), (Dp): of step t-1; u_w: weight * u, for power
  T *c1, *c2, *c3, *c4;             // (Rp) dG = c1 u + c2 G + c4 u2 sign(G), and c3 (W + F) from norm post
  T *s1, *s2;                       // (Rp) sums for the step before
  T *du, *dpre;                     // (Dp) of u_t; of pre_{t-1} where the model has its own
  bool masked;                      // F_t came out of a clamp: not so for an initial state
};

// Factors of row i. Constants that all synapses share are multiplied into them.
template <class P> STPN_INLINE V<Row<P>> factor(const Row<P>* of_rows, idx i) { return spread<P>(get<P>(of_rows, i)); }
template <class P> STPN_INLINE V<Row<P>> kept_of(const Synapses<Row<P>>& s, const Row<P>* kept, idx i) {
  return spread<P>(P::rates ? get<P>(kept, i) : get<P>(kept, i) * s.lambda);
}
template <class P> STPN_INLINE V<Row<P>> post_of(const Synapses<Row<P>>& s, const Row<P>* post, idx i) {
  return spread<P>(P::rates ? get<P>(post, i) : get<P>(post, i) * s.gamma);
}

// F of the next step at column d of a row, before its clamp.
template <class P>
STPN_INLINE V<Row<P>> updated(V<Row<P>> f, V<Row<P>> lambda, V<Row<P>> gamma, V<Row<P>> pre, V<Row<P>> kept, V<Row<P>> post) {
  if constexpr (P::rates) return (lambda * f) * kept + (gamma * pre) * post;
  else return f * kept + pre * post;
}
template <class P> STPN_INLINE V<Row<P>> clamped(V<Row<P>> f, V<Row<P>> limit) {
  if constexpr (P::clamp) return clamp<Row<P>>(f, limit);
  else return f;
}
template <class P> STPN_INLINE V<Row<P>> lambda_at(const Row<P>* row, idx d) {
  if constexpr (P::rates) return parameter<P>(row, d, kLambda);
  else return V<Row<P>>{};
}
template <class P> STPN_INLINE V<Row<P>> gamma_at(const Row<P>* row, idx d) {
  if constexpr (P::rates) return parameter<P>(row, d, kGamma);
  else return V<Row<P>>{};
}

// Padding of a row of F is zero, but for an infinite `post`: 0 times infinity. A clamp makes finite
// numbers of the synapses, so their sums must not see it.
template <class P> STPN_INLINE void clear_padding(const Synapses<Row<P>>& s, Row<P>* row) {
  for (idx d = s.D * P::wide; d < s.Dp; ++d) row[d] = 0;
}

// Whether a condition holds, for each sequence of a lane, and for all of them.
template <class P> using Holds = decltype(Each<P>{} < Each<P>{});
template <class P> STPN_INLINE bool for_all(Holds<P> holds) {
  if constexpr (P::across) {
    typedef int64_t Words __attribute__((vector_size(kVectorBytes)));
    int64_t all = -1;
    for (int k = 0; k < kVectorBytes / 8; ++k) all &= ((Words)holds)[k];
    return all == -1;
  } else {
    return holds;
  }
}

// Norm post, of row i: eff, and the sums of G = W + eff F, from W.u, F.u, W.F, F.F and W.W. An F that
// no update made is taken as it is. Returns for which sequences they hold: not where W and F cancel,
// or something is not finite. There the sums must be taken of G itself.
template <class P, bool UPDATE>
STPN_INLINE Holds<P> post_sums(const Synapses<Row<P>>& s, Lane<Row<P>>& lane, idx i, V<Row<P>> w_u, V<Row<P>> f_u,
                           V<Row<P>> w_f, V<Row<P>> f_f) {
  using T = Row<P>;
  using E = Each<P>;
  const E wu = total<P>(w_u), fu = total<P>(f_u), wf = total<P>(w_f), ff = total<P>(f_f), ww = E{} + s.squares[i];
  const E mm = ww + wf + wf + ff;
  if constexpr (UPDATE) set<P>(lane.eff, i, inverse_norm<P>(mm));
  const E eff = get<P>(lane.eff, i), gu = wu + eff * fu, gg = ww + eff * (wf + wf + eff * ff);
  set<P>(lane.gu, i, gu);
  set<P>(lane.gg, i, gg);
  set<P>(lane.fu, i, fu);
  set<P>(lane.fg, i, wf + eff * ff);
  const T little = T(1) / 16;
  return (mm >= little * (ww + ff)) & (gg >= little * (ww + eff * eff * ff)) & (gu == gu);
}

// The same of G itself, for the sequences where `holds` is false: the others keep what they have.
template <class P, bool UPDATE>
__attribute__((noinline)) void post_sums_of_g(const Synapses<Row<P>>& s, Lane<Row<P>>& lane, idx i, const Row<P>* f_row,
                                              Holds<P> holds) {
  const auto replace = [&](Row<P>* of_rows, V<Row<P>> sums) STPN_LAMBDA {
    const Each<P> value = total<P>(sums);
    set<P>(of_rows, i, holds ? get<P>(of_rows, i) : value);
  };
  using T = Row<P>;
  const T* row = parameter_row<P>(s, i);
  V<T> mm{}, gu{}, gg{}, fu{}, fg{};
  for (idx d = 0; UPDATE && d < s.Dp; d += kLanes<T>) {
    const V<T> m = parameter<P>(row, d, kW) + load(f_row + d);
    mm += m * m;
  }
  if constexpr (UPDATE) set<P>(lane.eff, i, holds ? get<P>(lane.eff, i) : inverse_norm<P>(total<P>(mm)));
  const V<T> eff = factor<P>(lane.eff, i);
  for (idx d = 0; d < s.Dp; d += kLanes<T>) {
    const V<T> f = load(f_row + d), u = load(lane.u + d), g = parameter<P>(row, d, kW) + eff * f;
    gu += g * u;
    gg += g * g;
    fu += f * u;
    fg += f * g;
  }
  replace(lane.gu, gu);
  replace(lane.gg, gg);
  replace(lane.fu, fu);
  replace(lane.fg, fg);
}

// In the sweeps all addresses are local variables: through a pointer to a lane the compiler would
// have to load them again after each store.

// F_t and the row sums. UPDATE = false where F_src is F_t already (the first step).
template <class P, bool UPDATE, int NR, int NB>
STPN_INLINE void forward_tile(const Synapses<Row<P>>& s, Lane<Row<P>>* const* lanes, idx i) {
  using T = Row<P>;
  constexpr int L = kLanes<T>;
  const idx Dp = s.Dp;
  const V<T> limit = splat(s.clamp);
  V<T> gu[NR][NB]{}, gg[NR][NB]{}, gp[NR][NB]{}, fp[NR][NB]{};
  V<T> wu[NR][NB]{}, fu[NR][NB]{}, wf[NR][NB]{}, ff[NR][NB]{};  // norm post
  V<T> post[NR][NB], kept[NR][NB];
  const T *row[NR], *src[NR][NB], *pre[NB], *u[NB], *u2[NB];
  T* dst[NR][NB];
  for (int b = 0; b < NB; ++b) {
    const Lane<T>& lane = *lanes[b];
    pre[b] = P::own_pre ? lane.pre_prev : lane.u_prev;
    u[b] = lane.u;
    u2[b] = lane.u2;
    for (int r = 0; r < NR; ++r) {
      src[r][b] = lane.f_src + (i + r) * Dp;
      dst[r][b] = lane.f_dst + (i + r) * Dp;
      post[r][b] = post_of<P>(s, lane.post, i + r);
      kept[r][b] = kept_of<P>(s, lane.kept, i + r);
    }
  }
  for (int r = 0; r < NR; ++r) row[r] = parameter_row<P>(s, i + r);

  auto present = [&](int r, int b, idx d) STPN_LAMBDA -> V<T> {
    const V<T> f = load(src[r][b] + d);
    if constexpr (!UPDATE) return f;
    return clamped<P>(updated<P>(f, lambda_at<P>(row[r], d), gamma_at<P>(row[r], d), load(pre[b] + d), kept[r][b], post[r][b]),
                      limit);
  };
  for (idx d = 0; d < Dp; d += L) {
    for (int r = 0; r < NR; ++r) {
      const V<T> w = parameter<P>(row[r], d, kW);
      for (int b = 0; b < NB; ++b) {
        const V<T> f = present(r, b, d), input = load(u[b] + d);
        if constexpr (UPDATE) store(dst[r][b] + d, f);
        if constexpr (P::norm == kNormPost) {
          // G is known only when all of the row's F is: sums of W and F, from which those of G follow.
          wu[r][b] += w * input;
          fu[r][b] += f * input;
          wf[r][b] += w * f;
          ff[r][b] += f * f;
        } else {
          const V<T> g = P::alpha ? w + parameter<P>(row[r], d, kAlpha<P>) * f : w + f;
          gu[r][b] += g * input;
          if constexpr (P::norm != kNormNone) gg[r][b] += g * g;
          if constexpr (P::power) gp[r][b] += abs(g) * load(u2[b] + d);
        }
      }
    }
  }
  for (int r = 0; r < NR; ++r)
    for (int b = 0; b < NB; ++b) {
      Lane<T>& lane = *lanes[b];
      const T* f_now = UPDATE ? dst[r][b] : src[r][b];
      if constexpr (P::norm == kNormPost) {
        const auto holds = post_sums<P, UPDATE>(s, lane, i + r, wu[r][b], fu[r][b], wf[r][b], ff[r][b]);
        if (!for_all<P>(holds)) post_sums_of_g<P, UPDATE>(s, lane, i + r, f_now, holds);
      } else {
        set<P>(lane.gu, i + r, total<P>(gu[r][b]));
      }
      if constexpr (P::norm == kNormPre) set<P>(lane.gg, i + r, total<P>(gg[r][b]));
      if constexpr (P::norm == kNormPost && P::power) {
        const V<T> eff = factor<P>(lane.eff, i + r);
        for (idx d = 0; d < Dp; d += L) {
          const V<T> f = load(f_now + d), g = parameter<P>(row[r], d, kW) + eff * f, u_squared = load(u2[b] + d);
          gp[r][b] += abs(g) * u_squared;
          fp[r][b] += f * sign<T>(g) * u_squared;
        }
        set<P>(lane.fp, i + r, total<P>(fp[r][b]));
      }
      if constexpr (P::power) {
        // Without a norm no row's power is needed by itself: one vector holds them all.
        if constexpr (P::norm == kNormNone) store(lane.gp, load(lane.gp) + gp[r][b]);
        else set<P>(lane.gp, i + r, total<P>(gp[r][b]));
      }
    }
}

// The update that ends a sequence; norm post finds its last eff. The backward pass has and wants F as
// it is BEFORE its clamp.
template <class P, bool BEFORE> STPN_INLINE void update_row(const Synapses<Row<P>>& s, Lane<Row<P>>& lane, idx i) {
  using T = Row<P>;
  const idx Dp = s.Dp;
  const V<T> post = post_of<P>(s, lane.post, i), kept = kept_of<P>(s, lane.kept, i), limit = splat(s.clamp);
  const T *pre = P::own_pre ? lane.pre_prev : lane.u_prev, *row = parameter_row<P>(s, i);
  const T* src = lane.f_src + i * Dp;
  T* dst = lane.f_dst + i * Dp;
  for (idx d = 0; d < Dp; d += kLanes<T>) {
    const V<T> stored = load(src + d), last = BEFORE && lane.masked ? clamped<P>(stored, limit) : stored;
    const V<T> f = updated<P>(last, lambda_at<P>(row, d), gamma_at<P>(row, d), load(pre + d), kept, post);
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

// n updates in a row, known from the forward pass: from F_t (in `from`) to F_{t+n}. Rows do not
// depend on each other here, so each vector of synapses goes through all n steps in a register.
// KEEP: F_{t+1}, F_{t+2}, ... are stored one after the other from `to` on; else only the last is.
// They are stored as they were before the clamp, whose gradient depends on it; so is `from`, unless
// it is an initial state, which no clamp has seen.
template <class P, bool KEEP, int NV>
STPN_INLINE void replay_columns(const Synapses<Row<P>>& s, const Row<P>* from, bool initial, Row<P>* to, idx n, const Row<P>* pre,
                                const Row<P>* post, const Row<P>* kept, idx i, idx d) {
  using T = Row<P>;
  constexpr int L = kLanes<T>;
  const idx Dp = s.Dp, Rp = s.Rp, size = s.R * Dp;
  const T* row = parameter_row<P>(s, i);
  const V<T> limit = splat(s.clamp);
  V<T> f[NV], before[NV]{}, lambda[NV], gamma[NV];
  for (int v = 0; v < NV; ++v) {
    f[v] = load(from + i * Dp + d + v * L);
    if (!initial) f[v] = clamped<P>(f[v], limit);
    lambda[v] = lambda_at<P>(row, d + v * L);
    gamma[v] = gamma_at<P>(row, d + v * L);
  }
  T* out = to + i * Dp + d;
  pre += d;
  for (idx t = 0; t < n; ++t, pre += Dp, post += Rp, kept += Rp) {
    const V<T> p = post_of<P>(s, post, i), k = kept_of<P>(s, kept, i);
    for (int v = 0; v < NV; ++v) {
      before[v] = updated<P>(f[v], lambda[v], gamma[v], load(pre + v * L), k, p);
      if constexpr (KEEP) store(out + v * L, before[v]);
      f[v] = clamped<P>(before[v], limit);
    }
    if constexpr (KEEP) out += size;
  }
  if constexpr (!KEEP)
    for (int v = 0; v < NV; ++v) store(out + v * L, before[v]);
}

template <class P, bool KEEP>
__attribute__((noinline)) void replay(const Synapses<Row<P>>& s, const Row<P>* from, bool initial, Row<P>* to, idx n,
                                      const Row<P>* pre, const Row<P>* post, const Row<P>* kept) {
  constexpr int L = kLanes<Row<P>>;
  for (idx i = 0; i < s.R; ++i) {
    // Several vectors at a time hide the latency of a step; never one alone if it can be helped.
    idx d = 0, left = s.Dp / L;
    for (; left > 4 && left != 5; left -= 4, d += 4 * L) replay_columns<P, KEEP, 4>(s, from, initial, to, n, pre, post, kept, i, d);
    for (; left > 2; left -= 3, d += 3 * L) replay_columns<P, KEEP, 3>(s, from, initial, to, n, pre, post, kept, i, d);
    if (left == 2) replay_columns<P, KEEP, 2>(s, from, initial, to, n, pre, post, kept, i, d);
    if (left == 1) replay_columns<P, KEEP, 1>(s, from, initial, to, n, pre, post, kept, i, d);
  }
}

// What step t-1 needs of D = dL/dF_t before its own sweep ("prev" is t-1):
//     s1 = sum D gamma pre,  s2 = sum D lambda F_{t-1}
// The second is had without F_{t-1}: lambda kept F_{t-1} = F_t - gamma post pre, wherever D is not
// masked. Where kept is zero, as a norm beyond the range of numbers makes it, nothing depends on it;
// nor does it on an infinite post where all of D is masked.
template <class P> struct StepSums {
  using T = Row<P>;
  V<T> s1{}, df{}, post;
  T shared;  // gamma of all synapses
  const T* pre;
  T* dpre;
  STPN_INLINE StepSums(const Synapses<T>& s, const Lane<T>& lane, idx i)
      : post(post_of<P>(s, lane.post_prev, i)), shared(P::rates ? T(1) : s.gamma), pre(P::own_pre ? lane.pre_prev : lane.u_prev), dpre(lane.dpre) {}
  STPN_INLINE void add(idx d, V<T> D, V<T> f, V<T> gamma) {
    const V<T> gD = P::rates ? gamma * D : D;
    s1 += gD * load(pre + d);
    if constexpr (P::own_pre) store(dpre + d, load(dpre + d) + post * gD);
    if constexpr (P::norm != kNormNone) df += D * f;
  }
  STPN_INLINE void put(Lane<T>& lane, idx i) const {
    const Each<P> s = total<P>(s1) * shared;
    set<P>(lane.s1, i, s);
    if constexpr (P::norm != kNormNone) {
      const Each<P> kept = get<P>(lane.kept_prev, i), of_f = total<P>(df);
      const Each<P> of_kept = s == T(0) ? of_f : of_f - get<P>(lane.post_prev, i) * s;
      set<P>(lane.s2, i, kept == T(0) ? Each<P>{} : of_kept / kept);
    }
  }
};

// Step t of one lane, backward, in one row. The addresses and coefficients it needs.
template <class P> struct StepBack {
  using T = Row<P>;
  V<T> post, kept, eff, c1, c2, c3, c4;
  const T *F, *u, *u2, *u_w;
  T *dF, *du;
  bool masked;
  STPN_INLINE StepBack(const Synapses<T>& s, const Lane<T>& lane, idx i)
      : post(post_of<P>(s, lane.post, i)), kept(kept_of<P>(s, lane.kept, i)), eff(factor<P>(lane.eff, i)),
        c1(factor<P>(lane.c1, i)), c2(factor<P>(lane.c2, i)), c3(factor<P>(lane.c3, i)), c4(factor<P>(lane.c4, i)),
        F(lane.F + i * s.Dp), u(lane.u), u2(lane.u2), u_w(lane.u_w), dF(lane.dF + i * s.Dp), du(lane.du),
        masked(lane.masked) {}
};

// Step t backward, and with NEXT also the sums of step t-1, in one sweep. Columns below `du_from`
// belong to inputs that want no gradient.
template <class P, bool NEXT, int NB>
STPN_INLINE void backward_tile(const Synapses<Row<P>>& s, Row<P>* gradients, Lane<Row<P>>* const* lanes, idx i, idx du_from) {
  using T = Row<P>;
  constexpr int L = kLanes<T>;
  const idx Dp = s.Dp;
  const V<T> limit = splat(s.clamp);
  const T* row = parameter_row<P>(s, i);
  T* grads = gradients + i * Dp * kSlots<P>;
  // NB is 1 or 2; the second lane of one repeats it.
  StepSums<P> sums[2] = {StepSums<P>(s, *lanes[0], i), StepSums<P>(s, *lanes[NB - 1], i)};
  const StepBack<P> back[2] = {StepBack<P>(s, *lanes[0], i), StepBack<P>(s, *lanes[NB - 1], i)};
  auto column = [&](idx d, auto wants_du) STPN_LAMBDA {
    constexpr bool DU = decltype(wants_du)::value;
    const V<T> w = parameter<P>(row, d, kW), lambda = lambda_at<P>(row, d), gamma = gamma_at<P>(row, d);
    V<T> dw = load(slot<P>(grads, d, kW)), dlambda{}, dgamma{}, alpha{}, dalpha{};
    if constexpr (P::rates) {
      dlambda = load(slot<P>(grads, d, kLambda));
      dgamma = load(slot<P>(grads, d, kGamma));
    }
    if constexpr (P::alpha) {
      alpha = parameter<P>(row, d, kAlpha<P>);
      dalpha = load(slot<P>(grads, d, kAlpha<P>));
    }
    for (int b = 0; b < NB; ++b) {
      const StepBack<P>& k = back[b];
      V<T> D = load(k.dF + d);
      const V<T> before = load(k.F + d), f = k.masked ? clamped<P>(before, limit) : before, u = load(k.u + d);
      V<T> g;
      if constexpr (P::alpha) g = w + alpha * f;
      else if constexpr (P::norm == kNormPost) g = w + k.eff * f;
      else g = w + f;
      const V<T> kept = k.kept * D, post = k.post * D;
      if constexpr (P::rates) {
        dlambda += kept * f;
        dgamma += post * u;
      }
      V<T> dg = k.c1 * u;
      if constexpr (P::norm != kNormNone) dg += k.c2 * g;
      if constexpr (P::power) dg += k.c4 * (load(k.u2 + d) * sign<T>(g));
      if constexpr (DU) {
        V<T> du = load(k.du + d) + k.c1 * g;
        if constexpr (P::power) du += (k.c4 + k.c4) * (load(k.u_w + d) * abs(g));
        if constexpr (!P::own_pre) du += P::rates ? gamma * post : post;
        store(k.du + d, du);
      }
      dw += dg;
      D = P::rates ? lambda * kept : kept;
      if constexpr (P::alpha) {
        dalpha += dg * f;
        D += alpha * dg;
      } else if constexpr (P::norm == kNormPost) {
        const V<T> dm = k.c3 * (w + f);
        dw += dm;
        D += k.eff * dg + dm;
      } else {
        D += dg;
      }
      [[maybe_unused]] const auto passed = abs(before) <= limit;  // like torch's clamp, also where it is the limit exactly
      if constexpr (P::clamp) {
        if (k.masked) D = passed ? D : V<T>{};
      }
      store(k.dF + d, D);
      if constexpr (NEXT) sums[b].add(d, D, P::clamp ? (passed ? f : V<T>{}) : f, gamma);
    }
    store(slot<P>(grads, d, kW), dw);
    if constexpr (P::rates) {
      store(slot<P>(grads, d, kLambda), dlambda);
      store(slot<P>(grads, d, kGamma), dgamma);
    }
    if constexpr (P::alpha) store(slot<P>(grads, d, kAlpha<P>), dalpha);
  };
  idx d = 0;
  for (; d < du_from; d += L) column(d, Flag<false>{});
  for (; d < Dp; d += L) column(d, Flag<true>{});
  if constexpr (NEXT)
    for (int b = 0; b < NB; ++b) sums[b].put(*lanes[b], i);
}

// One step of all lanes that run; compiled once per plan, whatever the cell.
template <class P, bool UPDATE>
__attribute__((noinline)) void forward_sweep(const Synapses<Row<P>>& s, Lane<Row<P>>* const* lanes, int n) {
  if constexpr (P::power && P::norm == kNormNone)
    for (int b = 0; b < n; ++b) store(lanes[b]->gp, V<Row<P>>{});
  for (idx i = 0; i < s.R; ++i)
    for (int b = 0; b + 1 < n; b += 2) forward_tile<P, UPDATE, 1, 2>(s, lanes + b, i);
  if (n % 2) {
    idx i = 0;
    for (; i + 1 < s.R; i += 2) forward_tile<P, UPDATE, 2, 1>(s, lanes + n - 1, i);
    if (i < s.R) forward_tile<P, UPDATE, 1, 1>(s, lanes + n - 1, i);
  }
}

template <class P, bool NEXT>
__attribute__((noinline)) void backward_sweep(const Synapses<Row<P>>& s, Row<P>* grads, Lane<Row<P>>* const* lanes, int n,
                                              idx du_from) {
  for (idx i = 0; i < s.R; ++i) {
    int b = 0;
    for (; b + 1 < n; b += 2) backward_tile<P, NEXT, 2>(s, grads, lanes + b, i, du_from);
    if (b < n) backward_tile<P, NEXT, 1>(s, grads, lanes + b, i, du_from);
  }
}

template <class P, bool BEFORE> __attribute__((noinline)) void update_sweep(const Synapses<Row<P>>& s, Lane<Row<P>>& lane) {
  for (idx i = 0; i < s.R; ++i) update_row<P, BEFORE>(s, lane, i);
}

// The sums of a step again, where one is not finite: it may be the padding alone.
template <class P> __attribute__((noinline)) void forward_sweep_again(const Synapses<Row<P>>& s, Lane<Row<P>>* lane) {
  for (idx i = 0; i < s.R; ++i) {
    clear_padding<P>(s, lane->f_dst + i * s.Dp);
    if constexpr (P::norm == kNormPost) post_sums_of_g<P, true>(s, *lane, i, lane->f_dst + i * s.Dp, Holds<P>{});
  }
  forward_sweep<P, false>(s, &lane, 1);
}

// The sums of the last step, where no backward sweep comes before it to take them along.
template <class P> __attribute__((noinline)) void sums_sweep(const Synapses<Row<P>>& s, Lane<Row<P>>& lane, const Row<P>* F) {
  using T = Row<P>;
  const idx Dp = s.Dp;
  for (idx i = 0; i < s.R; ++i) {
    StepSums<P> sums(s, lane, i);
    const T *row = parameter_row<P>(s, i), *dF = lane.dF + i * Dp;
    for (idx d = 0; d < Dp; d += kLanes<T>) sums.add(d, load(dF + d), load(F + i * Dp + d), gamma_at<P>(row, d));
    sums.put(lane, i);
  }
}

}  // namespace stpn::STPN_ISA
