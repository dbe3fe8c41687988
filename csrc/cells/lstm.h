// STPNl, an LSTM whose gates are rows i, f, g, o: c' = f c + i g, h = o tanh(c'). The post-synaptic
// factor of a row is its gate. A record also has the gates and c'.
#pragma once

#include "../neurons.h"

namespace stpn::STPN_ISA {

struct Lstm : CellTraits {
  static constexpr idx rows = 4;
  static constexpr bool has_c = true, across = false, every_plan = false;
  static constexpr idx saved_per_unit = 5;

  // The cell state after a step, in its record.
  template <class P>
  static const Scalar<P>* cell_of(const Shared<P, Lstm>& sh, const Scalar<P>* record) {
    return record + sh.record.extra + 4 * sh.Hn;
  }

  template <class P>
  static STPN_INLINE void input(const Shared<P, Lstm>&, Lane<Scalar<P>>&, const Scalar<P>*) {}

  template <class P, class T = Scalar<P>>
  static STPN_INLINE Each<P> forward(const Shared<P, Lstm>& sh, Lane<T>& lane, const T*,
                                     T* record) {
    const idx H = sh.Hn;
    const Each<P> power = normalise(sh, lane, record);
    // A block's last vector may write into the next block, which is written after it.
    for (int gate = 0; gate < 4; ++gate)
      activate(gate == 2 ? Activation::kTanh : Activation::kSigmoid, lane.z + gate * H,
               lane.act + gate * H, H);
    copy(lane.post, lane.act, sh.Rn);
    const T *i = lane.act, *f = i + H, *g = f + H, *o = g + H;
    for (idx k = 0; k < H; ++k) lane.c[k] = f[k] * lane.c[k] + i[k] * g[k];
    vectors<T>(H, [&](idx k) STPN_LAMBDA { store(lane.h + k, tanh(load(lane.c + k))); });
    for (idx k = 0; k < H; ++k) lane.h[k] *= o[k];
    if (record) {
      copy(record + sh.record.extra, lane.act, 4 * H);
      copy(record + sh.record.extra + 4 * H, lane.c, H);
    }
    return power;
  }

  template <class P, class T = Scalar<P>>
  static STPN_INLINE void recall(const Shared<P, Lstm>& sh, const T* record, const T*, T* post,
                                 T* kept, T* eff) {
    recall_scales(sh, record, kept, eff);
    copy(post, record + sh.record.extra, sh.Rn);
  }

  // lane.c holds the cell state before the step.
  template <class P, class T = Scalar<P>>
  static STPN_INLINE void backward(const Shared<P, Lstm>& sh, Lane<T>& lane, Gradients<P, Lstm>& gr,
                                   const T* dy, const T*, Each<P> dpower, Each<P> free_f) {
    const idx H = sh.Hn;
    const T *i = lane.record + sh.record.extra, *f = i + H, *g = f + H, *o = g + H;
    copy(lane.q, cell_of(sh, lane.record), H);
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

  template <class P>
  static STPN_INLINE const Scalar<P>* propagate(const Shared<P, Lstm>&, Lane<Scalar<P>>& lane,
                                                Gradients<P, Lstm>&, Each<P>) {
    return lane.du;
  }
};

}  // namespace stpn::STPN_ISA
