// The sweep of one step forward: F_t and the row sums of every lane that runs.
//
// In the sweeps all addresses are local variables: through a pointer to a lane the compiler would
// have to load them again after each store.
#pragma once

#include "synapse.h"

namespace stpn::STPN_ISA {

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

// Norm post, of row i: eff, and the sums of G = W + eff F, from W.u, F.u, W.F, F.F and W.W. An F
// that no update made is taken as it is. Returns for which sequences they hold: not where W and F
// cancel, or something is not finite. There the sums must be taken of G itself.
template <class P, bool UPDATE, class Vector = V<Scalar<P>>>
STPN_INLINE Holds<P> post_sums(const Synapses<Scalar<P>>& s, SweepLane<Scalar<P>>& lane, idx i,
                               Vector w_u, Vector f_u, Vector w_f, Vector f_f) {
  using T = Scalar<P>;
  using E = Each<P>;
  const E wu = total<P>(w_u), fu = total<P>(f_u), wf = total<P>(w_f), ff = total<P>(f_f);
  const E ww = E{} + s.squares[i], mm = ww + wf + wf + ff;
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
__attribute__((noinline)) void post_sums_of_g(const Synapses<Scalar<P>>& s,
                                              SweepLane<Scalar<P>>& lane, idx i,
                                              const Scalar<P>* f_row, Holds<P> holds) {
  using T = Scalar<P>;
  const auto replace = [&](T* of_rows, V<T> sums) STPN_LAMBDA {
    const Each<P> value = total<P>(sums);
    set<P>(of_rows, i, holds ? get<P>(of_rows, i) : value);
  };
  const T* row = parameter_row<P>(s, i);
  V<T> mm{}, gu{}, gg{}, fu{}, fg{};
  for (idx d = 0; UPDATE && d < s.Dp; d += kLanes<T>) {
    const V<T> m = parameter<P>(row, d, kW) + load(f_row + d);
    mm += m * m;
  }
  if constexpr (UPDATE)
    set<P>(lane.eff, i, holds ? get<P>(lane.eff, i) : inverse_norm<P>(total<P>(mm)));
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

// NR rows from i on, of NB lanes. UPDATE = false where F_src is F_t already (the first step).
template <class P, bool UPDATE, int NR, int NB>
STPN_INLINE void forward_tile(const Synapses<Scalar<P>>& s, SweepLane<Scalar<P>>* const* lanes,
                              idx i) {
  using T = Scalar<P>;
  constexpr int L = kLanes<T>;
  const idx Dp = s.Dp;
  const V<T> limit = splat(s.clamp);
  V<T> gu[NR][NB]{}, gg[NR][NB]{}, gp[NR][NB]{}, fp[NR][NB]{};
  V<T> wu[NR][NB]{}, fu[NR][NB]{}, wf[NR][NB]{}, ff[NR][NB]{};  // norm post
  V<T> post[NR][NB], kept[NR][NB];
  const T *row[NR], *src[NR][NB], *pre[NB], *u[NB], *u2[NB];
  T* dst[NR][NB];
  for (int b = 0; b < NB; ++b) {
    const SweepLane<T>& lane = *lanes[b];
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
    const V<T> lambda = lambda_at<P>(row[r], d), gamma = gamma_at<P>(row[r], d);
    return clamped<P>(updated<P>(f, lambda, gamma, load(pre[b] + d), kept[r][b], post[r][b]),
                      limit);
  };
  for (idx d = 0; d < Dp; d += L) {
    for (int r = 0; r < NR; ++r) {
      const V<T> w = parameter<P>(row[r], d, kW);
      for (int b = 0; b < NB; ++b) {
        const V<T> f = present(r, b, d), input = load(u[b] + d);
        if constexpr (UPDATE) store(dst[r][b] + d, f);
        if constexpr (P::norm == kNormPost) {
          // G is known only when all of the row's F is: sums of W and F, from which those of G
          // follow.
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
      SweepLane<T>& lane = *lanes[b];
      const T* f_now = UPDATE ? dst[r][b] : src[r][b];
      if constexpr (P::norm == kNormPost) {
        const auto holds =
            post_sums<P, UPDATE>(s, lane, i + r, wu[r][b], fu[r][b], wf[r][b], ff[r][b]);
        if (!for_all<P>(holds)) post_sums_of_g<P, UPDATE>(s, lane, i + r, f_now, holds);
      } else {
        set<P>(lane.gu, i + r, total<P>(gu[r][b]));
      }
      if constexpr (P::norm == kNormPre) set<P>(lane.gg, i + r, total<P>(gg[r][b]));
      if constexpr (P::norm == kNormPost && P::power) {
        const V<T> eff = factor<P>(lane.eff, i + r);
        for (idx d = 0; d < Dp; d += L) {
          const V<T> f = load(f_now + d), g = parameter<P>(row[r], d, kW) + eff * f;
          const V<T> u_squared = load(u2[b] + d);
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

// One step of all lanes that run; compiled once per plan, whatever the cell.
template <class P, bool UPDATE>
__attribute__((noinline)) void forward_sweep(const Synapses<Scalar<P>>& s,
                                             SweepLane<Scalar<P>>* const* lanes, int n) {
  if constexpr (P::power && P::norm == kNormNone)
    for (int b = 0; b < n; ++b) store(lanes[b]->gp, V<Scalar<P>>{});
  int b = 0;
  if constexpr (UPDATE && !P::across) {  // across, each lane is a group by itself
    for (idx i = 0; i < s.R; ++i)
      for (b = 0; b + 1 < n; b += 2) forward_tile<P, true, 1, 2>(s, lanes + b, i);
    b = n / 2 * 2;
  }
  for (; b < n; ++b) {
    idx i = 0;
    for (; i + 1 < s.R; i += 2) forward_tile<P, UPDATE, 2, 1>(s, lanes + b, i);
    if (i < s.R) forward_tile<P, UPDATE, 1, 1>(s, lanes + b, i);
  }
}

// The sums of a step again, where one is not finite: it may be the padding alone.
template <class P>
__attribute__((noinline)) void forward_sweep_again(const Synapses<Scalar<P>>& s,
                                                   SweepLane<Scalar<P>>* lane) {
  for (idx i = 0; i < s.R; ++i) {
    clear_padding<P>(s, lane->f_dst + i * s.Dp);
    if constexpr (P::norm == kNormPost)
      post_sums_of_g<P, true>(s, *lane, i, lane->f_dst + i * s.Dp, Holds<P>{});
  }
  forward_sweep<P, false>(s, &lane, 1);
}

}  // namespace stpn::STPN_ISA
