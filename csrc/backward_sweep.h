// The sweeps of the backward pass: F once more, and one step of dL/dF.
#pragma once

#include "synapse.h"

namespace stpn::STPN_ISA {

// n updates in a row, known from the forward pass: from F_t (in `from`) to F_{t+n}. Rows do not
// depend on each other here, so each vector of synapses goes through all n steps in a register.
// KEEP: F_{t+1}, F_{t+2}, ... are stored one after the other from `to` on; else only the last is.
// All are stored as they were before the clamp, whose gradient depends on it; so is `from`, unless
// it is an initial state, which no clamp has seen.
template <class T> struct Replay {
  const T* from;
  bool initial;
  T* to;
  idx n;
  const T *pre, *post, *kept;  // (n, Dp), (n, Rp), (n, Rp)
};

template <class P, bool KEEP, int NV>
STPN_INLINE void replay_columns(const Synapses<Scalar<P>>& s, const Replay<Scalar<P>>& r, idx i,
                                idx d) {
  using T = Scalar<P>;
  constexpr int L = kLanes<T>;
  const idx Dp = s.Dp, Rp = s.Rp, size = s.R * Dp;
  const T* row = parameter_row<P>(s, i);
  const V<T> limit = splat(s.clamp);
  V<T> f[NV], before[NV]{}, lambda[NV], gamma[NV];
  for (int v = 0; v < NV; ++v) {
    f[v] = load(r.from + i * Dp + d + v * L);
    if (!r.initial) f[v] = clamped<P>(f[v], limit);
    lambda[v] = lambda_at<P>(row, d + v * L);
    gamma[v] = gamma_at<P>(row, d + v * L);
  }
  T* out = r.to + i * Dp + d;
  const T *pre = r.pre + d, *post = r.post, *kept = r.kept;
  for (idx t = 0; t < r.n; ++t, pre += Dp, post += Rp, kept += Rp) {
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
__attribute__((noinline)) void replay(const Synapses<Scalar<P>>& s, const Replay<Scalar<P>>& r) {
  constexpr int L = kLanes<Scalar<P>>;
  for (idx i = 0; i < s.R; ++i) {
    // Several vectors at a time hide the latency of a step; never one alone if it can be helped.
    idx d = 0, left = s.Dp / L;
    for (; left > 4 && left != 5; left -= 4, d += 4 * L) replay_columns<P, KEEP, 4>(s, r, i, d);
    for (; left > 2; left -= 3, d += 3 * L) replay_columns<P, KEEP, 3>(s, r, i, d);
    if (left == 2) replay_columns<P, KEEP, 2>(s, r, i, d);
    if (left == 1) replay_columns<P, KEEP, 1>(s, r, i, d);
  }
}

// What step t-1 needs of D = dL/dF_t before its own sweep ("prev" is t-1):
//     s1 = sum D gamma pre,  s2 = sum D lambda F_{t-1}
// The second is had without F_{t-1}: lambda kept F_{t-1} = F_t - gamma post pre, wherever D is not
// masked. Where kept is zero, as a norm beyond the range of numbers makes it, nothing depends on
// it; nor does it on an infinite post where all of D is masked.
template <class P> struct StepSums {
  using T = Scalar<P>;
  V<T> s1{}, df{}, post;
  T shared;  // gamma of all synapses
  const T* pre;
  T* dpre;
  STPN_INLINE StepSums(const Synapses<T>& s, const SweepLane<T>& lane, idx i)
      : post(post_of<P>(s, lane.post_prev, i)),
        shared(P::rates ? T(1) : s.gamma),
        pre(P::own_pre ? lane.pre_prev : lane.u_prev),
        dpre(lane.dpre) {}
  // APART: pre is not u, and wants its gradient by itself.
  template <bool APART = P::own_pre> STPN_INLINE void add(idx d, V<T> D, V<T> f, V<T> gamma) {
    const V<T> gD = P::rates ? gamma * D : D;
    s1 += gD * load(pre + d);
    if constexpr (APART) store(dpre + d, load(dpre + d) + post * gD);
    if constexpr (P::norm != kNormNone) df += D * f;
  }
  STPN_INLINE void put(SweepLane<T>& lane, idx i) const {
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
  using T = Scalar<P>;
  V<T> post, kept, eff, c1, c2, c3, c4;
  const T *F, *u, *pre, *u2, *u_w;
  T *dF, *du;
  bool masked;
  STPN_INLINE StepBack(const Synapses<T>& s, const SweepLane<T>& lane, idx i)
      : post(post_of<P>(s, lane.post, i)),
        kept(kept_of<P>(s, lane.kept, i)),
        eff(factor<P>(lane.eff, i)),
        c1(factor<P>(lane.c1, i)),
        c2(factor<P>(lane.c2, i)),
        c3(factor<P>(lane.c3, i)),
        c4(factor<P>(lane.c4, i)),
        F(lane.F + i * s.Dp),
        u(lane.u),
        pre(lane.pre),
        u2(lane.u2),
        u_w(lane.u_w),
        dF(lane.dF + i * s.Dp),
        du(lane.du),
        masked(lane.masked) {}
};

// What a sweep is to find beside the gradients of the synapses.
struct Wanted {
  idx du_from;         // columns below it belong to inputs that want no gradient
  bool associate_new;  // hidden columns of pre are the new h: not u, and with a gradient of their
                       // own
};

enum Column { kNoInput, kInput, kInputApart };

// Step t of NB lanes (1 or 2) in row i, and with NEXT the sums of step t-1.
template <class P, bool NEXT, int NB>
STPN_INLINE void backward_tile(const Synapses<Scalar<P>>& s, Scalar<P>* gradients,
                               SweepLane<Scalar<P>>* const* lanes, idx i, const Wanted& wanted) {
  using T = Scalar<P>;
  constexpr int L = kLanes<T>;
  const idx Dp = s.Dp;
  const V<T> limit = splat(s.clamp);
  const T* row = parameter_row<P>(s, i);
  T* grads = gradients + i * Dp * kSlots<P>;
  // The second lane of one repeats it.
  StepSums<P> sums[2] = {StepSums<P>(s, *lanes[0], i), StepSums<P>(s, *lanes[NB - 1], i)};
  const StepBack<P> back[2] = {StepBack<P>(s, *lanes[0], i), StepBack<P>(s, *lanes[NB - 1], i)};
  const auto column = [&](idx d, auto kind) STPN_LAMBDA {
    constexpr Column of = decltype(kind)::value;
    constexpr bool apart = of == kInputApart;
    const V<T> w = parameter<P>(row, d, kW), lambda = lambda_at<P>(row, d),
               gamma = gamma_at<P>(row, d);
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
      const V<T> before = load(k.F + d), f = k.masked ? clamped<P>(before, limit) : before;
      const V<T> u = load(k.u + d);
      V<T> g;
      if constexpr (P::alpha) g = w + alpha * f;
      else if constexpr (P::norm == kNormPost) g = w + k.eff * f;
      else g = w + f;
      const V<T> kept = k.kept * D, post = k.post * D;
      if constexpr (P::rates) {
        dlambda += kept * f;
        dgamma += post * (apart ? load(k.pre + d) : u);
      }
      V<T> dg = k.c1 * u;
      if constexpr (P::norm != kNormNone) dg += k.c2 * g;
      if constexpr (P::power) dg += k.c4 * (load(k.u2 + d) * sign<T>(g));
      if constexpr (of != kNoInput) {
        V<T> du = load(k.du + d) + k.c1 * g;
        if constexpr (P::power) du += (k.c4 + k.c4) * (load(k.u_w + d) * abs(g));
        if constexpr (!P::own_pre && !apart) du += P::rates ? gamma * post : post;
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
      if constexpr (P::clamp) {
        const auto passed = abs(before) <= limit;  // like torch's clamp, also of the limit itself
        if (k.masked) D = passed ? D : V<T>{};
        if constexpr (NEXT)
          sums[b].template add<P::own_pre || apart>(d, D, passed ? f : V<T>{}, gamma);
      } else if constexpr (NEXT) {
        sums[b].template add<P::own_pre || apart>(d, D, f, gamma);
      }
      store(k.dF + d, D);
    }
    store(slot<P>(grads, d, kW), dw);
    if constexpr (P::rates) {
      store(slot<P>(grads, d, kLambda), dlambda);
      store(slot<P>(grads, d, kGamma), dgamma);
    }
    if constexpr (P::alpha) store(slot<P>(grads, d, kAlpha<P>), dalpha);
  };
  idx d = 0;
  for (; d < wanted.du_from; d += L) column(d, Constant<kNoInput>{});
  if constexpr (P::rates)
    if (wanted.associate_new)
      for (; d < Dp; d += L) column(d, Constant<kInputApart>{});
  for (; d < Dp; d += L) column(d, Constant<kInput>{});
  if constexpr (NEXT)
    for (int b = 0; b < NB; ++b) sums[b].put(*lanes[b], i);
}

// One step of all lanes that run; compiled once per plan, whatever the cell.
template <class P, bool NEXT>
__attribute__((noinline)) void backward_sweep(const Synapses<Scalar<P>>& s, Scalar<P>* grads,
                                              SweepLane<Scalar<P>>* const* lanes, int n,
                                              const Wanted& wanted) {
  for (idx i = 0; i < s.R; ++i) {
    int b = 0;
    if constexpr (!P::across)
      for (; b + 1 < n; b += 2) backward_tile<P, NEXT, 2>(s, grads, lanes + b, i, wanted);
    if (b < n) backward_tile<P, NEXT, 1>(s, grads, lanes + b, i, wanted);
  }
}

// The sums of the last step, where no backward sweep comes before it to take them along.
template <class P>
__attribute__((noinline)) void sums_sweep(const Synapses<Scalar<P>>& s, SweepLane<Scalar<P>>& lane,
                                          const Scalar<P>* F, bool apart) {
  using T = Scalar<P>;
  const idx Dp = s.Dp;
  for (idx i = 0; i < s.R; ++i) {
    StepSums<P> sums(s, lane, i);
    const T *row = parameter_row<P>(s, i), *dF = lane.dF + i * Dp;
    for (idx d = 0; d < Dp; d += kLanes<T>) {
      const V<T> D = load(dF + d), f = load(F + i * Dp + d), gamma = gamma_at<P>(row, d);
      if (P::rates && apart) sums.template add<true>(d, D, f, gamma);
      else sums.add(d, D, f, gamma);
    }
    sums.put(lane, i);
  }
}

}  // namespace stpn::STPN_ISA
