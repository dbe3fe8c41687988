// Neurons: what costs one operation per neuron and time step, and more than one cell needs.
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
  const auto each = [&](auto function) STPN_LAMBDA {
    vectors<T>(n, [&](idx i) STPN_LAMBDA { store(out + i, function(load(z + i))); });
  };
  switch (kind) {
    case Activation::kTanh: return each([](V<T> v) STPN_LAMBDA { return tanh(v); });
    case Activation::kSigmoid: return each([](V<T> v) STPN_LAMBDA { return sigmoid(v); });
    case Activation::kRelu: return each([](V<T> v) STPN_LAMBDA { return relu<T>(v); });
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

// From row sums to pre-activations and the kept share of F; returns the power of the step. `record`
// is null where nothing is to be saved.
template <class P, class C>
STPN_INLINE Each<P> normalise(const Shared<P, C>& sh, Lane<Scalar<P>>& lane, Scalar<P>* record) {
  using T = Scalar<P>;
  const idx Rp = sh.s.Rp;
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
    const auto save = [&](idx offset, const T* of_rows) {
      copy(record + offset, of_rows, sh.Rn);
    };
    if constexpr (P::norm != kNormNone) {
      save(sh.record.n, lane.gg);
      save(sh.record.a, lane.gu);
      if (P::power && sh.call.power_weight) save(sh.record.gp, lane.gp);
    }
    if constexpr (P::norm == kNormPost) {
      save(sh.record.eff, lane.eff);
      save(sh.record.fu, lane.fu);
      save(sh.record.fg, lane.fg);
      if (P::power && sh.call.power_weight) save(sh.record.fp, lane.fp);
    }
  }
  return total<P>(power);
}

// What the update that ended a step used: kept and eff, from its record.
template <class P, class C>
STPN_INLINE void recall_scales(const Shared<P, C>& sh, const Scalar<P>* record, Scalar<P>* kept,
                               Scalar<P>* eff) {
  using T = Scalar<P>;
  for (idx i = 0; i < sh.Rn; ++i) {
    if constexpr (P::norm == kNormPre) kept[i] = T(1) / record[sh.record.n + i];
    else if constexpr (P::norm == kNormPost) kept[i] = eff[i] = record[sh.record.eff + i];
    else kept[i] = T(1);
  }
}

// Coefficients of the backward sweep from dz (in lane.z); docs/kernels.md derives them. `free_f` is
// 1 where F_t came from an update, so that in norm post its eff depends on it, else 0.
template <class P, class C>
STPN_INLINE void coefficients(const Shared<P, C>& sh, Lane<Scalar<P>>& lane,
                              Scalar<P>* __restrict dbias, Each<P> dP, Each<P> free_f) {
  using T = Scalar<P>;
  using E = Each<P>;
  const Record& at = sh.record;
  const T* __restrict record = lane.record;
  const T* __restrict dz = lane.z;
  const T* __restrict s2 = lane.s2;
  const T* __restrict eff = lane.eff;
  T* __restrict c1 = lane.c1;
  T* __restrict c2 = lane.c2;
  T* __restrict c3 = lane.c3;
  T* __restrict c4 = lane.c4;
  const bool power = P::power && sh.call.dpower;  // else there may be none in the record
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
        if (power) dn += dP * get<P>(record + at.gp, i) * inverse;
        set<P>(c4, i, dP * inverse);
      }
      const E to_u = dzi * inverse, to_g = -dn * inverse * inverse;
      set<P>(c1, i, to_u);
      set<P>(c2, i, to_g);
      if constexpr (P::norm == kNormPost) {
        E deff =
            get<P>(s2, i) + to_u * get<P>(record + at.fu, i) + to_g * get<P>(record + at.fg, i);
        if constexpr (P::power) deff += dP * inverse * (power ? get<P>(record + at.fp, i) : E{});
        const E e = get<P>(eff, i), share = free_f * e;
        set<P>(c3, i,
               share == T(0) ? E{} : -share * e * e * deff);  // an infinite norm leaves no gradient
      }
    }
  }
}

}  // namespace stpn::STPN_ISA
