// Fast Weights: p = W_x x + b + W_h h_prev; h_s = tanh(LN(p)); h = tanh(LN(p + A h_s)). A record
// has the two arguments of LN.
#pragma once

#include "../neurons.h"

namespace stpn::STPN_ISA {

struct FastWeights : CellTraits {
  static constexpr bool inner = true, own_u = true, own_pre = true, updates_first = true;
  static constexpr bool weight_apart = true, rates = false, norms = false;
  static constexpr Clamp clamp = Clamp::kNever;
  static constexpr idx saved_per_unit = 2;
  static double lambda(const Call& c) { return c.decay; }
  static double gamma(const Call& c) { return c.rate; }

  // All arrays here are padded to whole vectors; `hat` gets (p - mean) / deviation, padding zero.
  // Returns 1 / deviation.
  template <class P, class T = Scalar<P>>
  static STPN_INLINE Each<P> standardise(const Shared<P, FastWeights>& sh, const T* p, T* hat) {
    V<T> values{}, squares{};
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA { values += load(p + k); });
    const Each<P> mean = total<P>(values) / T(sh.H);
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA { store(hat + k, load(p + k) - mean); });
    clear(hat + sh.Hn, sh.Hp - sh.Hn);
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA { squares += load(hat + k) * load(hat + k); });
    const V<T> inverse = T(1) / sqrt<T>(spread<P>(total<P>(squares)) / T(sh.H) + T(sh.call.ln_eps));
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA { store(hat + k, load(hat + k) * inverse); });
    return unspread<P>(inverse);
  }
  template <class P, class T = Scalar<P>>
  static STPN_INLINE void norm_tanh(const Shared<P, FastWeights>& sh, Lane<T>& lane, const T* p,
                                    T* out) {
    standardise(sh, p, lane.z);
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA {
      store(lane.z + k, tanh(load(lane.z + k) * load(sh.ln_w + k) + load(sh.ln_b + k)));
    });
    copy(out, lane.z, sh.Hn);
  }
  // dp of out = tanh(LN(p)), added to lane.dp; dout in lane.act.
  template <class P, class T = Scalar<P>>
  static STPN_INLINE void norm_tanh_back(const Shared<P, FastWeights>& sh, Lane<T>& lane,
                                         Gradients<P, FastWeights>& g, const T* p, const T* out) {
    const Each<P> inverse = standardise(sh, p, lane.z);
    V<T> values{}, dots{};
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA {
      const V<T> o = load(out + k), dn = load(lane.act + k) * (T(1) - o * o),
                 hat = load(lane.z + k);
      store(g.ln_w + k, load(g.ln_w + k) + dn * hat);
      store(g.ln_b + k, load(g.ln_b + k) + dn);
      const V<T> work = dn * load(sh.ln_w + k);
      store(lane.act + k, work);
      values += work;
      dots += work * hat;
    });
    const Each<P> mean = total<P>(values) / T(sh.H), dot = total<P>(dots) / T(sh.H);
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA {
      store(lane.dp + k,
            load(lane.dp + k) + (load(lane.act + k) - mean - load(lane.z + k) * dot) * inverse);
    });
  }

  // Of the weight from hidden to hidden: row i, at element j of a lane.
  template <class P>
  static STPN_INLINE V<Scalar<P>> w_at(const Shared<P, FastWeights>& sh, idx i, idx j) {
    if constexpr (P::across) return splat(sh.w_apart[i * sh.H + idx(size_t(j) / P::wide)]);
    else return load(sh.w_apart + i * sh.Hp + j);
  }

  // u = h_s; lane.h holds h_prev.
  template <class P, class T = Scalar<P>>
  static STPN_INLINE void input(const Shared<P, FastWeights>& sh, Lane<T>& lane, const T* p) {
    for (idx i = 0; i < sh.H; ++i) {
      V<T> dot{};
      vectors<T>(sh.Hn, [&](idx j) STPN_LAMBDA { dot += w_at(sh, i, j) * load(lane.h + j); });
      set<P>(lane.p, i, get<P>(p, i) + total<P>(dot));
    }
    norm_tanh(sh, lane, lane.p, lane.u);
  }

  // u of a step, from its record.
  template <class P, class T = Scalar<P>>
  static STPN_INLINE void recall_u(const Shared<P, FastWeights>& sh, Lane<T>& lane, const T* record,
                                   T* u) {
    copy(lane.p, record + sh.record.extra, sh.Hn);  // into memory of whole vectors
    norm_tanh(sh, lane, lane.p, u);
  }

  template <class P, class T = Scalar<P>>
  static STPN_INLINE Each<P> forward(const Shared<P, FastWeights>& sh, Lane<T>& lane, const T*,
                                     T* record) {
    V<T> power{};
    if constexpr (P::power) power = load(lane.gp);
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA {
      store(lane.q + k, load(lane.p + k) + load(lane.gu + k));
      if constexpr (P::power) {
        const V<T> h = load(lane.h + k);
        power += load(sh.power_weight + k) * h * h * load(sh.w_abs + k);
      }
    });
    norm_tanh(sh, lane, lane.q, lane.h);
    copy(lane.post, lane.h, sh.Hn);
    copy(lane.pre_prev, lane.h, sh.Hn);
    fill(lane.kept, sh.Hn, T(1));
    if (record) {
      copy(record + sh.record.extra, lane.p, sh.Hn);
      copy(record + sh.record.extra + sh.Hn, lane.q, sh.Hn);
    }
    return total<P>(power);
  }

  template <class P, class T = Scalar<P>>
  static STPN_INLINE void recall(const Shared<P, FastWeights>& sh, const T*, const T* y, T* post,
                                 T* kept, T*) {
    copy(post, y, sh.Hn);
    fill(kept, sh.Hn, T(1));
  }

  // lane.h holds h_prev; lane.dpre what the next step's update wants of h.
  template <class P, class T = Scalar<P>>
  static STPN_INLINE void backward(const Shared<P, FastWeights>& sh, Lane<T>& lane,
                                   Gradients<P, FastWeights>& g, const T* dy, const T*,
                                   Each<P> dpower, Each<P>) {
    const idx H = sh.Hn;
    for (idx k = 0; k < H; ++k)
      lane.act[k] = lane.dh[k] + (dy ? dy[k] : T(0)) + lane.s1[k] + lane.dpre[k];
    copy(lane.p, lane.record + sh.record.extra, H);
    copy(lane.q, lane.record + sh.record.extra + H, H);
    clear(lane.dp, sh.Hp);
    norm_tanh_back(sh, lane, g, lane.q, lane.post);
    copy(lane.c1, lane.dp, H);
    if constexpr (P::power)
      for (idx k = 0; k < sh.H; ++k) set<P>(lane.c4, k, dpower);
    clear(lane.dh, H);
    clear(lane.dpre, H);
  }

  template <class P, class T = Scalar<P>>
  static STPN_INLINE const T* propagate(const Shared<P, FastWeights>& sh, Lane<T>& lane,
                                        Gradients<P, FastWeights>& g, Each<P> dpower) {
    copy(lane.act, lane.du, sh.Hn);
    norm_tanh_back(sh, lane, g, lane.p, lane.u);
    clear(lane.du, sh.Hp);
    for (idx i = 0; i < sh.H; ++i) {
      const V<T> dp = factor<P>(lane.dp, i);
      vectors<T>(sh.Hn, [&](idx j) STPN_LAMBDA {
        const V<T> h = load(lane.h + j), w = w_at(sh, i, j);
        V<T> dw = load(g.w_apart + i * sh.Hp + j) + dp * h;
        V<T> dh = load(lane.du + j) + dp * w;
        if constexpr (P::power) {
          const V<T> e = spread<P>(dpower) * load(sh.power_weight + j) * h;
          dw += e * h * sign<T>(w);
          dh += (e + e) * abs(w);
        }
        store(g.w_apart + i * sh.Hp + j, dw);
        store(lane.du + j, dh);
      });
    }
    return lane.dp;
  }
};

}  // namespace stpn::STPN_ISA
