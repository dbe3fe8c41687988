// Modulated plasticity: h = tanh(p + G h_prev); post = m h with m = tanh(v.h + d), or m = eta. A
// record has m.
#pragma once

#include "../neurons.h"

namespace stpn::STPN_ISA {

struct ModPlast : CellTraits {
  static constexpr bool inner = true, reads_y = true, alpha = true, rates = false, norms = false;
  static constexpr Clamp clamp = Clamp::kAlways;
  static constexpr idx saved_per_step = 1;

  template <class P>
  static STPN_INLINE void input(const Shared<P, ModPlast>&, Lane<Scalar<P>>&, const Scalar<P>*) {}

  template <class P, class T = Scalar<P>>
  static STPN_INLINE Each<P> forward(const Shared<P, ModPlast>& sh, Lane<T>& lane, const T* p,
                                     T* record) {
    const idx H = sh.Hn;
    for (idx k = 0; k < H; ++k) lane.z[k] = p[k] + lane.gu[k];
    activate(Activation::kTanh, lane.z, lane.h, H);
    clear(lane.h + H, sh.Hp - H);
    V<T> m = splat(sh.eta);
    if (sh.call.mod_v) {
      V<T> dot{};
      vectors<T>(H, [&](idx k) STPN_LAMBDA { dot += load(sh.v + k) * load(lane.h + k); });
      m = tanh(spread<P>(total<P>(dot)) + sh.d);
    }
    vectors<T>(H, [&](idx k) STPN_LAMBDA {
      store(lane.post + k, load(lane.h + k) * m);
      store(lane.kept + k, splat(T(1)));
    });
    if (record) set<P>(record + sh.record.extra, 0, unspread<P>(m));
    if constexpr (P::power) return total<P>(load(lane.gp));
    return Each<P>{};
  }

  template <class P, class T = Scalar<P>>
  static STPN_INLINE void recall(const Shared<P, ModPlast>& sh, const T* record, const T* y,
                                 T* post, T* kept, T*) {
    const Each<P> m = get<P>(record + sh.record.extra, 0);
    for (idx k = 0; k < sh.H; ++k) set<P>(post, k, m * get<P>(y, k));
    fill(kept, sh.Hn, T(1));
  }

  template <class P, class T = Scalar<P>>
  static STPN_INLINE void backward(const Shared<P, ModPlast>& sh, Lane<T>& lane,
                                   Gradients<P, ModPlast>& g, const T* dy, const T* y,
                                   Each<P> dpower, Each<P>) {
    using E = Each<P>;
    const E m = get<P>(lane.record + sh.record.extra, 0);
    E dm{};
    for (idx k = 0; k < sh.H; ++k) dm += get<P>(y, k) * get<P>(lane.s1, k);
    const E dv = sh.call.mod_v ? dm * (T(1) - m * m) : E{};
    T* of_m = sh.call.mod_v ? g.d : g.eta;
    set<P>(of_m, 0, get<P>(of_m, 0) + (sh.call.mod_v ? dv : dm));
    for (idx k = 0; k < sh.H; ++k) {
      const E yk = get<P>(y, k);
      E dh = get<P>(lane.dh, k) + m * get<P>(lane.s1, k) + dv * get<P>(sh.v, k);
      if (dy) dh += get<P>(dy, k);
      set<P>(g.v, k, get<P>(g.v, k) + dv * yk);
      const E dz = dh * (T(1) - yk * yk);
      set<P>(lane.c1, k, dz);
      set<P>(lane.dp, k, dz);
      if constexpr (P::power) set<P>(lane.c4, k, dpower);
    }
    clear(lane.dh, sh.Hn);
  }

  template <class P>
  static STPN_INLINE const Scalar<P>* propagate(const Shared<P, ModPlast>&, Lane<Scalar<P>>& lane,
                                                Gradients<P, ModPlast>&, Each<P>) {
    return lane.dp;
  }
};

}  // namespace stpn::STPN_ISA
