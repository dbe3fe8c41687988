// STPNf and STPNr: h = act(z), and h is the post-synaptic factor.
#pragma once

#include "../neurons.h"

namespace stpn::STPN_ISA {

struct Plain : CellTraits {
  static constexpr bool strips = true;

  template <class P>
  static STPN_INLINE void input(const Shared<P, Plain>&, Lane<Scalar<P>>&, const Scalar<P>*) {}

  template <class P, class T = Scalar<P>>
  static STPN_INLINE Each<P> forward(const Shared<P, Plain>& sh, Lane<T>& lane, const T*,
                                     T* record) {
    const Each<P> power = normalise(sh, lane, record);
    activate(Activation(sh.call.activation), lane.z, lane.post, sh.s.Rp);
    copy(lane.h + sh.first, lane.post, sh.units);
    return power;
  }

  template <class P, class T = Scalar<P>>
  static STPN_INLINE void recall(const Shared<P, Plain>& sh, const T* record, const T* y, T* post,
                                 T* kept, T* eff) {
    recall_scales(sh, record, kept, eff);
    copy(post, y + sh.first, sh.units);
  }

  template <class P, class T = Scalar<P>>
  static STPN_INLINE void backward(const Shared<P, Plain>& sh, Lane<T>& lane,
                                   Gradients<P, Plain>& g, const T* dy, const T*, Each<P> dpower,
                                   Each<P> free_f) {
    const auto kind = Activation(sh.call.activation);
    if (dy)
      for (idx i = 0; i < sh.units; ++i) lane.dh[i] += dy[sh.first + i];
    vectors<T>(sh.s.Rp, [&](idx i) STPN_LAMBDA {
      store(lane.z + i,
            through<T>(kind, load(lane.post + i), load(lane.dh + i) + load(lane.s1 + i)));
    });
    coefficients(sh, lane, g.bias, dpower, free_f);
    clear(lane.dh, sh.units);
  }

  template <class P>
  static STPN_INLINE const Scalar<P>* propagate(const Shared<P, Plain>&, Lane<Scalar<P>>& lane,
                                                Gradients<P, Plain>&, Each<P>) {
    return lane.du;
  }
};

}  // namespace stpn::STPN_ISA
