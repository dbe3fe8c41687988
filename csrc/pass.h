// What a pass through time, forward or backward, has in common: the lanes of one member of the team
// and its view of the call's arrays.
#pragma once

#include "neurons.h"
#include "sequences.h"

namespace stpn::STPN_ISA {

template <class P, class C> class Pass {
 protected:
  using T = Scalar<P>;

  const Shared<P, C>& sh;
  const Call& c;
  const Synapses<T>& s;
  const idx width;  // lanes in use
  Lane<T> lanes[kGroup<P>];
  SweepLane<T>* active[kGroup<P>];

  // For at most `most` lanes.
  Pass(const Shared<P, C>& shared, idx most)
      : sh(shared), c(shared.call), s(shared.s), width(most < kGroup<P> ? most : kGroup<P>) {}

  // The sequences from b on, in as many lanes as there are; returns how many.
  idx take_lanes(idx b, idx to) {
    idx n = 0;
    for (; n < width && b < to; ++n, b += P::wide) {
      Lane<T>& lane = lanes[n];
      lane.b = b;
      lane.len =
          c.lengths ? idx(at<int64_t>(c.lengths)[b]) : sh.steps;  // lanes of one sequence only
    }
    return n;
  }

  // Views of the call's arrays; of a lane's first sequence.
  const T* x(idx b, idx t) const { return at<T>(c.x) + b * c.x_sb + t * c.x_st; }
  T* y(idx b, idx t) const { return at<T>(c.y) + b * c.y_sb + t * c.y_st; }
  // The first row says how the lanes of the forward pass were made (run.h).
  T* record(idx b, idx t) const {
    return c.saved ? at<T>(c.saved) + (1 + b * sh.steps + t * P::wide) * c.saved_size : nullptr;
  }
  // Of an array (B, rows, D), those of the strip.
  T* rows(int64_t address, idx b) const { return at<T>(address) + (b * sh.rows + sh.first) * s.D; }

  idx hidden_at() const { return C::inner ? 0 : sh.I * P::wide; }  // the place of h in u

  // Of an array (B, H) of states; absent, it is zero.
  void load_state(const Lane<T>& lane, T* to, int64_t address) const {
    if (address) gather<P>(to, at<T>(address) + lane.b * sh.H, sh.H, sh.H);
    else clear(to, sh.Hn);
  }
  void store_state(const Lane<T>& lane, int64_t address, const T* from) const {
    if (address) scatter<P>(at<T>(address) + lane.b * sh.H, sh.H, from, sh.H);
  }

  bool resets(idx b, idx t) const {
    return c.reset && at<uint8_t>(c.reset)[b * c.reset_sb + t * c.reset_st];
  }
  // For each sequence of a lane, by its place k, that starts from a zero state at step t.
  template <class F> void each_reset(const Lane<T>& lane, idx t, F body) const {
    if (c.reset)
      for (idx k = 0; k < P::wide; ++k)
        if (resets(lane.b + k, t)) body(k);
  }
  bool any_reset(const Lane<T>& lane, idx t) const {
    bool any = false;
    each_reset(lane, t, [&](idx) { any = true; });
    return any;
  }

  void load_initial(Lane<T>& lane) {
    load_state(lane, lane.h, c.h0);
    load_state(lane, lane.c, c.c0);
    each_reset(lane, 0, [&](idx k) {
      put<P>(lane.h, sh.Hn, k, T(0));
      put<P>(lane.c, sh.Hn, k, T(0));
    });
  }

  // An array (B, rows, D) from and to the rows of a lane; absent, it is zero.
  void load_rows(const Lane<T>& lane, T* to, int64_t address) const {
    if (!address) return clear(to, s.R * s.Dp);
    const T* from = rows(address, lane.b);
    if (P::across || s.D == s.Dp) return gather<P>(to, from, sh.rows * s.D, s.R * s.D);
    for (idx i = 0; i < s.R; ++i) {
      copy(to + i * s.Dp, from + i * s.D, s.D);
      clear(to + i * s.Dp + s.D, s.Dp - s.D);
    }
  }
  void store_rows(const Lane<T>& lane, int64_t address, const T* from) const {
    T* to = rows(address, lane.b);
    if (to == from) return;
    if constexpr (P::across) return scatter<P>(to, sh.rows * s.D, from, s.R * s.D);
    for (idx i = 0; i < s.R; ++i) copy(to + i * s.D, from + i * s.Dp, s.D);
  }
  void load_f(const Lane<T>& lane, T* to) const {
    load_rows(lane, to, c.f0);
    each_reset(lane, 0, [&](idx k) { put<P>(to, s.R * s.Dp, k, T(0)); });
  }

  // Weighted squares of u for power, and where wanted what they are made of.
  void square(const T* u, T* u2, T* u_w) const {
    vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
      const V<T> v = load(u + d), weighted = load(sh.power_weight + d) * v;
      store(u2 + d, weighted * v);
      if (u_w) store(u_w + d, weighted);
    });
  }
};

}  // namespace stpn::STPN_ISA
