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
    default: return act > V<T>{} ? dact : V<T>{};
  }
}

// From row sums to pre-activations, the kept share of F and the power of the step; common to the
// plain and the gated STPN. `record` is null where nothing is to be saved.
template <class P, CellKind K>
STPN_INLINE void normalise(const Shared<P, K>& sh, Neurons<typename P::T>& lane, typename P::T* record,
                           typename P::T* power) {
  using T = typename P::T;
  const idx Rp = sh.s.Rp, R = sh.s.R;
  V<T> total{};
  vectors<T>(Rp, [&](idx i) STPN_LAMBDA {
    V<T> a = load(lane.gu + i);
    if constexpr (P::norm != kNormNone) {
      const V<T> square = load(lane.gg + i), one = splat(T(1));
      const V<T> n = square == V<T>{} ? one : sqrt<T>(square) + T(1e-16), inverse = one / n;
      a *= inverse;
      store(lane.gu + i, a);
      store(lane.gg + i, n);
      if constexpr (P::norm == kNormPre) store(lane.kept + i, inverse);
      else store(lane.kept + i, load(lane.eff + i));
      if constexpr (P::power) total += load(lane.gp + i) * inverse;
    } else {
      store(lane.kept + i, splat(T(1)));
    }
    store(lane.z + i, a + load(sh.bias + i));
  });
  if constexpr (P::power && P::norm == kNormNone) total = load(lane.gp);
  if constexpr (P::power)
    if (power) *power = sum(total);
  if (record) {
    if constexpr (P::norm != kNormNone) copy(record + sh.record.n, lane.gg, R), copy(record + sh.record.a, lane.gu, R);
    if constexpr (P::norm == kNormPost) {
      copy(record + sh.record.eff, lane.eff, R), copy(record + sh.record.fu, lane.fu, R);
      copy(record + sh.record.fg, lane.fg, R);
      if constexpr (P::power) copy(record + sh.record.fp, lane.fp, R);
    }
    if constexpr (P::power && P::norm != kNormNone) copy(record + sh.record.gp, lane.gp, R);
  }
}

// What the update that ended a step used: kept and eff, from its record.
template <class P, CellKind K>
STPN_INLINE void recall_scales(const Shared<P, K>& sh, const typename P::T* record, typename P::T* kept,
                               typename P::T* eff) {
  using T = typename P::T;
  for (idx i = 0; i < sh.s.R; ++i) {
    if constexpr (P::norm == kNormPre) kept[i] = T(1) / record[sh.record.n + i];
    else if constexpr (P::norm == kNormPost) kept[i] = eff[i] = record[sh.record.eff + i];
    else kept[i] = T(1);
  }
}

