// Neurons: everything that costs one operation per neuron and time step, for each kind of cell.
//
// A cell turns the row sums of a step into activations (`settle`), and the gradients of activations
// into the coefficients of the backward sweep (`unsettle`).
#pragma once

#include "lane.h"

namespace stpn::STPN_ISA {

template <class T, class F> STPN_INLINE void vectors(idx n, F body) {
  for (idx i = 0; i < n; i += kLanes<T>) body(i);
}

// Of an array of whole vectors.
template <class T> STPN_INLINE bool finite(const T* values, idx n) {
  V<T> rest{};
  vectors<T>(n, [&](idx i) STPN_LAMBDA { rest += load(values + i) * T(0); });
  return sum(rest) == T(0);
}

template <class T> STPN_INLINE void activate(Activation kind, const T* z, T* out, idx n) {
  switch (kind) {
    case Activation::kTanh: vectors<T>(n, [&](idx i) STPN_LAMBDA { store(out + i, tanh(load(z + i))); }); break;
    case Activation::kSigmoid: vectors<T>(n, [&](idx i) STPN_LAMBDA { store(out + i, sigmoid(load(z + i))); }); break;
    case Activation::kRelu: vectors<T>(n, [&](idx i) STPN_LAMBDA { store(out + i, relu<T>(load(z + i))); }); break;
  }
}

// dz = dact * derivative, from the activation itself.
template <class T> STPN_INLINE V<T> through(Activation kind, V<T> act, V<T> dact) {
  const V<T> one = splat(T(1));
  switch (kind) {
    case Activation::kTanh: return dact * (one - act * act);
    case Activation::kSigmoid: return dact * act * (one - act);
    default: return act <= V<T>{} ? V<T>{} : dact;  // like torch's, also of NaN
  }
}

// From row sums to pre-activations and the kept share of F; returns the power of the step. Common to
// the plain and the gated STPN. `record` is null where nothing is to be saved.
template <class P, CellKind K>
STPN_INLINE Each<P> normalise(const Shared<P, K>& sh, Neurons<typename P::T>& lane, typename P::T* record) {
  using T = typename P::T;
  const idx Rp = sh.s.Rp, R = sh.Rn;
  V<T> power{};
  vectors<T>(Rp, [&](idx i) STPN_LAMBDA {
    V<T> a = load(lane.gu + i);
    if constexpr (P::norm != kNormNone) {
      const V<T> n = divisor<T>(load(lane.gg + i)), inverse = T(1) / n;
      a *= inverse;
      store(lane.gu + i, a);
      store(lane.gg + i, n);
      if constexpr (P::norm == kNormPre) store(lane.kept + i, inverse);
      else store(lane.kept + i, load(lane.eff + i));
      if constexpr (P::power) power += load(lane.gp + i) * inverse;
    } else {
      store(lane.kept + i, splat(T(1)));
    }
    store(lane.z + i, a + load(sh.bias + i));
  });
  if constexpr (P::power && P::norm == kNormNone) power = load(lane.gp);
  if (record) {
    if constexpr (P::norm != kNormNone) copy(record + sh.record.n, lane.gg, R), copy(record + sh.record.a, lane.gu, R);
    if constexpr (P::norm == kNormPost) {
      copy(record + sh.record.eff, lane.eff, R), copy(record + sh.record.fu, lane.fu, R);
      copy(record + sh.record.fg, lane.fg, R);
      if constexpr (P::power) copy(record + sh.record.fp, lane.fp, R);
    }
    if constexpr (P::power && P::norm != kNormNone) copy(record + sh.record.gp, lane.gp, R);
  }
  return total<P>(power);
}

// What the update that ended a step used: kept and eff, from its record.
template <class P, CellKind K>
STPN_INLINE void recall_scales(const Shared<P, K>& sh, const typename P::T* record, typename P::T* kept,
                               typename P::T* eff) {
  using T = typename P::T;
  for (idx i = 0; i < sh.Rn; ++i) {
    if constexpr (P::norm == kNormPre) kept[i] = T(1) / record[sh.record.n + i];
    else if constexpr (P::norm == kNormPost) kept[i] = eff[i] = record[sh.record.eff + i];
    else kept[i] = T(1);
  }
}

// Coefficients of the backward sweep from dz (in lane.z). `free_f` is 1 where F_t came from an update,
// so that in norm post its eff depends on it, else 0.
template <class P, CellKind K>
STPN_INLINE void coefficients(const Shared<P, K>& sh, Neurons<typename P::T>& lane, typename P::T* __restrict dbias,
                              Each<P> dP, Each<P> free_f) {
  using T = typename P::T;
  using E = Each<P>;
  const Record& at = sh.record;
  const T *__restrict record = lane.record, *__restrict dz = lane.z, *__restrict s2 = lane.s2, *__restrict eff = lane.eff;
  T *__restrict c1 = lane.c1, *__restrict c2 = lane.c2, *__restrict c3 = lane.c3, *__restrict c4 = lane.c4;
  for (idx i = 0; i < sh.s.R; ++i) {
    const E dzi = get<P>(dz, i);
    set<P>(dbias, i, get<P>(dbias, i) + dzi);
    if constexpr (P::norm == kNormNone) {
      set<P>(c1, i, dzi);
      if constexpr (P::power) set<P>(c4, i, dP);
    } else {
      const E inverse = T(1) / get<P>(record + at.n, i);
      E dn = get<P>(record + at.a, i) * dzi;
      if constexpr (P::norm == kNormPre) dn += get<P>(s2, i) * inverse;
      if constexpr (P::power) {
        if (sh.call.dpower) dn += dP * get<P>(record + at.gp, i) * inverse;
        set<P>(c4, i, dP * inverse);
      }
      const E to_u = dzi * inverse, to_g = -dn * inverse * inverse;
      set<P>(c1, i, to_u);
      set<P>(c2, i, to_g);
      if constexpr (P::norm == kNormPost) {
        E deff = get<P>(s2, i) + to_u * get<P>(record + at.fu, i) + to_g * get<P>(record + at.fg, i);
        if constexpr (P::power) deff += dP * inverse * (sh.call.dpower ? get<P>(record + at.fp, i) : E{});
        const E e = get<P>(eff, i), share = free_f * e;
        set<P>(c3, i, share == T(0) ? E{} : -share * e * e * deff);  // an infinite norm leaves no gradient
      }
    }
  }
}

template <class P, CellKind K> struct Cell;

// h = act(z)
template <class P> struct Cell<P, CellKind::kPlain> {
  using T = typename P::T;
  using Sh = Shared<P, CellKind::kPlain>;
  using G = Gradients<P, CellKind::kPlain>;
  static STPN_INLINE void input(const Sh&, Neurons<T>&, const T*) {}
  static STPN_INLINE Each<P> settle(const Sh& sh, Neurons<T>& lane, const T*, T* record) {
    const Each<P> power = normalise(sh, lane, record);
    activate(Activation(sh.call.activation), lane.z, lane.post, sh.s.Rp);
    copy(lane.h + sh.first, lane.post, sh.units);
    return power;
  }
  static STPN_INLINE void recall(const Sh& sh, const T* record, const T* y, T* post, T* kept, T* eff) {
    recall_scales(sh, record, kept, eff);
    copy(post, y + sh.first, sh.units);
  }
  static STPN_INLINE void unsettle(const Sh& sh, Neurons<T>& lane, G& g, const T* dy, const T*, Each<P> dpower, Each<P> free_f) {
    const auto kind = Activation(sh.call.activation);
    if (dy)
      for (idx i = 0; i < sh.units; ++i) lane.dh[i] += dy[sh.first + i];
    vectors<T>(sh.s.Rp, [&](idx i) STPN_LAMBDA {
      store(lane.z + i, through<T>(kind, load(lane.post + i), load(lane.dh + i) + load(lane.s1 + i)));
    });
    coefficients(sh, lane, g.bias, dpower, free_f);
    clear(lane.dh, sh.units);
  }
  static STPN_INLINE const T* propagate(const Sh&, Neurons<T>& lane, G&, Each<P>) { return lane.du; }
};

// An LSTM's gates: rows i, f, g, o; c' = f c + i g, h = o tanh(c').
template <class P> struct Cell<P, CellKind::kLstm> {
  using T = typename P::T;
  using Sh = Shared<P, CellKind::kLstm>;
  using G = Gradients<P, CellKind::kLstm>;
  static STPN_INLINE void input(const Sh&, Neurons<T>&, const T*) {}
  static STPN_INLINE Each<P> settle(const Sh& sh, Neurons<T>& lane, const T*, T* record) {
    const idx H = sh.Hn;
    const Each<P> power = normalise(sh, lane, record);
    // A block's last vector may write into the next block, which is written after it.
    for (int gate = 0; gate < 4; ++gate)
      activate(gate == 2 ? Activation::kTanh : Activation::kSigmoid, lane.z + gate * H, lane.act + gate * H, H);
    copy(lane.post, lane.act, sh.Rn);
    const T *i = lane.act, *f = i + H, *g = f + H, *o = g + H;
    for (idx k = 0; k < H; ++k) lane.c[k] = f[k] * lane.c[k] + i[k] * g[k];
    vectors<T>(H, [&](idx k) STPN_LAMBDA { store(lane.h + k, tanh(load(lane.c + k))); });
    for (idx k = 0; k < H; ++k) lane.h[k] *= o[k];
    if (record) copy(record + sh.record.extra, lane.act, 4 * H), copy(record + sh.record.extra + 4 * H, lane.c, H);
    return power;
  }
  static STPN_INLINE void recall(const Sh& sh, const T* record, const T*, T* post, T* kept, T* eff) {
    recall_scales(sh, record, kept, eff);
    copy(post, record + sh.record.extra, sh.Rn);
  }
  // lane.c holds the cell state before the step.
  static STPN_INLINE void unsettle(const Sh& sh, Neurons<T>& lane, G& gr, const T* dy, const T*, Each<P> dpower, Each<P> free_f) {
    const idx H = sh.Hn;
    const T *i = lane.record + sh.record.extra, *f = i + H, *g = f + H, *o = g + H, *c = o + H;
    copy(lane.q, c, H);
    vectors<T>(H, [&](idx k) STPN_LAMBDA { store(lane.q + k, tanh(load(lane.q + k))); });
    for (idx k = 0; k < H; ++k) {
      const T tc = lane.q[k], dh = lane.dh[k] + (dy ? dy[k] : T(0));
      const T dc = lane.dc[k] + dh * o[k] * (T(1) - tc * tc);
      const T di = dc * g[k] + lane.s1[k], df = dc * lane.c[k] + lane.s1[H + k];
      const T dg = dc * i[k] + lane.s1[2 * H + k], d_o = dh * tc + lane.s1[3 * H + k];
      lane.z[k] = di * i[k] * (T(1) - i[k]);
      lane.z[H + k] = df * f[k] * (T(1) - f[k]);
      lane.z[2 * H + k] = dg * (T(1) - g[k] * g[k]);
      lane.z[3 * H + k] = d_o * o[k] * (T(1) - o[k]);
      lane.dc[k] = dc * f[k];
      lane.dh[k] = 0;
    }
    coefficients(sh, lane, gr.bias, dpower, free_f);
  }
  static STPN_INLINE const T* propagate(const Sh&, Neurons<T>& lane, G&, Each<P>) { return lane.du; }
};

// Modulated plasticity: h = tanh(p + G h_prev); post = m h with m = tanh(v.h + d), or m = eta.
template <class P> struct Cell<P, CellKind::kModPlast> {
  using T = typename P::T;
  using Sh = Shared<P, CellKind::kModPlast>;
  using G = Gradients<P, CellKind::kModPlast>;
  static STPN_INLINE void input(const Sh&, Neurons<T>&, const T*) {}
  static STPN_INLINE Each<P> settle(const Sh& sh, Neurons<T>& lane, const T* p, T* record) {
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
  static STPN_INLINE void recall(const Sh& sh, const T* record, const T* y, T* post, T* kept, T*) {
    const Each<P> m = get<P>(record + sh.record.extra, 0);
    for (idx k = 0; k < sh.H; ++k) set<P>(post, k, m * get<P>(y, k));
    for (idx k = 0; k < sh.Hn; ++k) kept[k] = T(1);
  }
  static STPN_INLINE void unsettle(const Sh& sh, Neurons<T>& lane, G& g, const T* dy, const T* y, Each<P> dpower, Each<P>) {
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
  static STPN_INLINE const T* propagate(const Sh&, Neurons<T>& lane, G&, Each<P>) { return lane.dp; }
};

// Fast Weights: p = W_x x + b + W_h h_prev; h_s = tanh(LN(p)); h = tanh(LN(p + A h_s)).
template <class P> struct Cell<P, CellKind::kFastWeights> {
  using T = typename P::T;
  using Sh = Shared<P, CellKind::kFastWeights>;
  using G = Gradients<P, CellKind::kFastWeights>;

  // All arrays here are padded to whole vectors; `hat` gets (p - mean) / deviation, padding zero.
  // Returns 1 / deviation.
  static STPN_INLINE Each<P> standardise(const Sh& sh, const T* p, T* hat) {
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
  static STPN_INLINE void norm_tanh(const Sh& sh, Neurons<T>& lane, const T* p, T* out) {
    standardise(sh, p, lane.z);
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA {
      store(lane.z + k, tanh(load(lane.z + k) * load(sh.ln_w + k) + load(sh.ln_b + k)));
    });
    copy(out, lane.z, sh.Hn);
  }
  // dp of out = tanh(LN(p)), added to lane.dp; dout in lane.act.
  static STPN_INLINE void norm_tanh_back(const Sh& sh, Neurons<T>& lane, G& g, const T* p, const T* out) {
    const Each<P> inverse = standardise(sh, p, lane.z);
    V<T> values{}, dots{};
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA {
      const V<T> o = load(out + k), dn = load(lane.act + k) * (T(1) - o * o), hat = load(lane.z + k);
      store(g.ln_w + k, load(g.ln_w + k) + dn * hat);
      store(g.ln_b + k, load(g.ln_b + k) + dn);
      const V<T> work = dn * load(sh.ln_w + k);
      store(lane.act + k, work);
      values += work;
      dots += work * hat;
    });
    const Each<P> mean = total<P>(values) / T(sh.H), dot = total<P>(dots) / T(sh.H);
    vectors<T>(sh.Hn, [&](idx k) STPN_LAMBDA {
      store(lane.dp + k, load(lane.dp + k) + (load(lane.act + k) - mean - load(lane.z + k) * dot) * inverse);
    });
  }

  // Of the weight from hidden to hidden: row i, at element j of a lane.
  static STPN_INLINE V<T> w_at(const Sh& sh, idx i, idx j) {
    if constexpr (P::across) return splat(sh.w_h[i * sh.H + idx(size_t(j) / P::wide)]);
    else return load(sh.w_h + i * sh.Hp + j);
  }

  // u = h_s; lane.h holds h_prev.
  static STPN_INLINE void input(const Sh& sh, Neurons<T>& lane, const T* p) {
    for (idx i = 0; i < sh.H; ++i) {
      V<T> dot{};
      vectors<T>(sh.Hn, [&](idx j) STPN_LAMBDA { dot += w_at(sh, i, j) * load(lane.h + j); });
      set<P>(lane.p, i, get<P>(p, i) + total<P>(dot));
    }
    norm_tanh(sh, lane, lane.p, lane.u);
  }
  static STPN_INLINE Each<P> settle(const Sh& sh, Neurons<T>& lane, const T*, T* record) {
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
    for (idx k = 0; k < sh.Hn; ++k) lane.kept[k] = T(1);
    if (record) {
      copy(record + sh.record.extra, lane.p, sh.Hn), copy(record + sh.record.extra + sh.Hn, lane.q, sh.Hn);
    }
    return total<P>(power);
  }
  static STPN_INLINE void recall(const Sh& sh, const T*, const T* y, T* post, T* kept, T*) {
    copy(post, y, sh.Hn);
    for (idx k = 0; k < sh.Hn; ++k) kept[k] = T(1);
  }
  // lane.h holds h_prev; lane.dpre what the next step's update wants of h.
  static STPN_INLINE void unsettle(const Sh& sh, Neurons<T>& lane, G& g, const T* dy, const T*, Each<P> dpower, Each<P>) {
    const idx H = sh.Hn;
    for (idx k = 0; k < H; ++k) lane.act[k] = lane.dh[k] + (dy ? dy[k] : T(0)) + lane.s1[k] + lane.dpre[k];
    copy(lane.p, lane.record + sh.record.extra, H), copy(lane.q, lane.record + sh.record.extra + H, H);
    clear(lane.dp, sh.Hp);
    norm_tanh_back(sh, lane, g, lane.q, lane.post);
    copy(lane.c1, lane.dp, H);
    if constexpr (P::power)
      for (idx k = 0; k < sh.H; ++k) set<P>(lane.c4, k, dpower);
    clear(lane.dh, H), clear(lane.dpre, H);
  }
  static STPN_INLINE const T* propagate(const Sh& sh, Neurons<T>& lane, G& g, Each<P> dpower) {
    copy(lane.act, lane.du, sh.Hn);
    norm_tanh_back(sh, lane, g, lane.p, lane.u);
    clear(lane.du, sh.Hp);
    for (idx i = 0; i < sh.H; ++i) {
      const V<T> dp = factor<P>(lane.dp, i);
      vectors<T>(sh.Hn, [&](idx j) STPN_LAMBDA {
        const V<T> h = load(lane.h + j), w = w_at(sh, i, j);
        V<T> dw = load(g.w_h + i * sh.Hp + j) + dp * h;
        V<T> dh = load(lane.du + j) + dp * w;
        if constexpr (P::power) {
          const V<T> e = spread<P>(dpower) * load(sh.power_weight + j) * h;
          dw += e * h * sign<T>(w);
          dh += (e + e) * abs(w);
        }
        store(g.w_h + i * sh.Hp + j, dw);
        store(lane.du + j, dh);
      });
    }
    return lane.dp;
  }
};

}  // namespace stpn::STPN_ISA
