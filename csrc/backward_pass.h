// The way through time, backward.
//
// It stores no F that the forward pass had: it goes through the sequence once more, keeping a
// checkpoint of F every so often, then takes the segments between checkpoints from the last to the
// first, each recomputed into memory that fits the cache.
#pragma once

#include "backward_sweep.h"
#include "pass.h"

namespace stpn::STPN_ISA {

template <class P, class C> class BackwardPass : Pass<P, C> {
  using Base = Pass<P, C>;
  using Base::active, Base::c, Base::lanes, Base::s, Base::sh, Base::width;
  using typename Base::T;

  Gradients<P, C> grads;
  idx every = 0, checkpoints = 0;
  idx du_from;     // columns before it want no gradient
  const idx size;  // of F

 public:
  BackwardPass(const Shared<P, C>& shared, const Gradients<P, C>& gradients, idx most)
      : Base(shared, most), grads(gradients), size(s.R * s.Dp) {
    const idx whole = P::across ? 1 : kLanes<T>;  // columns that a vector spans
    du_from = c.dx || C::inner ? 0 : sh.I / whole * whole * P::wide;
    plan_segments();
    Arena count;
    layout(count);
    Arena arena{static_cast<char*>(scratch(kOfMember, count.used))};
    layout(arena);
  }

  void run(idx from, idx to) {
    for (idx b = from; b < to; b += width * P::wide) run_group(Base::take_lanes(b, to));
  }

 private:
  // A segment of every lane should stay in the memory that it is given, but not be so short that
  // there are many checkpoints. A short sequence is one segment.
  void plan_segments() {
    const idx step = size * idx(sizeof(T)) * width, many = idx(64) << 20;
    idx root = 1;
    while (root * root < sh.steps) ++root;
    idx few = root < 4 ? root : root / 4 < 4 ? 4 : root / 4;
    if (sh.steps / few * step > many) few = root;  // with which segment and checkpoints take least
    every = step ? c.segment_bytes / step : sh.steps;  // there may be no synapses
    if (every < few) every = few;
    if (every > sh.steps) every = sh.steps;
    checkpoints = (sh.steps + every - 1) / every;
  }

  void layout(Arena& a) {
    for (idx k = 0; k < width; ++k) {
      Lane<T>& lane = lanes[k];
      layout_lane<P, C>(a, lane, sh, every);
      lane.f_own = a.take_raw<T>(size);
      lane.dF = a.take_raw<T>(size);
      lane.checkpoints = a.take_raw<T>(size * checkpoints);
      lane.segment = a.take_raw<T>(size * every);
    }
  }

  void run_group(idx n) {
    idx longest = 0;
    for (idx k = 0; k < n; ++k) {
      start(lanes[k]);
      if (lanes[k].len > longest) longest = lanes[k].len;
    }
    for (idx t0 = (longest - 1) / every * every; t0 >= 0; t0 -= every) {
      const idx t1 = t0 + every < longest ? t0 + every : longest;
      for (idx k = 0; k < n; ++k) {
        Lane<T>& lane = lanes[k];
        if (t0 >= lane.len) continue;
        const idx end = t1 < lane.len ? t1 : lane.len;
        recall_block(lane, t0, end);
        replay_block<true>(lane, t0, end - 1 - t0, f_of(lane, t0, t0), lane.segment);
      }
      for (idx t = t1 - 1; t >= t0; --t) step(n, t0, t);
    }
    for (idx k = 0; k < n; ++k) store_initial_gradients(lanes[k]);
    if (c.dx)
      for (idx k = 0; k < n; ++k)
        for (idx t = lanes[k].len; t < sh.steps; ++t)
          clear(dx(lanes[k].b, t), C::inner ? sh.H : sh.I);
  }

  void start(Lane<T>& lane) {
    clear(lane.dh, sh.Hn);
    clear(lane.du, s.Dp);
    clear(lane.dpre, s.Dp);
    Base::load_state(lane, lane.dc, c.dc_T);
    first_f(lane, lane.checkpoints);
    for (idx t0 = 0; t0 + every < lane.len; t0 += every) {
      recall_block(lane, t0, t0 + every);
      T* from = lane.checkpoints + t0 / every * size;
      replay_block<false>(lane, t0, every, from, from + size);
    }
  }

  void step(idx n, idx t0, idx t) {
    int running = 0;
    for (idx k = 0; k < n; ++k) {
      Lane<T>& lane = lanes[k];
      if (t >= lane.len) continue;
      active[running++] = &lane;
      prepare(lane, t0, t);
    }
    const Wanted wanted{du_from, sh.associate_new};
    if (t > 0) backward_sweep<P, true>(s, grads.synapses, active, running, wanted);
    else backward_sweep<P, false>(s, grads.synapses, active, running, wanted);
    for (int k = 0; k < running; ++k) propagate(static_cast<Lane<T>&>(*active[k]), t);
    if (t > 0 && t % kBoundEvery == 0)
      for (int k = 0; k < running; ++k) bound(*active[k]);
  }

  // --- What the forward pass had ---

  // The hidden and the cell state that step t started from.
  void load_hidden_before(const Lane<T>& lane, idx t, T* to) {
    if (t > 0) gather<P>(to, Base::y(lane.b, t - 1), c.y_sb, sh.H);
    else Base::load_state(lane, to, c.h0);
    Base::each_reset(lane, t, [&](idx k) { put<P>(to, sh.Hn, k, T(0)); });
  }
  void load_cell_before(Lane<T>& lane, idx t) {
    if (t > 0) copy(lane.c, C::cell_of(sh, Base::record(lane.b, t - 1)), sh.Hn);
    else Base::load_state(lane, lane.c, c.c0);
    Base::each_reset(lane, t, [&](idx k) { put<P>(lane.c, sh.Hn, k, T(0)); });
  }

  void recall_u(Lane<T>& lane, idx t, T* u) {
    if constexpr (C::own_u) {
      C::recall_u(sh, lane, Base::record(lane.b, t), u);
    } else {
      if constexpr (!C::inner) gather<P>(u, Base::x(lane.b, t), c.x_sb, sh.I);
      if (sh.has_hidden) load_hidden_before(lane, t, u + Base::hidden_at());
    }
  }

  const T* y_of(const Lane<T>& lane, idx t) const {
    return view<P>(lane.y_own, Base::y(lane.b, t), c.y_sb, sh.H);
  }

  // Blocks of the segment from t0 to t1: what each step used, and the step before them.
  void recall_block(Lane<T>& lane, idx t0, idx t1) {
    for (idx t = t0 > 0 ? t0 - 1 : 0; t < t1; ++t) {
      const idx k = t - t0 + 1;
      recall_u(lane, t, lane.u_block + k * s.Dp);
      const T* h = y_of(lane, t);
      if constexpr (P::own_pre) copy(lane.pre_block + k * s.Dp, h, sh.Hn);
      if (sh.associate_new) {
        copy(lane.pre_block + k * s.Dp, lane.u_block + k * s.Dp, Base::hidden_at());
        copy(lane.pre_block + k * s.Dp + Base::hidden_at(), h, sh.Hn);
      }
      C::recall(sh, Base::record(lane.b, t), h, lane.post_block + k * s.Rp,
                lane.kept_block + k * s.Rp, lane.eff_block + k * s.Rp);
    }
  }

  // From F_t0 to F_{t0+n} by the blocks of the segment from t0; after a reset a sequence is at
  // zero.
  template <bool KEEP> void replay_block(Lane<T>& lane, idx t0, idx n, const T* from, T* to) {
    for (idx t = t0; n > 0;) {
      idx run = 1;  // up to the next reset
      while (run < n && !Base::any_reset(lane, t + run)) ++run;
      const idx k = t - t0 + 1;
      replay<P, KEEP>(s, {from, t == 0, to, run, lane.pre_block + k * s.Dp,
                          lane.post_block + k * s.Rp, lane.kept_block + k * s.Rp});
      n -= run;
      t += run;
      T* last = KEEP ? to + (run - 1) * size : to;
      Base::each_reset(lane, t, [&](idx which) { put<P>(last, size, which, T(0)); });
      from = last;
      if (KEEP) to = last + size;
    }
  }

  void first_f(Lane<T>& lane, T* to) {
    Base::load_f(lane, to);
    if constexpr (C::updates_first) {
      Base::load_initial(lane);
      copy(lane.post_block, lane.h, sh.Hn);
      copy(lane.pre_block, lane.h, sh.Hn);
      fill(lane.kept_block, sh.Rn, T(1));
      replay<P, false>(s, {to, true, to, 1, lane.pre_block, lane.post_block, lane.kept_block});
    }
  }

  // F_t of the segment that starts at t0.
  const T* f_of(const Lane<T>& lane, idx t0, idx t) const {
    return t == t0 ? lane.checkpoints + t0 / every * size : lane.segment + (t - t0 - 1) * size;
  }

  // Point the lane at what step t used.
  void recall_step(Lane<T>& lane, idx t0, idx t) {
    const idx k = t - t0 + 1;
    lane.record = Base::record(lane.b, t);
    lane.u = lane.u_block + k * s.Dp;
    lane.pre = lane.pre_block + k * s.Dp;
    lane.u_prev = lane.pre_prev = lane.pre - s.Dp;
    lane.post = lane.post_block + k * s.Rp;
    lane.post_prev = lane.post - s.Rp;
    lane.kept = lane.kept_block + k * s.Rp;
    lane.kept_prev = lane.kept - s.Rp;
    lane.eff = lane.eff_block + k * s.Rp;
    if (P::power && c.dpower) Base::square(lane.u, lane.u2, lane.u_w);
  }

  // --- Gradients ---

  // dL/dF after the last step, from the gradient of the final state, and the sums of that step.
  void last_gradient(Lane<T>& lane, idx t0) {
    clear(lane.s1, s.Rp);
    clear(lane.s2, s.Rp);
    clear(lane.dpre, s.Dp);
    Base::load_rows(lane, lane.dF, c.df_T);
    if (!c.df_T) return;
    if constexpr (C::updates_first) {
      // The final state is the F of the last step itself: the sweep of that step multiplies by
      // decay.
      for (idx k = 0; k < size; ++k) lane.dF[k] /= T(C::lambda(c));
      return;
    }
    // F_T as of a step after the last: "prev" is the last step.
    recall_step(lane, t0, lane.len);
    lane.eff = lane.c1;  // free until the sweep
    lane.post = lane.post_prev;
    lane.kept = lane.kept_prev;
    lane.f_src = f_of(lane, t0, lane.len - 1);
    lane.f_dst = lane.f_own;
    lane.masked = lane.len > 1;
    update_sweep<P, true>(s, lane);
    for (idx i = 0; i < s.R; ++i) through_last_update(lane, i);
    sums_sweep<P>(s, lane, lane.f_own, sh.associate_new);
  }

  // From dL/d(final state) to dL/dF before its division by norm post and its clamp, in row i. F_T,
  // as it was before the clamp, is replaced by what it was after.
  void through_last_update(Lane<T>& lane, idx i) {
    T *D = lane.dF + i * s.Dp, *f_row = lane.f_own + i * s.Dp;
    const V<T> limit = splat(s.clamp);
    V<T> dot{}, scale{}, eff = splat(T(1));
    if constexpr (P::norm == kNormPost) {
      vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
        dot += load(D + d) * clamped<P>(load(f_row + d), limit);
      });
      const Each<P> e = get<P>(lane.eff, i);
      eff = spread<P>(e);
      scale = spread<P>(-e * e * e * total<P>(dot));
    }
    vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
      V<T> grad = load(D + d);
      const V<T> before = load(f_row + d), f = clamped<P>(before, limit);
      if constexpr (P::norm == kNormPost) {
        const V<T> dm = scale * (parameter<P>(parameter_row<P>(s, i), d, kW) + f);
        T* dw = slot<P>(grads.synapses + i * s.Dp * kSlots<P>, d, kW);
        store(dw, load(dw) + dm);
        grad = grad * eff + dm;
      }
      if constexpr (P::clamp) grad = abs(before) <= limit ? grad : V<T>{};
      store(D + d, grad);
      store(f_row + d, f);
    });
  }

  // Everything that the sweep of step t needs.
  void prepare(Lane<T>& lane, idx t0, idx t) {
    if (t == lane.len - 1) last_gradient(lane, t0);
    recall_step(lane, t0, t);
    lane.F = f_of(lane, t0, t);
    lane.masked = t > 0;  // after a reset F is zero, which no clamp masks
    T from_update[P::wide];
    fill(from_update, P::wide, t > 0 ? T(1) : T(0));
    Base::each_reset(lane, t, [&](idx k) { from_update[k] = 0; });
    if constexpr (C::has_c) load_cell_before(lane, t);
    if constexpr (C::own_u) load_hidden_before(lane, t, lane.h);
    const T* dy = c.dy ? at<T>(c.dy) + lane.b * c.dy_sb + t * c.dy_st : nullptr;
    if (dy) dy = view<P>(lane.dy_own, dy, c.dy_sb, sh.H);
    const T* h = C::reads_y ? y_of(lane, t) : nullptr;
    if (sh.associate_new)
      for (idx k = 0; k < sh.Hn; ++k) lane.dh[k] += lane.dpre[Base::hidden_at() + k];
    C::backward(sh, lane, grads, dy, h, dpower(lane, t), get<P>(from_update, 0));
    clear(lane.du, s.Dp);
    if (sh.associate_new) {  // what the update wants of x
      copy(lane.du, lane.dpre, Base::hidden_at());
      clear(lane.dpre, s.Dp);
    }
  }

  Each<P> dpower(const Lane<T>& lane, idx t) const {
    T values[P::wide]{};
    if (c.dpower) gather<P>(values, at<T>(c.dpower) + lane.b * sh.steps + t, sh.steps, 1);
    return get<P>(values, 0);
  }

  T* dx(idx b, idx t) const { return at<T>(c.dx) + b * c.dx_sb + t * c.dx_st; }

  // After the sweep of step t: gradients of its input, and what goes on to step t-1.
  void propagate(Lane<T>& lane, idx t) {
    const T* to_x = C::propagate(sh, lane, grads, dpower(lane, t));
    if (c.dx) scatter<P>(dx(lane.b, t), c.dx_sb, to_x, C::inner ? sh.H : sh.I);
    if (sh.has_hidden) copy(lane.dh, lane.du + Base::hidden_at() + sh.first, sh.units);
    Base::each_reset(lane, t, [&](idx k) {
      put<P>(lane.dF, size, k, T(0));
      put<P>(lane.dh, sh.Hn, k, T(0));
      put<P>(lane.dc, sh.Hn, k, T(0));
      put<P>(lane.s1, s.Rp, k, T(0));
      put<P>(lane.s2, s.Rp, k, T(0));
      put<P>(lane.dpre, s.Dp, k, T(0));
    });
  }

  // dL/dF grows by lambda / n with every step back where that is above 1. Of a synapse that has not
  // been used (u and F are zero) it counts for nothing, but a factor of 1.6 is beyond float32 after
  // 190 steps, and infinity times zero is not zero.
  static constexpr idx kBoundEvery = 16;
  void bound(SweepLane<T>& lane) {
    const V<T> most = splat(sizeof(T) == 4 ? T(1e18) : T(1e150));
    vectors<T>(size,
               [&](idx k) STPN_LAMBDA { store(lane.dF + k, clamp<T>(load(lane.dF + k), most)); });
  }

  void store_initial_gradients(Lane<T>& lane) {
    if constexpr (C::updates_first) through_first_update(lane);
    if (c.dh0)
      scatter<P>(at<T>(c.dh0) + lane.b * sh.H + sh.first, sh.H, lane.dh, sh.units / P::wide);
    Base::store_state(lane, c.dc0, lane.dc);
    if (c.df0) Base::store_rows(lane, c.df0, lane.dF);
  }

  // The update that came before the first step, of h0 with itself.
  void through_first_update(Lane<T>& lane) {
    const T decay = T(C::lambda(c)), rate = T(C::gamma(c));
    Base::load_initial(lane);
    for (idx i = 0; i < s.R; ++i)
      for (idx j = 0; j < s.D; ++j) {
        T* dF = lane.dF + i * s.Dp;
        const Each<P> D = get<P>(dF, j), to_both = rate * D;
        set<P>(lane.dh, i, get<P>(lane.dh, i) + to_both * get<P>(lane.h, j));
        set<P>(lane.dh, j, get<P>(lane.dh, j) + to_both * get<P>(lane.h, i));
        set<P>(dF, j, D * decay);
      }
  }
};

}  // namespace stpn::STPN_ISA