// Coefficients of the backward sweep from dz (in lane.z). `free_f`: F_t came from an update, so
// that in norm post its eff depends on it.
template <class P, CellKind K>
STPN_INLINE void coefficients(const Shared<P, K>& sh, Neurons<typename P::T>& lane, typename P::T* __restrict dbias,
                              typename P::T dP, bool free_f) {
  using T = typename P::T;
  const Record& at = sh.record;
  const T *__restrict record = lane.record, *__restrict dz = lane.z, *__restrict s2 = lane.s2, *__restrict eff = lane.eff;
  T *__restrict c1 = lane.c1, *__restrict c2 = lane.c2, *__restrict c3 = lane.c3, *__restrict c4 = lane.c4;
  const T free = free_f ? T(1) : T(0);
  for (idx i = 0; i < sh.s.R; ++i) {
    dbias[i] += dz[i];
    if constexpr (P::norm == kNormNone) {
      c1[i] = dz[i];
      if constexpr (P::power) c4[i] = dP;
    } else {
      const T inverse = T(1) / record[at.n + i];
      T dn = record[at.a + i] * dz[i];
      if constexpr (P::norm == kNormPre) dn += s2[i] * inverse;
      if constexpr (P::power) {
        dn += dP * record[at.gp + i] * inverse;
        c4[i] = dP * inverse;
      }
      c1[i] = dz[i] * inverse;
      c2[i] = -dn * inverse * inverse;
      if constexpr (P::norm == kNormPost) {
        T deff = s2[i] + c1[i] * record[at.fu + i] + c2[i] * record[at.fg + i];
        if constexpr (P::power) deff += c4[i] * record[at.fp + i];
        c3[i] = -free * eff[i] * eff[i] * eff[i] * deff;
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
  static STPN_INLINE void settle(const Sh& sh, Neurons<T>& lane, const T*, T* record, T* power) {
    normalise(sh, lane, record, power);
    activate(Activation(sh.call.activation), lane.z, lane.post, sh.s.Rp);
    copy(lane.h + sh.first, lane.post, sh.units);
  }
  static STPN_INLINE void recall(const Sh& sh, const T* record, const T* y, T* post, T* kept, T* eff) {
    recall_scales(sh, record, kept, eff);
    copy(post, y + sh.first, sh.units);
  }
  static STPN_INLINE void unsettle(const Sh& sh, Neurons<T>& lane, G& g, const T* dy, const T*, T dpower, bool free_f) {
    const auto kind = Activation(sh.call.activation);
    if (dy)
      for (idx i = 0; i < sh.units; ++i) lane.dh[i] += dy[sh.first + i];
    vectors<T>(sh.s.Rp, [&](idx i) STPN_LAMBDA {
      store(lane.z + i, through<T>(kind, load(lane.post + i), load(lane.dh + i) + load(lane.s1 + i)));
    });
    coefficients(sh, lane, g.bias, dpower, free_f);
    clear(lane.dh, sh.units);
  }
  static STPN_INLINE void propagate(const Sh&, Neurons<T>&, G&, T*, T) {}
};

// An LSTM's gates: rows i, f, g, o; c' = f c + i g, h = o tanh(c').
template <class P> struct Cell<P, CellKind::kLstm> {
  using T = typename P::T;
  using Sh = Shared<P, CellKind::kLstm>;
  using G = Gradients<P, CellKind::kLstm>;
  static STPN_INLINE void input(const Sh&, Neurons<T>&, const T*) {}
  static STPN_INLINE void settle(const Sh& sh, Neurons<T>& lane, const T*, T* record, T* power) {
    const idx H = sh.H;
    normalise(sh, lane, record, power);
    // A block's last vector may write into the next block, which is written after it.
    for (int gate = 0; gate < 4; ++gate)
      activate(gate == 2 ? Activation::kTanh : Activation::kSigmoid, lane.z + gate * H, lane.act + gate * H, H);
    copy(lane.post, lane.act, sh.s.R);
    const T *i = lane.act, *f = i + H, *g = f + H, *o = g + H;
    for (idx k = 0; k < H; ++k) lane.c[k] = f[k] * lane.c[k] + i[k] * g[k];
    vectors<T>(H, [&](idx k) STPN_LAMBDA { store(lane.h + k, tanh(load(lane.c + k))); });
    for (idx k = 0; k < H; ++k) lane.h[k] *= o[k];
    if (record) copy(record + sh.record.extra, lane.act, 4 * H), copy(record + sh.record.extra + 4 * H, lane.c, H);
  }
  static STPN_INLINE void recall(const Sh& sh, const T* record, const T*, T* post, T* kept, T* eff) {
    recall_scales(sh, record, kept, eff);
    copy(post, record + sh.record.extra, sh.s.R);
  }
  // lane.c holds the cell state before the step.
  static STPN_INLINE void unsettle(const Sh& sh, Neurons<T>& lane, G& gr, const T* dy, const T*, T dpower, bool free_f) {
    const idx H = sh.H;
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
  static STPN_INLINE void propagate(const Sh&, Neurons<T>&, G&, T*, T) {}
};

// Modulated plasticity: h = tanh(p + G h_prev); post = m h with m = tanh(v.h + d), or m = eta.
template <class P> struct Cell<P, CellKind::kModPlast> {
  using T = typename P::T;
  using Sh = Shared<P, CellKind::kModPlast>;
  using G = Gradients<P, CellKind::kModPlast>;
  static STPN_INLINE void input(const Sh&, Neurons<T>&, const T*) {}
  static STPN_INLINE void settle(const Sh& sh, Neurons<T>& lane, const T* p, T* record, T* power) {
    const idx H = sh.H;
    for (idx k = 0; k < H; ++k) lane.z[k] = p[k] + lane.gu[k];
    activate(Activation::kTanh, lane.z, lane.h, H);
    clear(lane.h + H, sh.Hp - H);
    T m = sh.eta;
    if (sh.call.mod_v) {
      V<T> dot{};
      vectors<T>(H, [&](idx k) STPN_LAMBDA { dot += load(sh.v + k) * load(lane.h + k); });
      m = tanh(splat(sum(dot) + sh.d))[0];
    }
    vectors<T>(H, [&](idx k) STPN_LAMBDA {
      store(lane.post + k, load(lane.h + k) * m);
      store(lane.kept + k, splat(T(1)));
    });
    if constexpr (P::power)
      if (power) *power = sum(load(lane.gp));
    if (record) {
      record[sh.record.extra] = m;
    }
  }
  static STPN_INLINE void recall(const Sh& sh, const T* record, const T* y, T* post, T* kept, T*) {
    for (idx k = 0; k < sh.H; ++k) post[k] = record[sh.record.extra] * y[k], kept[k] = T(1);
  }
  static STPN_INLINE void unsettle(const Sh& sh, Neurons<T>& lane, G& g, const T* dy, const T* y, T dpower, bool) {
    const T m = lane.record[sh.record.extra];
    T dm = 0;
    for (idx k = 0; k < sh.H; ++k) dm += y[k] * lane.s1[k];
    const T dv = sh.call.mod_v ? dm * (T(1) - m * m) : T(0);
    if (sh.call.mod_v) *g.d += dv;
    else *g.eta += dm;
    for (idx k = 0; k < sh.H; ++k) {
      const T dh = lane.dh[k] + (dy ? dy[k] : T(0)) + m * lane.s1[k] + dv * sh.v[k];
      g.v[k] += dv * y[k];
      lane.c1[k] = lane.dp[k] = dh * (T(1) - y[k] * y[k]);
      if constexpr (P::power) lane.c4[k] = dpower;
      lane.dh[k] = 0;
    }
  }
  static STPN_INLINE void propagate(const Sh& sh, Neurons<T>& lane, G&, T* dx, T) {
    if (dx) copy(dx, lane.dp, sh.H);
  }
};

// Fast Weights: p = W_x x + b + W_h h_prev; h_s = tanh(LN(p)); h = tanh(LN(p + A h_s)).
template <class P> struct Cell<P, CellKind::kFastWeights> {
  using T = typename P::T;
  using Sh = Shared<P, CellKind::kFastWeights>;
  using G = Gradients<P, CellKind::kFastWeights>;

  // All arrays here are padded to whole vectors; `hat` gets (p - mean) / deviation, padding zero.
  // Returns 1 / deviation.
  static STPN_INLINE T standardise(const Sh& sh, const T* p, T* hat) {
    V<T> total{}, squares{};
    vectors<T>(sh.H, [&](idx k) STPN_LAMBDA { total += load(p + k); });
    const T mean = sum(total) / T(sh.H);
    vectors<T>(sh.H, [&](idx k) STPN_LAMBDA { store(hat + k, load(p + k) - mean); });
    clear(hat + sh.H, sh.Hp - sh.H);
    vectors<T>(sh.H, [&](idx k) STPN_LAMBDA { squares += load(hat + k) * load(hat + k); });
    const T inverse = T(1) / T(__builtin_sqrt(double(sum(squares) / T(sh.H) + T(sh.call.ln_eps))));
    vectors<T>(sh.H, [&](idx k) STPN_LAMBDA { store(hat + k, load(hat + k) * inverse); });
    return inverse;
  }
  static STPN_INLINE void norm_tanh(const Sh& sh, Neurons<T>& lane, const T* p, T* out) {
    standardise(sh, p, lane.z);
    vectors<T>(sh.H, [&](idx k) STPN_LAMBDA {
      store(lane.z + k, tanh(load(lane.z + k) * load(sh.ln_w + k) + load(sh.ln_b + k)));
    });
    copy(out, lane.z, sh.H);
  }
  // dp of out = tanh(LN(p)), added to lane.dp; dout in lane.act.
  static STPN_INLINE void norm_tanh_back(const Sh& sh, Neurons<T>& lane, G& g, const T* p, const T* out) {
    const T inverse = standardise(sh, p, lane.z);
    V<T> total{}, dots{};
    vectors<T>(sh.H, [&](idx k) STPN_LAMBDA {
      const V<T> o = load(out + k), dn = load(lane.act + k) * (T(1) - o * o), hat = load(lane.z + k);
      store(g.ln_w + k, load(g.ln_w + k) + dn * hat);
      store(g.ln_b + k, load(g.ln_b + k) + dn);
      const V<T> work = dn * load(sh.ln_w + k);
      store(lane.act + k, work);
      total += work;
      dots += work * hat;
    });
    const T mean = sum(total) / T(sh.H), dot = sum(dots) / T(sh.H);
    vectors<T>(sh.H, [&](idx k) STPN_LAMBDA {
      store(lane.dp + k, load(lane.dp + k) + (load(lane.act + k) - mean - load(lane.z + k) * dot) * inverse);
    });
  }

  // u = h_s; lane.h holds h_prev.
  static STPN_INLINE void input(const Sh& sh, Neurons<T>& lane, const T* p) {
    for (idx i = 0; i < sh.H; ++i) {
      V<T> dot{};
      vectors<T>(sh.H, [&](idx j) STPN_LAMBDA { dot += load(sh.w_h + i * sh.Hp + j) * load(lane.h + j); });
      lane.p[i] = p[i] + sum(dot);
    }
    norm_tanh(sh, lane, lane.p, lane.u);
  }
  static STPN_INLINE void settle(const Sh& sh, Neurons<T>& lane, const T*, T* record, T* power) {
    V<T> total{};
    if constexpr (P::power) total = load(lane.gp);
    vectors<T>(sh.H, [&](idx k) STPN_LAMBDA {
      store(lane.q + k, load(lane.p + k) + load(lane.gu + k));
      if constexpr (P::power) {
        const V<T> h = load(lane.h + k);
        total += load(sh.power_weight + k) * h * h * load(sh.w_abs + k);
      }
    });
    if constexpr (P::power)
      if (power) *power = sum(total);
    norm_tanh(sh, lane, lane.q, lane.h);
    copy(lane.post, lane.h, sh.H);
    copy(lane.pre_prev, lane.h, sh.H);
    for (idx k = 0; k < sh.H; ++k) lane.kept[k] = T(1);
    if (record) {
      copy(record + sh.record.extra, lane.p, sh.H), copy(record + sh.record.extra + sh.H, lane.q, sh.H);
    }
  }
  static STPN_INLINE void recall(const Sh& sh, const T*, const T* y, T* post, T* kept, T*) {
    copy(post, y, sh.H);
    for (idx k = 0; k < sh.H; ++k) kept[k] = T(1);
  }
  // lane.h holds h_prev; lane.dpre what the next step's update wants of h.
  static STPN_INLINE void unsettle(const Sh& sh, Neurons<T>& lane, G& g, const T* dy, const T*, T dpower, bool) {
    for (idx k = 0; k < sh.H; ++k) lane.act[k] = lane.dh[k] + (dy ? dy[k] : T(0)) + lane.s1[k] + lane.dpre[k];
    copy(lane.p, lane.record + sh.record.extra, sh.H), copy(lane.q, lane.record + sh.record.extra + sh.H, sh.H);
    clear(lane.dp, sh.Hp);
    norm_tanh_back(sh, lane, g, lane.q, lane.post);
    for (idx k = 0; k < sh.H; ++k) {
      lane.c1[k] = lane.dp[k];
      if constexpr (P::power) lane.c4[k] = dpower;
    }
    clear(lane.dh, sh.H), clear(lane.dpre, sh.H);
  }
  static STPN_INLINE void propagate(const Sh& sh, Neurons<T>& lane, G& g, T* dx, T dpower) {
    copy(lane.act, lane.du, sh.H);
    norm_tanh_back(sh, lane, g, lane.p, lane.u);
    if (dx) copy(dx, lane.dp, sh.H);
    clear(lane.du, sh.Hp);
    for (idx i = 0; i < sh.H; ++i) {
      const V<T> dp = splat(lane.dp[i]);
      vectors<T>(sh.H, [&](idx j) STPN_LAMBDA {
        const idx k = i * sh.Hp + j;
        V<T> dw = load(g.w_h + k) + dp * load(lane.h + j);
        V<T> dh = load(lane.du + j) + dp * load(sh.w_h + k);
        if constexpr (P::power) {
          const V<T> h = load(lane.h + j), e = splat(dpower) * load(sh.power_weight + j) * h, w = load(sh.w_h + k);
          dw += e * h * sign<T>(w);
          dh += (e + e) * abs(w);
        }
        store(g.w_h + k, dw);
        store(lane.du + j, dh);
      });
    }
  }
};

}  // namespace stpn::STPN_ISA
