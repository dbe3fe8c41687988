// The way through time, forward.
#pragma once

#include "forward_sweep.h"
#include "pass.h"

namespace stpn::STPN_ISA {

template <class P, class C> class ForwardPass : Pass<P, C> {
  using Base = Pass<P, C>;
  using Base::active, Base::c, Base::lanes, Base::s, Base::sh, Base::width;
  using typename Base::T;

  SweepLane<T>* starting[kGroup<P>];  // lanes without an update to make in this step

 public:
  ForwardPass(const Shared<P, C>& shared, idx most) : Base(shared, most) {
    Arena count;
    layout(count);
    Arena arena{static_cast<char*>(scratch(kOfMember, count.used))};
    layout(arena);
  }

  void run(idx from, idx to) {
    for (idx b = from; b < to; b += width * P::wide) run_group(Base::take_lanes(b, to));
  }

 private:
  void layout(Arena& a) {
    for (idx k = 0; k < width; ++k) {
      layout_lane<P, C>(a, lanes[k], sh, 0);
      lanes[k].f_own = a.take_raw<T>(s.R * s.Dp);
    }
  }

  void run_group(idx n) {
    idx longest = 0;
    for (idx k = 0; k < n; ++k) {
      start(lanes[k]);
      if (lanes[k].len > longest) longest = lanes[k].len;
    }
    for (idx t = 0; t < longest; ++t) step(n, t);
    for (idx k = 0; k < n; ++k)
      for (idx t = lanes[k].len; t < sh.steps; ++t) {
        clear(Base::y(lanes[k].b, t) + sh.first, sh.units);
        if (sh.power) sh.power[lanes[k].b * sh.steps + t] = 0;
      }
  }

  void start(Lane<T>& lane) {
    clear(lane.u, s.Dp);
    clear(lane.u_prev, s.Dp);
    clear(lane.pre_prev, s.Dp);
    fill(lane.eff, s.Rp, T(1));
    Base::load_initial(lane);
    lane.f_src = lane.f_dst = lane.f_own;
    if (c.f0 && s.D == s.Dp && !Base::any_reset(lane, 0)) lane.f_src = Base::rows(c.f0, lane.b);
    else Base::load_f(lane, lane.f_own);
    if constexpr (C::updates_first) {
      copy(lane.post, lane.h, sh.Hn);
      copy(lane.pre_prev, lane.h, sh.Hn);
      fill(lane.kept, sh.Rn, T(1));
    }
  }

  void step(idx n, idx t) {
    int running = 0, fresh = 0;
    for (idx k = 0; k < n; ++k) {
      Lane<T>& lane = lanes[k];
      if (t >= lane.len) continue;
      if (t > 0) Base::each_reset(lane, t, [&](idx which) { reset(lane, which); });
      if (starts(lane, t)) starting[fresh++] = &lane;
      else active[running++] = &lane;
      put_input(lane, t);
    }
    sweep(active, running);
    forward_sweep<P, false>(s, starting, fresh);
    for (int k = 0; k < fresh; ++k) active[running++] = starting[k];
    for (int k = 0; k < running; ++k) finish_step(static_cast<Lane<T>&>(*active[k]), t);
  }

  // A sequence starts afresh at a later step than the first.
  void reset(Lane<T>& lane, idx k) {
    if (lane.f_src != lane.f_own) {
      copy(lane.f_own, lane.f_src, s.R * s.Dp);
      lane.f_src = lane.f_own;
    }
    put<P>(lane.f_own, s.R * s.Dp, k, T(0));
    put<P>(lane.h, sh.Hn, k, T(0));
    put<P>(lane.c, sh.Hn, k, T(0));
    put<P>(lane.u_prev, s.Dp, k, T(0));
    put<P>(lane.pre_prev, s.Dp, k, T(0));
    put<P>(lane.post, s.Rp, k, T(0));
    put<P>(lane.kept, sh.Rn, k, T(1));
    put<P>(lane.eff, sh.Rn, k, T(1));
  }

  // Whether there is no update to make. Across, the others of a lane go on when one starts: its
  // update is to make zeros of zeros.
  bool starts(const Lane<T>& lane, idx t) const {
    return !C::updates_first && (t == 0 || (!P::across && Base::any_reset(lane, t)));
  }

  void put_input(Lane<T>& lane, idx t) {
    const T* of_x = Base::x(lane.b, t);
    if constexpr (C::inner) of_x = view<P>(lane.x_own, of_x, c.x_sb, sh.H);
    else gather<P>(lane.u, of_x, c.x_sb, sh.I);
    if (sh.has_hidden && !C::own_u) copy(lane.u + Base::hidden_at(), lane.h, sh.Hn);
    C::input(sh, lane, of_x);
    if (P::power && c.power_weight) Base::square(lane.u, lane.u2, nullptr);
  }

  // Of lanes that update their F first.
  void sweep(SweepLane<T>* const* some, int n) {
    forward_sweep<P, true>(s, some, n);
    for (int k = 0; k < n; ++k) {
      Lane<T>& lane = static_cast<Lane<T>&>(*some[k]);
      lane.f_src = lane.f_dst = lane.f_own;
      if constexpr (P::clamp && !P::across)
        if (!finite(lane.gu, s.Rp)) forward_sweep_again<P>(s, &lane);
    }
  }

  void finish_step(Lane<T>& lane, idx t) {
    const T* of_x = P::across ? lane.x_own : Base::x(lane.b, t);
    const Each<P> power = C::forward(sh, lane, of_x, Base::record(lane.b, t));
    if (P::power && sh.power) {
      T values[P::wide];
      set<P>(values, 0, power);
      scatter<P>(sh.power + lane.b * sh.steps + t, sh.steps, values, 1);
    }
    scatter<P>(Base::y(lane.b, t) + sh.first, c.y_sb, lane.h + sh.first, sh.units / P::wide);
    swap(lane.u, lane.u_prev);
    if (sh.associate_new) copy(lane.u_prev + Base::hidden_at(), lane.h, sh.Hn);
    if (t + 1 == lane.len) finish(lane);
  }

  // The update that ends a sequence, into the caller's final state.
  void finish(Lane<T>& lane) {
    Base::store_state(lane, c.c_T, lane.c);
    if constexpr (C::updates_first) return Base::store_rows(lane, c.f_T, lane.f_src);
    lane.f_dst = s.D == s.Dp ? Base::rows(c.f_T, lane.b) : lane.f_own;
    update_sweep<P, false>(s, lane);
    if constexpr (P::norm == kNormPost)
      for (idx i = 0; i < s.R; ++i)
        vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
          T* f = lane.f_dst + i * s.Dp + d;
          store(f, load(f) * get<P>(lane.eff, i));
        });
    Base::store_rows(lane, c.f_T, lane.f_dst);
  }
};

}  // namespace stpn::STPN_ISA
