// The way through time, forward and backward, of the lanes of one member of the team.
//
// The backward pass stores no F that the forward pass had: it goes through the sequence once more,
// keeping a checkpoint of F every so often, then takes the segments between checkpoints from the
// last to the first, each recomputed into memory that fits the cache.
#pragma once

#include "cells.h"
#include "sequences.h"

namespace stpn::STPN_ISA {

template <class P, CellKind K> class Member {
  using T = typename P::T;
  static constexpr bool kInner = K == CellKind::kModPlast || K == CellKind::kFastWeights;
  // Fast Weights updates at the start of a step, with the state it was given.
  static constexpr bool kUpdatesFirst = K == CellKind::kFastWeights;

  const Shared<P, K>& sh;
  const Call& c;
  const Synapses<T>& s;
  const idx width;                 // lanes in use
  idx every = 0, checkpoints = 0;  // of the backward pass
  Gradients<P, K> grads;
  Neurons<T> lanes[kGroup<P>];
  Lane<T>*active[kGroup<P>], *fresh_lanes[kGroup<P>];

 public:
  // For at most `most` lanes; `gradients` is null for a forward pass.
  Member(const Shared<P, K>& shared, const Gradients<P, K>* gradients, idx most)
      : sh(shared), c(shared.call), s(shared.s), width(most < kGroup<P> ? most : kGroup<P>) {
    const bool backward = gradients;
    if (backward) grads = *gradients, plan_segments();
    Arena count;
    layout(count, backward);
    Arena arena{static_cast<char*>(scratch(1, count.used))};
    layout(arena, backward);
  }

  void forward(idx from, idx to) {
    for (idx b = from; b < to; b += width * P::wide) forward_group(take_lanes(b, to));
  }

  void backward(idx from, idx to) {
    for (idx b = from; b < to; b += width * P::wide) backward_group(take_lanes(b, to));
  }

 private:
  // A segment of every lane should stay in the memory that it is given, but not be so short that there
  // are many checkpoints. A short sequence is one segment.
  void plan_segments() {
    const idx step = s.R * s.Dp * idx(sizeof(T)) * width, many = idx(64) << 20;
    idx root = 1;
    while (root * root < sh.T_) ++root;
    idx few = root < 4 ? root : root / 4 < 4 ? 4 : root / 4;
    if (sh.T_ / few * step > many) few = root;  // with which segment and checkpoints take least
    every = step ? c.segment_bytes / step : sh.T_;  // there may be no synapses
    if (every < few) every = few;
    if (every > sh.T_) every = sh.T_;
    checkpoints = (sh.T_ + every - 1) / every;
  }

  void layout(Arena& a, bool backward) {
    const idx n = s.R * s.Dp;
    for (idx k = 0; k < width; ++k) {
      Neurons<T>& lane = lanes[k];
      layout_lane<P, K>(a, lane, sh, every);
      lane.f_own = a.take_raw<T>(n);
      if (backward) {
        lane.dF = a.take_raw<T>(n);
        lane.checkpoints = a.take_raw<T>(n * checkpoints);
        lane.segment = a.take_raw<T>(n * every);
      }
    }
  }

  // The sequences from b on, in as many lanes as there are; returns how many.
  idx take_lanes(idx b, idx to) {
    idx n = 0;
    for (; n < width && b < to; ++n, b += P::wide) {
      Neurons<T>& lane = lanes[n];
      lane.b = b;
      lane.len = c.lengths ? idx(at<int64_t>(c.lengths)[b]) : sh.T_;  // lanes of one sequence only
    }
    return n;
  }

  // Views of the call's arrays; of a lane's first sequence.
  const T* x(idx b, idx t) const { return at<T>(c.x) + b * c.x_sb + t * c.x_st; }
  T* y(idx b, idx t) const { return at<T>(c.y) + b * c.y_sb + t * c.y_st; }
  // The first row says how the lanes of the forward pass were made (kernels.cpp).
  T* record(idx b, idx t) const {
    return c.saved ? at<T>(c.saved) + (1 + b * sh.T_ + t * P::wide) * c.saved_size : nullptr;
  }
  bool fresh(idx b, idx t) const { return c.reset && at<uint8_t>(c.reset)[b * c.reset_sb + t * c.reset_st]; }
  // Of an array (B, rows, D), those of the strip.
  T* rows(int64_t address, idx b) const { return at<T>(address) + (b * sh.rows + sh.first) * s.D; }

  const T* inner_x(Neurons<T>& lane, idx t) const {
    return kInner ? view<P>(lane.x_own, x(lane.b, t), c.x_sb, sh.H) : nullptr;
  }

  // One number per sequence, from and to an array (B, T).
  Each<P> gather_one(const Neurons<T>& lane, int64_t address, idx t) const {
    T values[P::wide]{};
    if (address) gather<P>(values, at<T>(address) + lane.b * sh.T_ + t, sh.T_, 1);
    return get<P>(values, 0);
  }
  void scatter_one(const Neurons<T>& lane, T* to, idx t, Each<P> value) const {
    T values[P::wide];
    set<P>(values, 0, value);
    scatter<P>(to + lane.b * sh.T_ + t, sh.T_, values, 1);
  }

  template <class F> void each_fresh(const Neurons<T>& lane, idx t, F forget) const {
    if (c.reset)
      for (idx k = 0; k < P::wide; ++k)
        if (fresh(lane.b + k, t)) forget(k);
  }
  bool any_fresh(const Neurons<T>& lane, idx t) const {
    bool any = false;
    each_fresh(lane, t, [&](idx) { any = true; });
    return any;
  }

  void load_hidden(Neurons<T>& lane) {
    if (c.h0) gather<P>(lane.h, at<T>(c.h0) + lane.b * sh.H, sh.H, sh.H); else clear(lane.h, sh.Hn);
    if (c.c0) gather<P>(lane.c, at<T>(c.c0) + lane.b * sh.H, sh.H, sh.H); else clear(lane.c, sh.Hn);
    each_fresh(lane, 0, [&](idx k) { put<P>(lane.h, sh.Hn, k, T(0)), put<P>(lane.c, sh.Hn, k, T(0)); });
  }

  // F_0 into a lane's rows, or those of any array (B, rows, D); absent, it is zero.
  void load_rows(const Neurons<T>& lane, T* to, int64_t address) {
    if (!address) return clear(to, s.R * s.Dp);
    const T* from = rows(address, lane.b);
    if (P::across || s.D == s.Dp) return gather<P>(to, from, sh.rows * s.D, s.R * s.D);
    for (idx i = 0; i < s.R; ++i) {
      copy(to + i * s.Dp, from + i * s.D, s.D);
      clear(to + i * s.Dp + s.D, s.Dp - s.D);
    }
  }
  void load_f(const Neurons<T>& lane, T* to) {
    load_rows(lane, to, c.f0);
    each_fresh(lane, 0, [&](idx k) { put<P>(to, s.R * s.Dp, k, T(0)); });
  }
  void store_rows(const Neurons<T>& lane, int64_t address, const T* from) const {
    T* to = rows(address, lane.b);
    if (to == from) return;
    if constexpr (P::across) return scatter<P>(to, sh.rows * s.D, from, s.R * s.D);
    for (idx i = 0; i < s.R; ++i) copy(to + i * s.D, from + i * s.Dp, s.D);
  }

  void square(const T* u, T* u2, T* u_w) const {
    vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
      const V<T> v = load(u + d), weighted = load(sh.power_weight + d) * v;
      store(u2 + d, weighted * v);
      if (u_w) store(u_w + d, weighted);
    });
  }

  // The update that ends a sequence, into the caller's final state.
  void finish(Neurons<T>& lane) {
    if constexpr (kUpdatesFirst) return store_rows(lane, c.f_T, lane.f_src);
    lane.f_dst = s.D == s.Dp ? rows(c.f_T, lane.b) : lane.f_own;
    update_sweep<P, false>(s, lane);
    if constexpr (P::norm == kNormPost)
      for (idx i = 0; i < s.R; ++i)
        vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
          T* f = lane.f_dst + i * s.Dp + d;
          store(f, load(f) * get<P>(lane.eff, i));
        });
    store_rows(lane, c.f_T, lane.f_dst);
  }

  void start_forward(Neurons<T>& lane) {
    clear(lane.u, s.Dp), clear(lane.u_prev, s.Dp), clear(lane.pre_prev, s.Dp);
    for (idx i = 0; i < s.Rp; ++i) lane.eff[i] = T(1);
    load_hidden(lane);
    lane.f_src = lane.f_dst = lane.f_own;
    if (c.f0 && s.D == s.Dp && !any_fresh(lane, 0)) lane.f_src = rows(c.f0, lane.b);
    else load_f(lane, lane.f_own);
    if constexpr (kUpdatesFirst) {
      copy(lane.post, lane.h, sh.Hn), copy(lane.pre_prev, lane.h, sh.Hn);
      for (idx i = 0; i < sh.Rn; ++i) lane.kept[i] = T(1);
    }
  }

  // A sequence starts afresh at a later step than the first. Across, others of its lane go on, so
  // that the sweep is to make zeros of zeros; along, there is no update to make.
  void forget(Neurons<T>& lane, idx k) {
    if (lane.f_src != lane.f_own) copy(lane.f_own, lane.f_src, s.R * s.Dp), lane.f_src = lane.f_own;
    put<P>(lane.f_own, s.R * s.Dp, k, T(0));
    put<P>(lane.h, sh.Hn, k, T(0)), put<P>(lane.c, sh.Hn, k, T(0)), put<P>(lane.post, s.Rp, k, T(0));
    put<P>(lane.u_prev, s.Dp, k, T(0)), put<P>(lane.pre_prev, s.Dp, k, T(0));
    put<P>(lane.kept, sh.Rn, k, T(1)), put<P>(lane.eff, sh.Rn, k, T(1));
  }

  // A sweep of lanes that update their F first, or do not.
  void sweep(Lane<T>* const* some, int n, bool update) {
    if (!update) return forward_sweep<P, false>(s, some, n);
    forward_sweep<P, true>(s, some, n);
    for (int k = 0; k < n; ++k) {
      Neurons<T>& lane = static_cast<Neurons<T>&>(*some[k]);
      lane.f_src = lane.f_dst = lane.f_own;
      if constexpr (P::clamp && !P::across)
        if (!finite(lane.gu, s.Rp)) forward_sweep_again<P>(s, &lane);
    }
  }

  void forward_group(idx n) {
    idx longest = 0;
    for (idx k = 0; k < n; ++k) {
      start_forward(lanes[k]);
      if (lanes[k].len > longest) longest = lanes[k].len;
    }
    for (idx t = 0; t < longest; ++t) {
      int running = 0, starting = 0;
      for (idx k = 0; k < n; ++k) {
        Neurons<T>& lane = lanes[k];
        if (t >= lane.len) continue;
        if (t > 0) each_fresh(lane, t, [&](idx which) { forget(lane, which); });
        const bool starts = !kUpdatesFirst && (t == 0 || (!P::across && any_fresh(lane, t)));
        if (starts) fresh_lanes[starting++] = &lane;
        else active[running++] = &lane;
        if constexpr (!kInner) gather<P>(lane.u, x(lane.b, t), c.x_sb, sh.I);
        if (sh.has_hidden && K != CellKind::kFastWeights) copy(lane.u + (kInner ? 0 : sh.I * P::wide), lane.h, sh.Hn);
        Cell<P, K>::input(sh, lane, inner_x(lane, t));
        if (P::power && c.power_weight) square(lane.u, lane.u2, nullptr);
      }
      sweep(active, running, true);
      sweep(fresh_lanes, starting, false);
      for (int k = 0; k < starting; ++k) active[running++] = fresh_lanes[k];
      for (int k = 0; k < running; ++k) {
        Neurons<T>& lane = static_cast<Neurons<T>&>(*active[k]);
        const T* p = P::across ? lane.x_own : x(lane.b, t);
        const Each<P> power = Cell<P, K>::settle(sh, lane, p, record(lane.b, t));
        if (P::power && sh.power) scatter_one(lane, sh.power, t, power);
        scatter<P>(y(lane.b, t) + sh.first, c.y_sb, lane.h + sh.first, sh.units / P::wide);
        swap(lane.u, lane.u_prev);
        if (t + 1 == lane.len) {
          finish(lane);
          if (c.c_T) scatter<P>(at<T>(c.c_T) + lane.b * sh.H, sh.H, lane.c, sh.H);
        }
      }
    }
    for (idx k = 0; k < n; ++k)
      for (idx t = lanes[k].len; t < sh.T_; ++t) {
        clear(y(lanes[k].b, t) + sh.first, sh.units);
        if (sh.power) sh.power[lanes[k].b * sh.T_ + t] = 0;
      }
  }

  template <class A> static STPN_INLINE void swap(A& a, A& b) { A t = a; a = b; b = t; }

  // The hidden state that step t started from.
  void load_hidden_before(const Neurons<T>& lane, idx t, T* to) {
    if (t > 0) gather<P>(to, y(lane.b, t - 1), c.y_sb, sh.H);
    else if (c.h0) gather<P>(to, at<T>(c.h0) + lane.b * sh.H, sh.H, sh.H);
    else clear(to, sh.Hn);
    each_fresh(lane, t, [&](idx k) { put<P>(to, sh.Hn, k, T(0)); });
  }

  void load_cell_before(Neurons<T>& lane, idx t) {
    if (t > 0) copy(lane.c, record(lane.b, t - 1) + sh.record.extra + 4 * sh.Hn, sh.Hn);
    else if (c.c0) gather<P>(lane.c, at<T>(c.c0) + lane.b * sh.H, sh.H, sh.H);
    else clear(lane.c, sh.Hn);
    each_fresh(lane, t, [&](idx k) { put<P>(lane.c, sh.Hn, k, T(0)); });
  }

  // u of step t, as the forward pass had it.
  void rebuild_u(Neurons<T>& lane, idx t, T* u) {
    if constexpr (K == CellKind::kFastWeights) {
      copy(lane.p, record(lane.b, t) + sh.record.extra, sh.Hn);  // into memory of whole vectors
      Cell<P, K>::norm_tanh(sh, lane, lane.p, u);
    } else {
      if constexpr (!kInner) gather<P>(u, x(lane.b, t), c.x_sb, sh.I);
      if (sh.has_hidden) load_hidden_before(lane, t, u + (kInner ? 0 : sh.I * P::wide));
    }
  }

  const T* y_of(const Neurons<T>& lane, idx t) const { return view<P>(lane.y_own, y(lane.b, t), c.y_sb, sh.H); }

  // Blocks of the segment from t0 to t1: what each step used, and the step before them.
  void recall_block(Neurons<T>& lane, idx t0, idx t1) {
    for (idx t = t0 > 0 ? t0 - 1 : 0; t < t1; ++t) {
      const idx k = t - t0 + 1;
      rebuild_u(lane, t, lane.u_block + k * s.Dp);
      const T* h = y_of(lane, t);
      if constexpr (P::own_pre) copy(lane.pre_block + k * s.Dp, h, sh.Hn);
      Cell<P, K>::recall(sh, record(lane.b, t), h, lane.post_block + k * s.Rp, lane.kept_block + k * s.Rp,
                         lane.eff_block + k * s.Rp);
    }
  }

  // From F_t to F_{t+n} by the blocks of the segment from t0; sequences that start afresh begin at zero.
  template <bool KEEP> void replay_block(Neurons<T>& lane, idx t0, idx t, idx n, const T* from, T* to) {
    const idx size = s.R * s.Dp;
    while (n > 0) {
      idx run = 1;  // up to the next fresh start
      while (run < n && !any_fresh(lane, t + run)) ++run;
      const idx k = t - t0 + 1;
      replay<P, KEEP>(s, from, t == 0, to, run, lane.pre_block + k * s.Dp, lane.post_block + k * s.Rp, lane.kept_block + k * s.Rp);
      n -= run, t += run;
      T* last = KEEP ? to + (run - 1) * size : to;
      each_fresh(lane, t, [&](idx which) { put<P>(last, size, which, T(0)); });
      from = last;
      if (KEEP) to = last + size;
    }
  }

  void first_f(Neurons<T>& lane, T* to) {
    load_f(lane, to);
    if constexpr (kUpdatesFirst) {
      load_hidden(lane);
      copy(lane.post_block, lane.h, sh.Hn), copy(lane.pre_block, lane.h, sh.Hn);
      for (idx i = 0; i < sh.Rn; ++i) lane.kept_block[i] = T(1);
      replay<P, false>(s, to, true, to, 1, lane.pre_block, lane.post_block, lane.kept_block);
    }
  }

  // F_t of the segment that starts at t0.
  const T* f_of(const Neurons<T>& lane, idx t0, idx t) const {
    const idx size = s.R * s.Dp;
    return t == t0 ? lane.checkpoints + t0 / every * size : lane.segment + (t - t0 - 1) * size;
  }

  // Point the lane at what step t used.
  void recall_step(Neurons<T>& lane, idx t0, idx t) {
    const idx k = t - t0 + 1;
    lane.record = record(lane.b, t);
    lane.u = lane.u_block + k * s.Dp, lane.u_prev = lane.u - s.Dp;
    lane.pre_prev = lane.pre_block + (k - 1) * s.Dp;
    lane.post = lane.post_block + k * s.Rp, lane.post_prev = lane.post - s.Rp;
    lane.kept = lane.kept_block + k * s.Rp, lane.kept_prev = lane.kept - s.Rp;
    lane.eff = lane.eff_block + k * s.Rp;
    if (P::power && c.dpower) square(lane.u, lane.u2, lane.u_w);
  }

  // dL/dF after the last step, from the gradient of the final state, and the sums of that step.
  void last_gradient(Neurons<T>& lane, idx t0) {
    clear(lane.s1, s.Rp), clear(lane.s2, s.Rp), clear(lane.dpre, s.Dp);
    load_rows(lane, lane.dF, c.df_T);
    if (!c.df_T) return;
    if constexpr (kUpdatesFirst) {
      // The final state is the F of the last step itself: the sweep of that step multiplies by decay.
      for (idx k = 0; k < s.R * s.Dp; ++k) lane.dF[k] /= T(c.decay);
      return;
    }
    // F_T as of a step after the last: "prev" is the last step.
    recall_step(lane, t0, lane.len);
    lane.eff = lane.c1;  // free until the sweep
    lane.post = lane.post_prev, lane.kept = lane.kept_prev;
    lane.f_src = f_of(lane, t0, lane.len - 1), lane.f_dst = lane.f_own;
    lane.masked = lane.len > 1;
    update_sweep<P, true>(s, lane);
    for (idx i = 0; i < s.R; ++i) {
      T *D = lane.dF + i * s.Dp, *f_row = lane.f_own + i * s.Dp;
      const V<T> limit = splat(s.clamp);
      V<T> dot{}, scale{}, eff = splat(T(1));
      if constexpr (P::norm == kNormPost) {
        vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA { dot += load(D + d) * clamped<P>(load(f_row + d), limit); });
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
    sums_sweep<P>(s, lane, lane.f_own);
  }

  void start_backward(Neurons<T>& lane) {
    const idx size = s.R * s.Dp;
    clear(lane.dh, sh.Hn), clear(lane.dc, sh.Hn), clear(lane.du, s.Dp), clear(lane.dpre, s.Dp);
    if (c.dc_T) gather<P>(lane.dc, at<T>(c.dc_T) + lane.b * sh.H, sh.H, sh.H);
    first_f(lane, lane.checkpoints);
    for (idx t0 = 0; t0 + every < lane.len; t0 += every) {
      recall_block(lane, t0, t0 + every);
      T* from = lane.checkpoints + t0 / every * size;
      replay_block<false>(lane, t0, t0, every, from, from + size);
    }
  }

  void backward_group(idx n) {
    idx longest = 0;
    for (idx k = 0; k < n; ++k) {
      start_backward(lanes[k]);
      if (lanes[k].len > longest) longest = lanes[k].len;
    }
    const idx whole = P::across ? 1 : kLanes<T>;  // columns that a vector spans
    const idx du_from = c.dx || kInner ? 0 : sh.I / whole * whole * P::wide;
    for (idx t0 = (longest - 1) / every * every; t0 >= 0; t0 -= every) {
      const idx t1 = t0 + every < longest ? t0 + every : longest;
      for (idx k = 0; k < n; ++k) {
        Neurons<T>& lane = lanes[k];
        if (t0 >= lane.len) continue;
        const idx end = t1 < lane.len ? t1 : lane.len;
        recall_block(lane, t0, end);
        replay_block<true>(lane, t0, t0, end - 1 - t0, f_of(lane, t0, t0), lane.segment);
      }
      for (idx t = t1 - 1; t >= t0; --t) {
        int running = 0;
        for (idx k = 0; k < n; ++k) {
          Neurons<T>& lane = lanes[k];
          if (t >= lane.len) continue;
          active[running++] = &lane;
          unsettle(lane, t0, t);
        }
        if (t > 0) backward_sweep<P, true>(s, grads.synapses, active, running, du_from);
        else backward_sweep<P, false>(s, grads.synapses, active, running, du_from);
        for (int k = 0; k < running; ++k) propagate(static_cast<Neurons<T>&>(*active[k]), t);
        if (t > 0 && t % kBoundEvery == 0)
          for (int k = 0; k < running; ++k) bound(*active[k]);
      }
    }
    for (idx k = 0; k < n; ++k) store_initial_gradients(lanes[k]);
    if (c.dx)
      for (idx k = 0; k < n; ++k)
        for (idx t = lanes[k].len; t < sh.T_; ++t) clear(dx(lanes[k].b, t), kInner ? sh.H : sh.I);
  }

  // dL/dF grows by lambda / n with every step back where that is above 1. Of a synapse that has not
  // been used (u and F are zero) it counts for nothing, but a factor of 1.6 is beyond float32 after
  // 190 steps, and infinity times zero is not zero.
  static constexpr idx kBoundEvery = 16;
  void bound(Lane<T>& lane) {
    const V<T> most = splat(sizeof(T) == 4 ? T(1e18) : T(1e150));
    vectors<T>(s.R * s.Dp, [&](idx k) STPN_LAMBDA { store(lane.dF + k, clamp<T>(load(lane.dF + k), most)); });
  }

  T* dx(idx b, idx t) const { return c.dx ? at<T>(c.dx) + b * c.dx_sb + t * c.dx_st : nullptr; }

  // Everything that the sweep of step t needs.
  void unsettle(Neurons<T>& lane, idx t0, idx t) {
    if (t == lane.len - 1) last_gradient(lane, t0);
    recall_step(lane, t0, t);
    lane.F = f_of(lane, t0, t);
    lane.masked = t > 0;  // a fresh start is zero, which no clamp masks
    T from_update[P::wide];
    for (T& it : from_update) it = t > 0 ? T(1) : T(0);
    each_fresh(lane, t, [&](idx k) { from_update[k] = 0; });
    if constexpr (K == CellKind::kLstm) load_cell_before(lane, t);
    if constexpr (K == CellKind::kFastWeights) load_hidden_before(lane, t, lane.h);
    const T* dy = c.dy ? view<P>(lane.dy_own, at<T>(c.dy) + lane.b * c.dy_sb + t * c.dy_st, c.dy_sb, sh.H) : nullptr;
    const T* h = K == CellKind::kModPlast ? y_of(lane, t) : nullptr;
    Cell<P, K>::unsettle(sh, lane, grads, dy, h, gather_one(lane, c.dpower, t), get<P>(from_update, 0));
    clear(lane.du, s.Dp);
  }

  // After the sweep of step t: gradients of its input, and what goes on to step t-1.
  void propagate(Neurons<T>& lane, idx t) {
    const T* to_x = Cell<P, K>::propagate(sh, lane, grads, gather_one(lane, c.dpower, t));
    if (c.dx) scatter<P>(dx(lane.b, t), c.dx_sb, to_x, kInner ? sh.H : sh.I);
    if (sh.has_hidden) copy(lane.dh, lane.du + (kInner ? 0 : sh.I * P::wide) + sh.first, sh.units);
    each_fresh(lane, t, [&](idx k) {
      put<P>(lane.dF, s.R * s.Dp, k, T(0)), put<P>(lane.dh, sh.Hn, k, T(0)), put<P>(lane.dc, sh.Hn, k, T(0));
      put<P>(lane.s1, s.Rp, k, T(0)), put<P>(lane.s2, s.Rp, k, T(0)), put<P>(lane.dpre, s.Dp, k, T(0));
    });
  }

  void store_initial_gradients(Neurons<T>& lane) {
    const idx b = lane.b;
    if constexpr (kUpdatesFirst) {  // through the update that came before the first step
      load_hidden(lane);
      for (idx i = 0; i < s.R; ++i)
        for (idx j = 0; j < s.D; ++j) {
          T* dF = lane.dF + i * s.Dp;
          const Each<P> D = get<P>(dF, j), to_both = T(c.rate) * D;
          set<P>(lane.dh, i, get<P>(lane.dh, i) + to_both * get<P>(lane.h, j));
          set<P>(lane.dh, j, get<P>(lane.dh, j) + to_both * get<P>(lane.h, i));
          set<P>(dF, j, D * T(c.decay));
        }
    }
    if (c.dh0) scatter<P>(at<T>(c.dh0) + b * sh.H + sh.first, sh.H, lane.dh, sh.units / P::wide);
    if (c.dc0) scatter<P>(at<T>(c.dc0) + b * sh.H, sh.H, lane.dc, sh.H);
    if (c.df0) store_rows(lane, c.df0, lane.dF);
  }
};

}  // namespace stpn::STPN_ISA
